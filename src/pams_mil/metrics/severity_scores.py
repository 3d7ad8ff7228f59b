"""The paper's severity metrics on labels: AsCC, AsMC and their symmetric forms, risk, and missed urgency.

Urgency is *missed* (a severe error, an under-call) when the true class strictly outranks the predicted one; it is a
*false alarm* (an over-call) when it is the other way round; a mistake between tied classes is neither.
"""

from __future__ import annotations

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import reduce
from pams_mil.metrics.confusion import Labels, confusion_matrix
from pams_mil.severity import PENALTY, metric_weight, symmetric_weight


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
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return float(reduce.confidence(counts, metric_weight(hierarchy, level, penalty=penalty)))


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
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return float(reduce.mistake_confidence(counts, metric_weight(hierarchy, level, penalty=penalty)))


def ecc(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Classification confidence on the symmetric wheel: AsCC with P = 0."""
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return float(reduce.confidence(counts, symmetric_weight(hierarchy, level)))


def emc(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Misclassification confidence on the symmetric wheel: AsMC with P = 0."""
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return float(reduce.mistake_confidence(counts, symmetric_weight(hierarchy, level)))


def risk(
    y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1, *, penalty: float = PENALTY
) -> float:
    """E(Risk), the mean gravity of a mistake, lower is better; 0 without errors.

    E(Risk) = (1/#errors) Σ_{t≠r} g S[t,r] W[t,r],   g = 1 if t outranks r, else 0.5
    """
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    W = metric_weight(hierarchy, level, penalty=penalty)
    return float(reduce.mean_risk(counts, W, hierarchy.outranks(level)))


def severe_errors(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> int:
    """How many samples were called less urgent than they are."""
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return int(reduce.count_where(counts, hierarchy.outranks(level)))


def missed_rate(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Share of all samples that were called less urgent than they are."""
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return float(reduce.divide(reduce.count_where(counts, hierarchy.outranks(level)), reduce.total(counts)))


def false_alarm_rate(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Share of all samples that were called more urgent than they are."""
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return float(reduce.divide(reduce.count_where(counts, hierarchy.outranks(level).T), reduce.total(counts)))


def missed_distance(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Mean class distance where urgency is missed; NaN when there are none."""
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return float(reduce.mean_where(counts, hierarchy.distance(level).astype(float), hierarchy.outranks(level)))


def false_alarm_distance(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Mean class distance of the false alarms; NaN when there are none."""
    counts = confusion_matrix(y_true, y_pred, hierarchy, level)
    return float(reduce.mean_where(counts, hierarchy.distance(level).astype(float), hierarchy.outranks(level).T))
