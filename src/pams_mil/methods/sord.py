"""SORD: soft ordinal labels (Diaz and Marathe 2019), classes near the true one in order get a share of the target.

    L = −Σ_r s[t, r] log p[r],   s[t, r] = softmax_r(−α |t − r|)

Like soft labels, with the distance in the order of urgency instead of the tree.

Paper's setting: not in the PAMS paper.
Deviations: none; of the original's distances the absolute one is used.
License: written from the equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pams_mil import ops
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.method import FinestMethod
from pams_mil.methods.objective import LevelLoss
from pams_mil.methods.soft_labels import soft_labels_loss
from pams_mil.parameters import require_number

DISCOVER = "Sord"


def sord_loss(logits: Tensor, target: Tensor, *, alpha: float = 1.0) -> Tensor:
    """−Σ_r s[t, r] log p[r] with s[t] = softmax(−α |t − r|).

    Shapes: logits [b, c], target [b] -> [b]

    >>> import torch
    >>> sord_loss(torch.zeros(1, 2), torch.tensor([0]))  # uniform: ln 2 whatever s
    tensor([0.6931])
    """
    logits = ops.at_least_float32(logits)
    share = (-alpha * ops.index_distance(logits.shape[-1], logits)).softmax(-1)
    return soft_labels_loss(logits, target, share)


@dataclass(frozen=True, kw_only=True)
class Sord(FinestMethod):
    """Soft ordinal labels.

    Attributes:
        alpha: α, how fast the share falls with the distance; a large one is cross-entropy.
    """

    alpha: float = 1.0

    term: ClassVar[str] = "sord"

    def check(self) -> None:
        """Alpha is above 0: at 0 all classes would be equally right."""
        require_number("alpha", self.alpha, above=0)

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level."""
        return LevelLoss(sord_loss, num_classes=hierarchy.num_classes(level), alpha=self.alpha)
