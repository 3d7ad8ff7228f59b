"""Metrics of labels, one function each: accuracy, agreement, and the paper's severity metrics.

Urgency is *missed* (a severe error, an under-call) when the true class strictly outranks the predicted one; it is a
*false alarm* (an over-call) when it is the other way round; a mistake between tied classes is neither.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import reduce
from pams_mil.metrics.confusion import Labels, class_indices, confusion_matrix
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.slides import cells_view
from pams_mil.severity import PENALTY


def _value(
    key: str, y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int, penalty: float = PENALTY
) -> float:
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return float(METRICS[key].value(cells_view(counts, hierarchy, level, penalty)))


def accuracy(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Share of samples that are right."""
    return _value("acc", y_true, y_pred, hierarchy, level)


def balanced_accuracy(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Mean recall over the classes that occur in `y_true`."""
    return _value("balanced_acc", y_true, y_pred, hierarchy, level)


def quadratic_kappa(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Cohen's kappa with quadratic weights on the class index; NaN when all samples share one class."""
    return _value("cohen_kappa", y_true, y_pred, hierarchy, level)


def per_class_recall(
    y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1
) -> npt.NDArray[np.float64]:
    """Recall of each class, [C]; NaN for a class that does not occur."""
    return reduce.ConfusionCells.of(confusion_matrix(y_true, y_pred, hierarchy, level)).recalls


def group_recall(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, group: str, level: int = 0) -> float:
    """Share of a group's samples that were predicted as any class of that group.

    Labels are of the finest level, `group` is a class of `level`; for example, all Adenoma classes positive.

    >>> hierarchy = ClassHierarchy.load("bracs")
    >>> group_recall(["DCIS", "IC", "IC", "N"], ["IC", "IC", "N", "N"], hierarchy, "Malignant")
    0.6666666666666666
    """
    wanted = hierarchy.index(group, level)
    true = hierarchy.lift(class_indices(y_true, hierarchy), level)
    predicted = hierarchy.lift(class_indices(y_pred, hierarchy), level)
    if true.shape != predicted.shape:
        raise ParameterError(f"y_true and y_pred must be equally long, found {true.size} and {predicted.size}.")
    positive = true == wanted
    return float(reduce.divide(np.sum(positive & (predicted == wanted)), np.sum(positive)))


def ascc(
    y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1, *, penalty: float = PENALTY
) -> float:
    """Asymmetric classification confidence, higher is better; 1 when nothing is wrong.

        AsCC = (1/N) Σ_tr S[t,r] / W[t,r],   W[t,r] = 1 + |t − r| + P·1[t outranks r]

    >>> hierarchy = ClassHierarchy.flat(["benign", "malignant"])
    >>> ascc(["malignant", "malignant"], ["malignant", "benign"], hierarchy)  # (1 + 1/4) / 2
    0.625
    >>> ascc(["benign", "benign"], ["benign", "malignant"], hierarchy)  # (1 + 1/2) / 2
    0.75
    """
    return _value("ascc", y_true, y_pred, hierarchy, level, penalty)


def asmc(
    y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1, *, penalty: float = PENALTY
) -> float:
    """Asymmetric misclassification confidence, higher is better; +inf without errors.

        AsMC = (1/#errors) Σ_{t≠r} S[t,r] / (W[t,r] − 1)

    >>> hierarchy = ClassHierarchy.flat(["benign", "malignant"])
    >>> asmc(["malignant", "benign"], ["benign", "malignant"], hierarchy)  # (1/3 + 1) / 2
    0.6666666666666666
    >>> asmc(["benign"], ["benign"], hierarchy)
    inf
    """
    return _value("asmc", y_true, y_pred, hierarchy, level, penalty)


def ecc(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Classification confidence on the symmetric wheel: AsCC with P = 0."""
    return _value("ecc", y_true, y_pred, hierarchy, level)


def emc(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Misclassification confidence on the symmetric wheel: AsMC with P = 0."""
    return _value("emc", y_true, y_pred, hierarchy, level)


def risk(
    y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1, *, penalty: float = PENALTY
) -> float:
    """E(Risk), the mean gravity of a mistake, lower is better; 0 without errors.

    E(Risk) = (1/#errors) Σ_{t≠r} g S[t,r] W[t,r],   g = 1 if t outranks r, else 0.5
    """
    return _value("risk", y_true, y_pred, hierarchy, level, penalty)


def severe_errors(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> int:
    """How many samples were called less urgent than they are."""
    return int(_value("severe_errors", y_true, y_pred, hierarchy, level))


def missed_rate(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Share of all samples that were called less urgent than they are."""
    return _value("missed_rate", y_true, y_pred, hierarchy, level)


def false_alarm_rate(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Share of all samples that were called more urgent than they are."""
    return _value("false_alarm_rate", y_true, y_pred, hierarchy, level)


def least_urgent_recall(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Share of the least urgent samples that are called no more urgent: what leaning towards urgency costs."""
    return _value("least_urgent_recall", y_true, y_pred, hierarchy, level)


def missed_distance(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Mean class distance where urgency is missed; NaN when there are none."""
    counts = reduce.ConfusionCells.of(confusion_matrix(y_true, y_pred, hierarchy, level))
    return float(reduce.mean_where(counts, hierarchy.distance(level).astype(float), hierarchy.outranks(level)))


def false_alarm_distance(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Mean class distance of the false alarms; NaN when there are none."""
    counts = reduce.ConfusionCells.of(confusion_matrix(y_true, y_pred, hierarchy, level))
    return float(reduce.mean_where(counts, hierarchy.distance(level).astype(float), hierarchy.outranks(level).T))
