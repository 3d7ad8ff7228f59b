"""Weighted cross-entropy: mistakes on some true classes weigh more, whatever was predicted instead.

    L = Σ_h −w_h[t] log p_h[t],   mean over classes of w_h = 1

The weights are scaled by a constant. Dividing by the weights in the batch, as PyTorch's reduction does, would cancel
them exactly when a step sees one bag.

Paper's setting: ratios 2:3:5 and 1:2:7 on three coarse classes, inherited by their children; 1 to 10 in order of
urgency for CIFAR-10.
Deviations: the constant scale above; the paper does not name one.
License: written from the equation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import checked
from pams_mil.methods.method import LevelMethod
from pams_mil.methods.objective import LevelLoss
from pams_mil.parameters import require_number

DISCOVER = "WeightedCrossEntropy"


def weighted_ce_loss(logits: Tensor, target: Tensor, class_weight: Tensor) -> Tensor:
    """−w_t log p_t for class weights w.

    Shapes: logits [b, c], target [b], class_weight [c] -> [b]

    >>> import torch
    >>> logits = torch.tensor([[0.7, 0.2, 0.1]]).log()
    >>> weighted_ce_loss(logits, torch.tensor([0]), torch.tensor([0.5, 1.0, 1.5]))  # half of 0.3567
    tensor([0.1783])
    """
    logits, target = checked(logits, target)
    return class_weight.to(logits)[target] * nn.functional.cross_entropy(logits, target, reduction="none")


@dataclass(frozen=True, kw_only=True)
class WeightedCrossEntropy(LevelMethod):
    """Cross-entropy with class weights.

    Attributes:
        weights: w, one number per class of the coarsest level, inherited by the classes below; or "priority" for
            1, 2, 3, ... in order of urgency at every level, equal for tied classes.
    """

    weights: Sequence[float] | Literal["priority"] = field(default="priority", hash=False)

    term: ClassVar[str] = "weighted_ce"

    def check(self) -> None:
        """Weights are positive numbers, or "priority"."""
        if self.weights == "priority":
            return
        if not isinstance(self.weights, (list, tuple)) or not self.weights:
            raise ParameterError(f"weights must be 'priority' or a list of numbers above 0, found {self.weights!r}.")
        for position, weight in enumerate(self.weights):
            require_number(f"weights[{position}]", weight, above=0)
        object.__setattr__(self, "weights", tuple(self.weights))

    def class_weight(self, hierarchy: ClassHierarchy, level: int = -1) -> npt.NDArray[np.float64]:
        """Weights at a level, scaled to a mean of 1."""
        if self.weights == "priority":
            weight = np.unique(hierarchy.ranks(level), return_inverse=True)[1] + 1.0
        elif len(self.weights) != hierarchy.num_classes(0):
            raise ParameterError(
                f"weights must hold one number per class of the coarsest level of {hierarchy.name!r}, "
                f"{hierarchy.num_classes(0)}, found {len(self.weights)}."
            )
        else:
            weight = np.asarray(self.weights, dtype=np.float64)[hierarchy.groups(0, of_level=level)]
        scaled: npt.NDArray[np.float64] = weight / weight.mean()
        return scaled

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level with its class weights."""
        weight = self.class_weight(hierarchy, level)
        return LevelLoss(weighted_ce_loss, num_classes=len(weight), matrices={"class_weight": weight})
