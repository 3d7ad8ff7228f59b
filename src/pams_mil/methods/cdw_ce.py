"""CDW-CE: class-distance-weighted cross-entropy (Polat et al. 2022, 2025) for ordered classes.

    L = −Σ_r |t − r|^α log(1 − p_r)

Probability is punished where it should not be, more so the farther from the true class t, in both directions alike.

Paper's setting: α is not stated; 2 is the authors' default, 1 and 1.5 are worth trying. With seven or more classes
large values let the farthest class dominate.
Deviations: log(1 − p) is taken in log space, so no clamp silences a confident mistake.
License: written from the equation; the authors' code (MIT license) was not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pams_mil import ops
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import checked
from pams_mil.methods.method import FinestMethod
from pams_mil.methods.objective import LevelLoss
from pams_mil.parameters import require_number

DISCOVER = "CdwCe"


def cdw_ce_loss(logits: Tensor, target: Tensor, *, alpha: float = 2.0) -> Tensor:
    """−Σ_r |t − r|^α log(1 − p_r).

    Shapes: logits [b, c], target [b] -> [b]

    >>> import torch
    >>> cdw_ce_loss(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([0]))  # (1 + 4) ln(4/3)
    tensor([1.4384])
    """
    logits, target = checked(logits, target)
    if logits.shape[1] == 1:  # a single class cannot be missed
        return 0.0 * logits[:, 0]
    weight = ops.index_distance(logits.shape[1], logits) ** alpha
    return -(weight[target] * ops.log_complement(logits.log_softmax(-1))).sum(-1)


@dataclass(frozen=True, kw_only=True)
class CdwCe(FinestMethod):
    """Class-distance-weighted cross-entropy.

    Attributes:
        alpha: α, the power of the distance.
    """

    alpha: float = 2.0

    term: ClassVar[str] = "cdw_ce"

    def check(self) -> None:
        """Alpha is above 0."""
        require_number("alpha", self.alpha, above=0)

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level."""
        return LevelLoss(cdw_ce_loss, num_classes=hierarchy.num_classes(level), alpha=self.alpha)
