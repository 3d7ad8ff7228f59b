"""How grave are the mistakes? Metrics from labels, confusion matrices and probabilities.

Functions take `(y_true, y_pred, hierarchy, level=-1)`, truth first as in scikit-learn. The classes in
`pams_mil.metrics.modules` take `update(preds, target)`, predictions first as in torchmetrics.
"""

from pams_mil.metrics.confusion import confusion_matrix
from pams_mil.metrics.probability import calibration_error, expected_class_of_errors, expected_cost, macro_auc
from pams_mil.metrics.severity_scores import (
    ascc,
    asmc,
    ecc,
    emc,
    over_call_magnitude,
    over_call_rate,
    risk,
    severe_errors,
    under_call_magnitude,
    under_call_rate,
)
from pams_mil.metrics.standard import accuracy, balanced_accuracy, group_recall, per_class_recall, quadratic_kappa

__all__ = [
    "accuracy",
    "ascc",
    "asmc",
    "balanced_accuracy",
    "calibration_error",
    "confusion_matrix",
    "ecc",
    "emc",
    "expected_class_of_errors",
    "expected_cost",
    "group_recall",
    "macro_auc",
    "over_call_magnitude",
    "over_call_rate",
    "per_class_recall",
    "quadratic_kappa",
    "risk",
    "severe_errors",
    "under_call_magnitude",
    "under_call_rate",
]
