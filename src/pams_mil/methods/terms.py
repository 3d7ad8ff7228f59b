"""Terms between levels and between bags: alignment and margin.

Alignment: neighboring levels should tell the same story.

    L_HA = Σ_{h<H} JS(p_h, ṗ_{h+1}),   ṗ_{h+1}[g] = Σ_{c in g} p_{h+1}[c]

The fine level's probabilities are summed into the coarse classes and compared with the coarse level's own.

Margin: bags of unlike classes are pushed apart, with a memory of past bags so that one bag per step suffices.

    value of a bag = mean over its pairs (p, q) of unlike classes of ½ [relu(μ − KL(p ‖ m)) + relu(μ − KL(q ‖ m))]

Bags stand in a row: the batch, then the remembered bags, newest first. Each bag is paired with the next bags in the
row, about `memory` pairs in total and at least one per bag. So a lone bag meets the whole memory, and a large batch
costs no more than itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn

from pams_mil import ops
from pams_mil.errors import ParameterError, require_choice
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.objective import checked, mean_per_bag

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


_EMPTY = -1


def margin_values(log_p: Tensor, target: Tensor, row_log_p: Tensor, row_target: Tensor, *, margin: float) -> Tensor:
    """½ [relu(μ − KL(p ‖ m)) + relu(μ − KL(q ‖ m))] averaged over each bag's pairs of unlike classes, 0 without any.

    Shapes: log_p [b, c], target [b], row_log_p [b, k, c], row_target [b, k] (-1: nobody) -> [b]

    >>> p, q = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    >>> margin_values(p.log(), torch.tensor([0]), q.log(), torch.tensor([[1, 0]]), margin=3.0)  # 3 - ln 2
    tensor([2.3069])
    """
    unlike = (row_target != target[:, None]) & (row_target != _EMPTY)
    from_p, from_q = ops.divergences_to_mean(log_p[:, None], row_log_p)
    hinge = 0.5 * (torch.relu(margin - from_p) + torch.relu(margin - from_q))
    return (hinge * unlike).sum(-1) / unlike.sum(-1).clamp_min(1)


class LevelMargin(nn.Module):
    """The margin at one level; remembers bags in training mode, as buffers that belong to the state."""

    memory_log_p: Tensor
    memory_target: Tensor

    def __init__(self, num_classes: int, *, margin: float, memory: int) -> None:
        super().__init__()
        self.margin = margin
        self.register_buffer("memory_log_p", torch.zeros(memory, num_classes))
        self.register_buffer("memory_target", torch.full((memory,), _EMPTY))

    def forward(self, logits: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """[b], one value per bag; only bags whose label weighs more than half are remembered."""
        logits, target = checked(logits, target)
        log_p = logits.log_softmax(-1)
        # Read before this batch is written to it, so no bag meets its own memory.
        remembered_log_p, remembered_target = self.memory_log_p.to(log_p.dtype), self.memory_target
        row_log_p, row_target = torch.cat([log_p, remembered_log_p]), torch.cat([target, remembered_target])
        batch, memory = len(target), len(remembered_target)
        # The next ones in the row; the last bag's reach at most to the end, b - 1 + memory // b < b + memory.
        step = torch.arange(1, max(1, memory // batch) + 1, device=target.device)
        partner = torch.arange(batch, device=target.device)[:, None] + step
        if self.training:
            # A bag with two labels comes in two calls; at most one of its labels weighs more than half.
            known = torch.ones_like(target, dtype=torch.bool) if weights is None else weights > 0.5
            # New in front, so that the oldest fall off.
            remembered = torch.cat([log_p.detach()[known], remembered_log_p])[:memory]
            self.memory_log_p = remembered.to(self.memory_log_p.dtype)
            self.memory_target = torch.cat([target[known], remembered_target])[:memory]
        return margin_values(log_p, target, row_log_p[partner], row_target[partner], margin=self.margin)


class MarginTerm(nn.Module):
    """Sum of the margins of all levels but the finest."""

    def __init__(self, hierarchy: ClassHierarchy, *, margin: float, memory: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            LevelMargin(hierarchy.num_classes(level), margin=margin, memory=memory)
            for level in range(hierarchy.num_levels - 1)
        )

    def forward(
        self, outputs: Sequence[LevelOutput], targets: Sequence[Tensor], weights: Tensor | None = None
    ) -> Tensor:
        """[b], one value per bag; a bag with several labels is remembered by the one that weighs more than half."""
        pairs = zip(self.levels, outputs[:-1], targets[:-1], strict=True)
        return torch.stack([level(output.logits, target, weights) for level, output, target in pairs]).sum(0)
