"""Soft labels (Bertinetto et al. 2020): classes near the true one in the tree get a share of the target.

    L = −Σ_r s[t, r] log p[r],   s[t, r] ∝ exp(−β d(t, r)),   Σ_r s[t, r] = 1

d is the height of the lowest common ancestor over the height of the tree: 0 for the class itself, 1 across the root.
A large β is cross-entropy.

Paper's setting: β = 5 and β = 10, on the finest level.
Deviations: cross-entropy against s, which has the gradient of the original's divergence; averaged over bags. The
original also divides by the number of classes (`divide_by_classes`).
License: written from the equations; the authors' code is CC BY-NC-SA 4.0 and was not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from pams_mil.arrays import Array
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import checked
from pams_mil.methods.method import FinestMethod
from pams_mil.methods.objective import LevelLoss
from pams_mil.parameters import require_number
from pams_mil.severity import lca_cost

DISCOVER = "SoftLabels"


def soft_labels_loss(logits: Tensor, target: Tensor, soft_target: Tensor) -> Tensor:
    """−Σ_r s[t, r] log p[r]; `soft_target` is s, `[true, class]`, rows sum to 1.

    Shapes: logits [b, c], target [b], soft_target [c, c] -> [b]

    >>> import torch
    >>> soft = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    >>> soft_labels_loss(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([1]), soft)  # ln 2
    tensor([0.6931])
    """
    logits, target = checked(logits, target)
    return -(soft_target.to(logits)[target] * logits.log_softmax(-1)).sum(-1)


def soft_target(hierarchy: ClassHierarchy, level: int = -1, *, beta: float = 10.0) -> Array:
    """s, the share of the target that each class gets, `[true, class]`.

    >>> soft_target(ClassHierarchy.load("bracs"), beta=5).round(6)[6, [6, 5, 0]].tolist()
    [0.896238, 0.073568, 0.006039]
    """
    share = np.exp(-beta * lca_cost(hierarchy, level))
    normalized: Array = share / share.sum(axis=1, keepdims=True)
    return normalized


@dataclass(frozen=True, kw_only=True)
class SoftLabels(FinestMethod):
    """Soft labels from the tree.

    Attributes:
        beta: β, how fast the share falls with the distance in the tree.
        divide_by_classes: Divide by the number of classes as the authors' code does.
    """

    beta: float = 10.0
    divide_by_classes: bool = False

    term: ClassVar[str] = "soft_labels"

    def check(self) -> None:
        """Beta is above 0: at 0 all classes would be equally right."""
        require_number("beta", self.beta, above=0)

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level with its soft targets."""
        matrix = soft_target(hierarchy, level, beta=self.beta)
        if self.divide_by_classes:
            matrix = matrix / len(matrix)
        return LevelLoss(soft_labels_loss, num_classes=len(matrix), matrices={"soft_target": matrix})
