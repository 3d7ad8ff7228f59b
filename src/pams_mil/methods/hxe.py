"""HXE: hierarchical cross-entropy (Bertinetto et al. 2020), the surprise at every step from the root to the leaf.

    L = −Σ_h λ_h log p(n_h | n_{h−1}),   λ_h = exp(−α h) / Z

n_h is the true class's ancestor at level h = 1 (coarsest) to H, n_0 the root; p(n) sums the softmax over the leaves
below n. Finer steps weigh less. Z = Σ exp(−α depth) over all nodes of the tree with its root, or 1.

Paper's setting: α = 0.1 and α = 0.5, on the finest level.
Deviations: none in the value. The original fails for a batch of one and skips steps whose probability underflows to
0; computing in log space needs neither.
License: written from the equations; the authors' code is CC BY-NC-SA 4.0 and was not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import checked
from pams_mil.methods.method import FinestMethod
from pams_mil.methods.objective import LevelLoss
from pams_mil.parameters import require_number

DISCOVER = "Hxe"


def hxe_loss(logits: Tensor, target: Tensor, related: Tensor, node_weight: Tensor) -> Tensor:
    """−Σ_h v_h log p(n_h) with v_h = λ_h − λ_{h+1}: the sum over steps, collected by node.

    `related[h, t, r]` says if leaves t and r have the same ancestor at level h; `node_weight` is v, coarsest first.

    Shapes: logits [b, c], target [b], related [H, c, c], node_weight [H] -> [b]

    >>> hierarchy = ClassHierarchy.load("bracs")
    >>> related, node_weight = hxe_matrices(hierarchy, alpha=0.5)
    >>> logits = torch.tensor([[0.10, 0.15, 0.05, 0.20, 0.10, 0.25, 0.15]]).log()
    >>> hxe_loss(logits, torch.tensor([6]), torch.tensor(related), torch.tensor(node_weight))
    tensor([0.1699])
    """
    logits, target = checked(logits, target)
    log_p = logits.log_softmax(-1)
    loss = -node_weight[-1].to(logits) * log_p.gather(-1, target[:, None])[:, 0]
    for kin, weight in zip(related[:-1], node_weight[:-1], strict=True):
        # The true leaf is always among its kin, so the sum is never empty and never log 0.
        log_node = log_p.masked_fill(~kin[target], -torch.inf).logsumexp(-1)
        loss = loss - weight.to(logits) * log_node
    return loss


def hxe_matrices(
    hierarchy: ClassHierarchy, level: int = -1, *, alpha: float = 0.1, normalize: bool = True
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.bool_]], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """`related` and `node_weight` for the tree cut at `level`."""
    levels = range(hierarchy.level(level) + 1)
    ancestor = np.stack([hierarchy.groups(number, of_level=level) for number in levels])
    step = np.exp(-alpha * (np.arange(len(levels)) + 1.0))
    if normalize:
        step /= 1.0 + sum(hierarchy.num_classes(number) * np.exp(-alpha * (number + 1)) for number in levels)
    # log p(n_h) has the factor lambda_h as the end of a step and -lambda_{h+1} as the beginning of the next.
    return ancestor[:, :, None] == ancestor[:, None, :], step - np.append(step[1:], 0.0)


@dataclass(frozen=True, kw_only=True)
class Hxe(FinestMethod):
    """Hierarchical cross-entropy.

    Attributes:
        alpha: α, how fast finer steps lose weight; 0 without normalization is cross-entropy.
        normalize: Divide by Z as the authors' code does.
    """

    alpha: float = 0.1
    normalize: bool = True

    term: ClassVar[str] = "hxe"

    def check(self) -> None:
        """Alpha is not negative."""
        require_number("alpha", self.alpha, at_least=0)

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level, for the tree cut there."""
        related, node_weight = hxe_matrices(hierarchy, level, alpha=self.alpha, normalize=self.normalize)
        matrices = {"related": related, "node_weight": node_weight}
        return LevelLoss(hxe_loss, num_classes=hierarchy.num_classes(level), matrices=matrices)
