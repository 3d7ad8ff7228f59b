"""Cohorts that need no download: real digits, planted lesions, and local copies of CIFAR-10; loaded on first use."""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
