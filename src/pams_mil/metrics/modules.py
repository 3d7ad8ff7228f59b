"""The severity metrics as torchmetrics classes: `update(preds, target)`, predictions first.

The whole state of each is the confusion matrix, summed over batches and processes, so they share one state in a
`MetricCollection`, merge exactly, and never average over batches.

>>> import torch
>>> from pams_mil import ClassHierarchy
>>> metric = AsymmetricClassificationConfidence(ClassHierarchy.flat(["benign", "malignant"]))
>>> metric.update(preds=torch.tensor([1, 0]), target=torch.tensor([1, 1]))
>>> metric.compute()
tensor(0.6250)
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS, LabelMetrics
from pams_mil.severity import PENALTY


class SeverityMetric(Metric):
    """A label metric of one hierarchy level, named by its `key` in `metrics.metric`."""

    key: ClassVar[str]
    is_differentiable = False
    full_state_update = False
    confusion: Tensor

    def __init_subclass__(cls, *, key: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.key, cls.higher_is_better = key, METRICS[key].higher_is_better

    def __init__(self, hierarchy: ClassHierarchy, level: int = -1, *, penalty: float = PENALTY, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = hierarchy.num_classes(level)
        self._score = LabelMetrics(hierarchy, level, penalty)
        empty = torch.zeros(self.num_classes, self.num_classes, dtype=torch.long)
        self.add_state("confusion", default=empty, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch: class indices [n] or scores [n, C] as `preds`, class indices [n] as `target`."""
        labels = self._labels(preds) if preds.ndim == target.ndim + 1 else preds
        if labels.shape != target.shape:
            raise ParameterError(f"preds {tuple(preds.shape)} and target {tuple(target.shape)} do not belong together.")
        for name, values in (("preds", labels), ("target", target)):
            if values.is_floating_point() or values.is_complex():
                raise ParameterError(f"{name} must hold class indices, found {values.dtype}; scores need a class axis.")
            if values.numel() and (values.min() < 0 or values.max() >= self.num_classes):
                raise ParameterError(f"{name} must hold classes from 0 to {self.num_classes - 1}.")
        labels, target = labels.flatten().long(), target.flatten().long()
        cells = torch.bincount(target * self.num_classes + labels, minlength=self.num_classes**2)
        self.confusion += cells.reshape(self.num_classes, self.num_classes)

    def _labels(self, scores: Tensor) -> Tensor:
        if scores.shape[-1] != self.num_classes:
            raise ParameterError(f"preds must have {self.num_classes} scores per sample, found {scores.shape[-1]}.")
        if scores.isnan().any():
            raise ParameterError("preds hold NaN scores, which have no most likely class.")
        return scores.argmax(-1)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the current value, or the given values, with matplotlib."""
        return self._plot(val, ax)

    def compute(self) -> Tensor:
        """The metric of everything counted so far."""
        value = self._score(self.confusion.cpu().numpy())[self.key]
        return torch.as_tensor(value, dtype=torch.get_default_dtype(), device=self.confusion.device)


class AsymmetricClassificationConfidence(SeverityMetric, key="ascc"):
    """AsCC: share of correct samples plus partial credit that is smaller for missed urgency."""


class AsymmetricMisclassificationConfidence(SeverityMetric, key="asmc"):
    """AsMC: how mild the mistakes are; +inf when there are none."""


class ClassificationConfidence(SeverityMetric, key="ecc"):
    """ECC: AsCC without the penalty for missed urgency."""


class MisclassificationConfidence(SeverityMetric, key="emc"):
    """EMC: AsMC without the penalty for missed urgency."""


class ExpectedRisk(SeverityMetric, key="risk"):
    """E(Risk): mean gravity of a mistake; 0 when there are none."""


class SevereErrors(SeverityMetric, key="severe_errors"):
    """How many samples were called less urgent than they are."""


class MissedRate(SeverityMetric, key="missed_rate"):
    """Share of samples that were called less urgent than they are."""


class FalseAlarmRate(SeverityMetric, key="false_alarm_rate"):
    """Share of samples that were called more urgent than they are."""
