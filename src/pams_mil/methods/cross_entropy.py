"""Cross-entropy, plain, weighted by class, and on features split by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from pams_mil.arrays import AnyArray, Array
from pams_mil.errors import ParameterError, require_number
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.findings_loss import FindingsTerm
from pams_mil.methods.method import Heads, HierarchyLoss, LevelMethod, Towers
from pams_mil.methods.objective import LossFunction, checked

DISCOVER = {"ce": "CrossEntropy", "weighted_ce": "WeightedCrossEntropy", "chang": "Chang"}


def ce_loss(logits: Tensor, target: Tensor) -> Tensor:
    """−log p_t, the cross-entropy of every sample.

    Shapes: logits [b, c], target [b] -> [b]

    >>> import torch
    >>> ce_loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
    tensor([0.3567])
    """
    logits, target = checked(logits, target)
    return nn.functional.cross_entropy(logits, target, reduction="none")


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(LevelMethod):
    """Cross-entropy: every mistake weighs the same.

        L = Σ_h −log p_h[t]

    p_h is the softmax at level h and t the true class there. The reference that every other method is compared with.

    Paper's setting: one model per level.
    Deviations: none.
    License: written from the equation.
    """

    function: ClassVar[LossFunction] = staticmethod(ce_loss)

    def findings_term(self, hierarchy: ClassHierarchy) -> FindingsTerm:
        """Binary cross-entropy of every finding."""
        return FindingsTerm(hierarchy)


CELoss = HierarchyLoss.of(CrossEntropy, "CELoss")


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
    """Weighted cross-entropy: mistakes on some true classes weigh more, whatever was predicted instead.

        L = Σ_h −w_h[t] log p_h[t],   mean over classes of w_h = 1

    The weights are scaled by a constant. Dividing by the weights in the batch, as PyTorch's reduction does, would
    cancel them exactly when a step sees one bag.

    Paper's setting: ratios 2:3:5 and 1:2:7 on three coarse classes, inherited by their children; 1 to 10 in order of
    urgency for CIFAR-10.
    Deviations: the constant scale above; the paper does not name one.
    License: written from the equation.

    Attributes:
        weights: w, one number per class of the coarsest level, inherited by the classes below; or "priority" for
            1, 2, 3, ... in order of urgency at every level, equal for tied classes.
    """

    weights: Sequence[float] | Literal["priority"] = field(default="priority", hash=False)

    function: ClassVar[LossFunction] = staticmethod(weighted_ce_loss)

    def check(self) -> None:
        """Weights are positive numbers, or "priority"."""
        if self.weights == "priority":
            return
        if not isinstance(self.weights, (list, tuple)) or not self.weights:
            raise ParameterError(f"weights must be 'priority' or a list of numbers above 0, found {self.weights!r}.")
        for position, weight in enumerate(self.weights):
            require_number(f"weights[{position}]", weight, above=0)
        object.__setattr__(self, "weights", tuple(self.weights))

    def class_weight(self, hierarchy: ClassHierarchy, level: int = -1) -> Array:
        """Weights at a level, scaled to a mean of 1."""
        if self.weights == "priority":
            weight = hierarchy.ranks(level) + 1.0
        elif len(self.weights) != hierarchy.num_classes(0):
            raise ParameterError(
                f"weights must hold one number per class of the coarsest level of {hierarchy.name!r}, "
                f"{hierarchy.num_classes(0)}, found {len(self.weights)}."
            )
        else:
            weight = np.asarray(self.weights, dtype=np.float64)[hierarchy.groups(0, of_level=level)]
        scaled: Array = weight / weight.mean()
        return scaled

    def matrices(self, hierarchy: ClassHierarchy, level: int) -> dict[str, AnyArray]:
        """The class weights."""
        return {"class_weight": self.class_weight(hierarchy, level)}


WeightedCELoss = HierarchyLoss.of(WeightedCrossEntropy, "WeightedCELoss")


@dataclass(frozen=True, kw_only=True)
class Chang(CrossEntropy):
    """Chang et al. 2021: finer levels help coarser ones, but coarser ones must not disturb finer ones.

        L = Σ_h −log p_h[t],   logits_h = W_h [x_h, sg(x_{h+1}), ..., sg(x_H)]

    One bag feature is cut into a slice per level, x_1 (coarse) to x_H (fine). A level's head sees its own slice and,
    behind a stop-gradient sg, the slices of all finer levels; the finest head sees its own slice only.

    Paper's setting: equal weights for all levels. With one level there is one slice, and this is cross-entropy.
    Deviations: the feature goes through Linear, LayerNorm and ELU; the original's BatchNorm cannot work with one bag.
    License: written from the equations; the authors' code (MIT license) was not used.
    """

    towers: Towers = "shared"

    heads: ClassVar[Heads] = "split"
    allowed_towers: ClassVar[tuple[Towers, ...]] = ("shared",)
