"""PAMS: multiple-instance learning that knows which class is more urgent.

The names here need no torch. Losses are in `pams_mil.methods`, models in `pams_mil.models`, remix strategies in
`pams_mil.remix`, metrics in `pams_mil.metrics`, and the command line in `pams`.
"""

from pams_mil.errors import PamsError
from pams_mil.hierarchy import ClassHierarchy

__version__ = "0.1.0"

__all__ = ["ClassHierarchy", "PamsError", "__version__"]
