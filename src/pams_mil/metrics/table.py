"""The label metrics as data: key, name, direction and how to compute each from confusion matrices.

Reports, comparisons, bootstrap and model selection all read this table, so a metric is described once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import reduce
from pams_mil.severity import PENALTY, metric_weight, symmetric_weight

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MetricFacts:
    """What a metric is called, which direction is good, and what it says in plain words."""

    key: str
    label: str
    higher_is_better: bool
    meaning: str
    percent: bool = True


FACTS = {
    facts.key: facts
    for facts in (
        MetricFacts("acc", "Accuracy", True, "share of cases that are right"),
        MetricFacts("balanced_acc", "Balanced accuracy", True, "mean recall over the classes"),
        MetricFacts("auc", "AUC", True, "one-vs-rest, averaged over the classes"),
        MetricFacts("ascc", "AsCC", True, "classification confidence, missed urgency weighs more"),
        MetricFacts("asmc", "AsMC", True, "how mild the mistakes are, missed urgency weighs more"),
        MetricFacts("ecc", "ECC", True, "classification confidence, both directions alike"),
        MetricFacts("emc", "EMC", True, "how mild the mistakes are, both directions alike"),
        MetricFacts("risk", "E(Risk)", False, "mean gravity of a mistake", percent=False),
        MetricFacts(
            "severe_errors", "Missed urgency, count", False, "cases called less urgent than they are", percent=False
        ),
        MetricFacts("missed_rate", "Missed urgency", False, "share of cases called less urgent than they are"),
        MetricFacts("false_alarm_rate", "False alarms", False, "share of cases called more urgent than they are"),
        MetricFacts(
            "cohen_kappa", "Quadratic kappa", True, "agreement beyond chance, by squared distance", percent=False
        ),
    )
}


@dataclass(frozen=True)
class LabelMetrics:
    """All label metrics of one level, computed together from counts S of shape [..., C, C]."""

    hierarchy: ClassHierarchy
    level: int = -1
    penalty: float = PENALTY

    def __call__(self, S: npt.NDArray[np.generic]) -> dict[str, Array]:
        """Every metric's values over the leading axes of S."""
        W = metric_weight(self.hierarchy, self.level, penalty=self.penalty)
        symmetric = symmetric_weight(self.hierarchy, self.level)
        outranks = self.hierarchy.outranks(self.level)
        severe, over = reduce.count_where(S, outranks), reduce.count_where(S, outranks.T)
        n = reduce.total(S)
        return {
            "acc": reduce.accuracy(S),
            "balanced_acc": reduce.balanced_accuracy(S),
            "ascc": reduce.confidence(S, W),
            "asmc": reduce.mistake_confidence(S, W),
            "ecc": reduce.confidence(S, symmetric),
            "emc": reduce.mistake_confidence(S, symmetric),
            "risk": reduce.mean_risk(S, W, outranks),
            "severe_errors": severe,
            "missed_rate": reduce.divide(severe, n),
            "false_alarm_rate": reduce.divide(over, n),
            "cohen_kappa": reduce.quadratic_kappa(S),
        }


Scorer = Callable[[npt.NDArray[np.generic]], dict[str, Array]]
