"""MSCE: mistake-severity cross-entropy, the loss of PAMS at one level.

    MSCE = −w log p_t,   w = Σ_r p_r M[t, r],   M[t, r] = α |t − r| if t outranks r, else 1

The weight w is the expected severity of what the model would say about a bag of true class t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from pams_mil.arrays import Array
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import checked
from pams_mil.methods.objective import LevelLoss
from pams_mil.parameters import require_choice, require_number
from pams_mil.severity import Distance, Orientation, check_cost, loss_weight

CostMatrix = Sequence[Sequence[float]]


def msce_loss(logits: Tensor, target: Tensor, severity: Tensor, *, detach_weight: bool = False) -> Tensor:
    """−w log p_t with the expected severity w = Σ_r p_r M[t, r].

    `severity` is M, `[true, predicted]`, see `pams_mil.severity.loss_weight`. With `detach_weight` w is taken as a
    constant, and the gradient has the direction of cross-entropy's.

    Shapes: logits [b, c], target [b], severity [c, c] -> [b]

    >>> import torch
    >>> M = torch.tensor(loss_weight(ClassHierarchy.flat(["benign", "atypical", "malignant"])))
    >>> logits = torch.tensor([[0.7, 0.2, 0.1]]).log().expand(3, 3)
    >>> msce_loss(logits, torch.tensor([0, 1, 2]), M)  # w is 1, 1.42 and 2.66
    tensor([0.3567, 2.2854, 6.1249])
    """
    logits, target = checked(logits, target)
    log_p = logits.log_softmax(-1)
    # Written around 1, so that an all-ones matrix is cross-entropy to the last bit.
    weight = 1.0 + (log_p.exp() * (severity.to(logits) - 1.0)[target]).sum(-1)
    if detach_weight:
        weight = weight.detach()
    return -weight * log_p.gather(-1, target[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class Msce:
    """Mistake-severity cross-entropy at one level.

    Attributes:
        alpha: α, how much a missed urgency weighs per class of distance; none for all ones, i.e. cross-entropy.
        distance: "product" for α |t − r|, "power" for α^|t − r|.
        orientation: "intended", or "literal" for the printed index order (ablation only).
        detach_weight: Take w as a constant.
        cost: Any matrix `[true, predicted]` to use as M instead.
    """

    alpha: float | None = 1.6
    distance: Distance = "product"
    orientation: Orientation = "intended"
    detach_weight: bool = False
    cost: CostMatrix | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if self.alpha is not None:
            require_number("alpha", self.alpha, above=1)
        require_choice("distance", self.distance, ("product", "power"))
        require_choice("orientation", self.orientation, ("intended", "literal"))
        if self.cost is not None:
            size = len(self.cost) if hasattr(self.cost, "__len__") else 0
            check_cost(self.cost, size, zero_diagonal=False)

    def severity(self, hierarchy: ClassHierarchy, level: int = -1) -> Array:
        """M at a level."""
        if self.cost is not None:
            return check_cost(self.cost, hierarchy.num_classes(level), zero_diagonal=False)
        if self.alpha is None:
            return np.ones((hierarchy.num_classes(level),) * 2)
        return loss_weight(hierarchy, level, alpha=self.alpha, distance=self.distance, orientation=self.orientation)

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level with its severity matrix."""
        severity = self.severity(hierarchy, level)
        matrices = {"severity": severity}
        return LevelLoss(msce_loss, num_classes=len(severity), matrices=matrices, detach_weight=self.detach_weight)
