"""Whole slides: tissue, tiles at an exact physical size, encoders, bags out, heatmaps back.

Names are loaded on first use. The function `extract` lives in the module of the same name.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
