"""Alignment: neighboring levels should tell the same story.

    L_HA = Σ_{h<H} JS(p_h, ṗ_{h+1}),   ṗ_{h+1}[g] = Σ_{c in g} p_{h+1}[c]

The fine level's probabilities are summed into the coarse classes and compared with the coarse level's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn

from pams_mil import ops
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.objective import mean_per_bag
from pams_mil.parameters import require_choice

if TYPE_CHECKING:
    from pams_mil.models.core.mil_model import LevelOutput

Detach = Literal["none", "fine", "coarse"]
DETACH: tuple[Detach, ...] = ("none", "fine", "coarse")


def alignment_loss(
    coarse_logits: Tensor, fine_logits: Tensor, sizes: Sequence[int], *, detach: Detach = "none"
) -> Tensor:
    """JS between the coarse level's probabilities and the fine level's, summed into the coarse classes.

    Shapes: coarse_logits [b, g], fine_logits [b, c] -> [b]

    Args:
        coarse_logits: Scores of the coarse classes.
        fine_logits: Scores of the fine classes, listed group by group.
        sizes: How many fine classes each coarse class has, see `child_counts`.
        detach: The side that receives no gradient.

    >>> coarse, fine = torch.tensor([[0.3, 0.7]]), torch.tensor([[0.1, 0.2, 0.7]])
    >>> round(alignment_loss(coarse.log(), fine.log(), [2, 1]).item(), 6)
    0.0
    """
    require_choice("detach", detach, DETACH)
    if coarse_logits.shape[-1] != len(sizes) or fine_logits.shape[-1] != sum(sizes):
        raise ParameterError(
            f"sizes must name {coarse_logits.shape[-1]} groups of {fine_logits.shape[-1]} classes, found {list(sizes)}."
        )
    coarse = ops.at_least_float32(coarse_logits).log_softmax(-1)
    fine = ops.group_log_softmax(ops.at_least_float32(fine_logits), sizes)
    if detach == "coarse":
        coarse = coarse.detach()
    elif detach == "fine":
        fine = fine.detach()
    return ops.js_divergence(coarse, fine)


def child_counts(hierarchy: ClassHierarchy, level: int) -> tuple[int, ...]:
    """How many classes of the next finer level each class of `level` has.

    >>> child_counts(ClassHierarchy.load("bracs"), 0)
    (3, 2, 2)
    """
    return tuple(int(count) for count in np.bincount(hierarchy.parents(hierarchy.level(level) + 1)))


class AlignmentTerm(nn.Module):
    """Sum of the alignment losses of all neighboring levels; needs an output per level."""

    def __init__(self, hierarchy: ClassHierarchy, *, detach: Detach = "none", tier1: bool = False) -> None:
        super().__init__()
        self.sizes = [child_counts(hierarchy, level) for level in range(hierarchy.num_levels - 1)]
        self.detach: Detach = detach
        self.tier1 = tier1

    def forward(
        self, outputs: Sequence[LevelOutput], targets: Sequence[Tensor], weights: Tensor | None = None
    ) -> Tensor:
        """[b], one value per bag; the targets are not used."""
        pairs = zip(outputs[:-1], outputs[1:], self.sizes, strict=True)
        return torch.stack([self._pair(coarse, fine, sizes) for coarse, fine, sizes in pairs]).sum(0)

    def _pair(self, coarse: LevelOutput, fine: LevelOutput, sizes: Sequence[int]) -> Tensor:
        values = alignment_loss(coarse.logits, fine.logits, sizes, detach=self.detach)
        if not self.tier1 or coarse.tier1_logits is None or fine.tier1_logits is None or fine.tier1_bag is None:
            return values
        if coarse.tier1_bag is None or not torch.equal(coarse.tier1_bag, fine.tier1_bag):
            raise ParameterError("Aligning pseudo-bags needs the same split into pseudo-bags at every level.")
        tier1 = alignment_loss(coarse.tier1_logits, fine.tier1_logits, sizes, detach=self.detach)
        return values + mean_per_bag(tier1, fine.tier1_bag, len(values))
