"""The margin between bags of unlike classes, with a memory of past bags so that one bag per step suffices.

    value of a bag = mean over its pairs (p, q) of unlike classes of ½ [relu(μ − KL(p ‖ m)) + relu(μ − KL(q ‖ m))]

Bags stand in a row: the batch, then the remembered bags, newest first. Each bag is paired with the next bags in the
row, about `memory` pairs in total and at least one per bag. So a lone bag meets the whole memory, and a large batch
costs no more than itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pams_mil import ops
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import checked

if TYPE_CHECKING:
    from pams_mil.models.core.mil_model import LevelOutput

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
