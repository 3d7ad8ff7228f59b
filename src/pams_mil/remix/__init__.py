"""Remix: new training bags made of two, so that a model learns that the most urgent finding wins.

A strategy is one file, found by its name: `pams_mil.discover.load("remix", "sfr")`. It takes two bags and a
generator and returns rows with their origin (`Mixed`). Which bags meet is decided by `Pairing` alone.
Training only: no strategy is ever applied to validation or test bags.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
