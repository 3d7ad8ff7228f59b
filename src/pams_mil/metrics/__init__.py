"""How grave are the mistakes? Metrics from labels, confusion matrices and probabilities.

Functions take `(y_true, y_pred, hierarchy, level=-1)`, truth first as in scikit-learn. The classes in
`pams_mil.metrics.modules` take `update(preds, target)`, predictions first as in torchmetrics.
"""

from pams_mil.metrics.benefit import net_benefit, normalized_cost
from pams_mil.metrics.confusion import confusion_matrix
from pams_mil.metrics.operating import OperatingCurve, operating_curve, severity_auc
from pams_mil.metrics.probability import calibration_error, expected_class_of_errors, expected_cost, macro_auc
from pams_mil.metrics.proper import boundary_calibration, brier, nll, rps, worklist_c_index
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
    "OperatingCurve",
    "accuracy",
    "ascc",
    "asmc",
    "balanced_accuracy",
    "boundary_calibration",
    "brier",
    "calibration_error",
    "confusion_matrix",
    "ecc",
    "emc",
    "expected_class_of_errors",
    "expected_cost",
    "group_recall",
    "macro_auc",
    "net_benefit",
    "nll",
    "normalized_cost",
    "operating_curve",
    "over_call_magnitude",
    "over_call_rate",
    "per_class_recall",
    "quadratic_kappa",
    "risk",
    "rps",
    "severe_errors",
    "severity_auc",
    "under_call_magnitude",
    "under_call_rate",
    "worklist_c_index",
]
