"""The losses as PyTorch modules, for training loops without bags: `MSCELoss(hierarchy)(logits, target)`.

Each takes `(hierarchy, level=-1, reduction="mean")` and the hyper-parameters of its method; the maths is the pure
function in the method's own file.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from torch import Tensor, nn

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.cdw_ce import CdwCe
from pams_mil.methods.ce import CrossEntropy
from pams_mil.methods.co2 import Co2
from pams_mil.methods.corn import Corn
from pams_mil.methods.emd import Emd
from pams_mil.methods.hxe import Hxe
from pams_mil.methods.method import Method
from pams_mil.methods.msce import Msce
from pams_mil.methods.objective import LevelLoss
from pams_mil.methods.soft_labels import SoftLabels
from pams_mil.methods.sord import Sord
from pams_mil.methods.weighted_ce import WeightedCrossEntropy
from pams_mil.parameters import refuse_unknown, require_choice

_REDUCTIONS = ("mean", "sum", "none")
_NOT_FOR_LOSSES = {field.name for field in fields(Method)}


class HierarchyLoss(nn.Module):
    """A loss on logits at one level of a hierarchy.

    Args:
        hierarchy: Names, order and tree of the classes.
        level: 0 is the coarsest level, -1 the finest.
        reduction: "mean" or "sum" over samples, or "none".
        **parameters: Hyper-parameters of the method.
    """

    recipe: ClassVar[type[Any]]

    def __init__(self, hierarchy: ClassHierarchy, level: int = -1, reduction: str = "mean", **parameters: Any) -> None:
        super().__init__()
        require_choice("reduction", reduction, _REDUCTIONS)
        known = [field.name for field in fields(self.recipe) if field.name not in _NOT_FOR_LOSSES]
        own = ["level", "reduction", *known]
        refuse_unknown(type(self).__name__, parameters, own, kind="parameter", error=ParameterError)
        self.reduction = reduction
        self.loss: LevelLoss = self.recipe(**parameters).level_loss(hierarchy, hierarchy.level(level))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Logits [b, c] and class indices [b] to a scalar, or [b] without reduction."""
        values: Tensor = self.loss(logits, target)
        if self.reduction == "none":
            return values
        return values.mean() if self.reduction == "mean" else values.sum()


class MSCELoss(HierarchyLoss):
    """Mistake-severity cross-entropy, see `pams_mil.methods.msce`.

    >>> import torch
    >>> loss = MSCELoss(ClassHierarchy.flat(["benign", "atypical", "malignant"]))
    >>> loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([2]))
    tensor(6.1249)
    """

    recipe = Msce


class CELoss(HierarchyLoss):
    """Cross-entropy, see `pams_mil.methods.ce`."""

    recipe = CrossEntropy


class WeightedCELoss(HierarchyLoss):
    """Weighted cross-entropy, see `pams_mil.methods.weighted_ce`."""

    recipe = WeightedCrossEntropy


class HXELoss(HierarchyLoss):
    """Hierarchical cross-entropy, see `pams_mil.methods.hxe`."""

    recipe = Hxe


class SoftLabelsLoss(HierarchyLoss):
    """Soft labels from the tree, see `pams_mil.methods.soft_labels`."""

    recipe = SoftLabels


class CDWCELoss(HierarchyLoss):
    """Class-distance-weighted cross-entropy, see `pams_mil.methods.cdw_ce`."""

    recipe = CdwCe


class CO2Loss(HierarchyLoss):
    """Cross-entropy with ordinal margins, see `pams_mil.methods.co2`."""

    recipe = Co2


class EMDLoss(HierarchyLoss):
    """Squared earth mover's distance, see `pams_mil.methods.emd`."""

    recipe = Emd


class SORDLoss(HierarchyLoss):
    """Soft ordinal labels, see `pams_mil.methods.sord`."""

    recipe = Sord


class CORNLoss(HierarchyLoss):
    """Conditional ordinal regression, see `pams_mil.methods.corn`."""

    recipe = Corn
