"""The losses as PyTorch modules, for training loops without bags: `MSCELoss(hierarchy)(logits, target)`.

Each takes `(hierarchy, level=-1, reduction="mean")` and the hyper-parameters of its method; the maths is the pure
function in the method's own file. `HierarchyLoss.of(YourMethod)` makes one of your own method.
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
from pams_mil.methods.method import LevelMethod, Method
from pams_mil.methods.msce import Msce
from pams_mil.methods.objective import LevelLoss
from pams_mil.methods.oce import Oce
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

    method: ClassVar[type[LevelMethod]]

    def __init__(self, hierarchy: ClassHierarchy, level: int = -1, reduction: str = "mean", **parameters: Any) -> None:
        super().__init__()
        require_choice("reduction", reduction, _REDUCTIONS)
        known = [field.name for field in fields(self.method) if field.name not in _NOT_FOR_LOSSES]
        own = ["level", "reduction", *known]
        refuse_unknown(type(self).__name__, parameters, own, kind="parameter", error=ParameterError)
        self.reduction = reduction
        self.loss: LevelLoss = self.method(**parameters).level_loss(hierarchy, hierarchy.level(level))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Logits [b, c] and class indices [b] to a scalar, or [b] without reduction."""
        values: Tensor = self.loss(logits, target)
        if self.reduction == "none":
            return values
        return values.mean() if self.reduction == "mean" else values.sum()

    @classmethod
    def of(cls, method: type[LevelMethod], name: str | None = None) -> type[HierarchyLoss]:
        """The class of the loss of a method.

        >>> import torch
        >>> loss = MSCELoss(ClassHierarchy.flat(["benign", "atypical", "malignant"]))
        >>> loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([2]))
        tensor(6.1249)
        """
        text = f"The loss of the method `{method.__module__}`; arguments as `HierarchyLoss`."
        members = {"method": method, "__doc__": text, "__module__": cls.__module__}
        return type(name or f"{method.__name__}Loss", (cls,), members)


CELoss = HierarchyLoss.of(CrossEntropy, "CELoss")
WeightedCELoss = HierarchyLoss.of(WeightedCrossEntropy, "WeightedCELoss")
MSCELoss = HierarchyLoss.of(Msce, "MSCELoss")
HXELoss = HierarchyLoss.of(Hxe, "HXELoss")
SoftLabelsLoss = HierarchyLoss.of(SoftLabels, "SoftLabelsLoss")
CDWCELoss = HierarchyLoss.of(CdwCe, "CDWCELoss")
CO2Loss = HierarchyLoss.of(Co2, "CO2Loss")
OCELoss = HierarchyLoss.of(Oce, "OCELoss")
EMDLoss = HierarchyLoss.of(Emd, "EMDLoss")
SORDLoss = HierarchyLoss.of(Sord, "SORDLoss")
CORNLoss = HierarchyLoss.of(Corn, "CORNLoss")
