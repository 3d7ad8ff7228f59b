"""OCE: ordinal cross-entropy with an asymmetric cost matrix (Dvora, Haba and Singer 2026, arXiv 2606.25769).

    L = −C[t, t] log p_t − Σ_{r≠t} C[t, r] log(1 − p_r),   C[t, r] = |t − r|, times m if t outranks r;   C[t, t] = 1

Cross-entropy of the true class, and of every other class the log-probability that it is not called, weighed by what the
mistake costs. C = 1 on the diagonal and 0 elsewhere is cross-entropy.

Paper's setting: matrices written by hand for five grades, whose numbers are in no source that could be read; m = 2 and
the steps between classes are ours, `costs` takes your own matrix.
Deviations: log(1 − p) is taken in log space, where the authors add 1e-7 to its argument, which ends the gradient of a
confident mistake.
License: written from the equation; the authors' code (no license) was read for the equation only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from torch import Tensor

from pams_mil import ops
from pams_mil.arrays import Array
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import CostMatrix, check_costs, checked, level_cost
from pams_mil.methods.method import FinestMethod
from pams_mil.methods.objective import LevelLoss
from pams_mil.parameters import require_number

DISCOVER = "Oce"


def oce_loss(logits: Tensor, target: Tensor, cost: Tensor) -> Tensor:
    """−C[t, t] log p_t − Σ_{r≠t} C[t, r] log(1 − p_r) for a cost matrix C `[true, predicted]`.

    Shapes: logits [b, c], target [b], cost [c, c] -> [b]

    >>> import torch
    >>> cost = torch.tensor([[1.0, 1.0, 2.0], [2.0, 1.0, 1.0], [4.0, 2.0, 1.0]])
    >>> oce_loss(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([0]), cost)  # ln 2 + (1 + 2) ln(4/3)
    tensor([1.5562])
    """
    logits, target = checked(logits, target)
    log_p, weight = logits.log_softmax(-1), cost.to(logits)[target]
    own = target[:, None]
    called = -(weight.gather(-1, own) * log_p.gather(-1, own))[:, 0]
    if logits.shape[1] == 1:  # a single class cannot be missed
        return called
    return called - (weight.scatter(-1, own, 0.0) * ops.log_complement(log_p)).sum(-1)


@dataclass(frozen=True, kw_only=True)
class Oce(FinestMethod):
    """Ordinal cross-entropy with a cost matrix.

    Attributes:
        miss: m, how much more a step of missed urgency costs than a step of false alarm; 1 is symmetric.
        costs: Matrices `[true, predicted]` to use as C instead, one per level, coarsest first; none keeps C.
    """

    miss: float = 2.0
    costs: Sequence[CostMatrix | None] | None = field(default=None, hash=False)

    term: ClassVar[str] = "oce"

    def check(self) -> None:
        """The factor is above 0, costs are matrices."""
        require_number("miss", self.miss, above=0)
        check_costs(self.costs)

    def cost(self, hierarchy: ClassHierarchy, level: int = -1) -> Array:
        """C at a level."""
        own = level_cost(self.costs, hierarchy, level)
        if own is not None:
            return own
        steps = hierarchy.distance(level) * np.where(hierarchy.outranks(level), self.miss, 1.0)
        matrix: Array = steps + np.eye(len(steps))
        return matrix

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level with its cost matrix."""
        cost = self.cost(hierarchy, level)
        return LevelLoss(oce_loss, num_classes=len(cost), matrices={"cost": cost})
