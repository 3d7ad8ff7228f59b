"""How grave are the mistakes? Metrics from labels, confusion matrices and probabilities.

Functions take `(y_true, y_pred, hierarchy, level=-1)`, truth first as in scikit-learn. The classes in
`pams_mil.metrics.modules` take `update(preds, target)`, predictions first as in torchmetrics.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
