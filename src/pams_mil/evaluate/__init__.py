"""Predictions in, honest scores out: reading predictions files, scoring every level, comparing models.

The functions `audit`, `decide`, `compare` and `certify` live in the modules of the same names; `pams_mil.audit` and
`pams_mil.certify` are short for the first and the last.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
