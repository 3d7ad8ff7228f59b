"""For notebooks and scripts: the audit of arrays, displays on axes, and decisions for any classifier.

`pams_mil.audit(y_true, {"mine": P}, ["benign", "malignant"])` is where to begin.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
