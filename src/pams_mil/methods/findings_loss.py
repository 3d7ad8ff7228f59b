"""Several findings per slide: a severity-aware loss per finding, and consistency with the most urgent one.

With one logit z_k per finding, p_k = σ(z_k), y_k = 1 where finding k is present, and m_k = w_k α d_k the cost of
missing it, d_k its distance from "nothing" and w_k its weight in the class file (1 unless given):

    L = −Σ_k [ y_k (p_k + (1 − p_k) m_k) ln p_k + (1 − y_k) ln(1 − p_k) ]

the two-class MSCE of every finding (`msce_loss` on the logits (0, z_k) with M = [[1, 1], [m_k, 1]]); with all m_k = 1
it is binary cross-entropy.

The head that calls the most urgent finding says q_ρ = P(rank ≥ ρ) at every boundary of urgency: that some finding of at
least rank ρ is present. Whatever the dependence between findings, that probability lies between Fréchet's bounds,

    max_{k: rank_k ≥ ρ} p_k  ≤  q_ρ  ≤  min(1, Σ_{k: rank_k ≥ ρ} p_k)

The alignment loss is the Jensen-Shannon divergence between q_ρ and the nearest point of that interval, 0 inside it; no
independence is assumed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from pams_mil import ops
from pams_mil.arrays import Array
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy

_LEAST = 1e-7
"""Probabilities of the alignment stay this far from 0 and 1, where the divergence has no gradient."""


def findings_loss(logits: Tensor, present: Tensor, miss: Tensor, *, detach_weight: bool = False) -> Tensor:
    """Two-class MSCE summed over findings.

    Shapes: logits [b, k], present [b, k] of 0 and 1, miss [k] -> [b]

    >>> logits = torch.tensor([[0.0, 0.0]])
    >>> findings_loss(logits, torch.tensor([[1, 0]]), torch.tensor([3.0, 3.0]))  # 2 ln 2 + ln 2
    tensor([2.0794])
    """
    if logits.ndim != 2 or logits.shape != present.shape or miss.shape != logits.shape[-1:]:
        raise ParameterError(
            f"Expected logits and findings [b, k] and costs [k], found {tuple(logits.shape)}, {tuple(present.shape)} "
            f"and {tuple(miss.shape)}."
        )
    z = ops.at_least_float32(logits)
    y, m = present.to(z), miss.to(z)
    weight = 1.0 + z.neg().sigmoid() * (m - 1.0)  # p + (1 − p) m, written around 1: m = 1 is cross-entropy to the bit
    if detach_weight:
        weight = weight.detach()
    return -(y * weight * logsigmoid(z) + (1.0 - y) * logsigmoid(-z)).sum(-1)


def frechet_loss(class_logits: Tensor, finding_logits: Tensor, at_least: Tensor, counts: Tensor) -> Tensor:
    """How far the most urgent finding's probabilities lie outside of Fréchet's bounds, summed over boundaries.

    Shapes: class_logits [b, c], finding_logits [b, k], at_least [r, c] and counts [r, k], both 0 and 1 -> [b]

    Args:
        class_logits: Scores of the most urgent finding; softmax over classes.
        finding_logits: One score per finding; sigmoid each.
        at_least: Which classes are at or above each boundary.
        counts: Which findings are.
    """
    p = ops.at_least_float32(finding_logits).sigmoid()
    q = ops.at_least_float32(class_logits).softmax(-1) @ at_least.to(p).T
    members = counts.to(torch.bool)
    low = torch.where(members, p[:, None, :], 0.0).amax(-1)
    high = torch.where(members, p[:, None, :], 0.0).sum(-1).clamp_max(1.0)
    nearest = torch.minimum(torch.maximum(q, low), high)
    return ops.js_divergence(_both(q), _both(nearest)).sum(-1)


def _both(q: Tensor) -> Tensor:
    """Log (q, 1 − q)."""
    inside = q.clamp(_LEAST, 1.0 - _LEAST)
    return torch.stack([inside.log(), (-inside).log1p()], dim=-1)


def boundary_members(hierarchy: ClassHierarchy) -> tuple[Array, Array]:
    """Which classes [r, c] and which findings [r, k] are at or above each boundary of urgency."""
    ranks = hierarchy.ranks()
    boundaries = np.unique(ranks)
    # Without a class for "nothing" some finding is always present, and the lowest boundary is certain.
    above = boundaries[1:, None] <= ranks[None, :]
    return above.astype(np.float64), above[:, hierarchy.finding_classes].astype(np.float64)


def miss_costs(hierarchy: ClassHierarchy, severity: Array) -> Array:
    """m_k = w_k M[k, nothing], what missing each finding weighs, with M of `with_nothing(hierarchy)`.

    A matrix of a user's without a row for "nothing" counts from the least urgent finding.

    >>> from pams_mil.severity import loss_weight
    >>> tree = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N", weights={"DCIS": 2})
    >>> miss_costs(tree, loss_weight(tree, alpha=1.6)).tolist()
    [1.6, 6.4]
    """
    nothing = hierarchy.classes.index(hierarchy.nothing) if hierarchy.nothing else 0
    costs = severity[:, nothing]
    if len(costs) > len(hierarchy.finding_classes):
        costs = np.delete(costs, nothing)
    weighted: Array = hierarchy.finding_weights * costs
    return weighted


class FindingsTerm(nn.Module):
    """The loss of a findings head beside the head of the most urgent finding.

    Args:
        hierarchy: Classes with `findings: several`.
        miss: [k] what missing each finding weighs; None: binary cross-entropy.
        align: Weight of the alignment within Fréchet's bounds.
        detach_weight: Take the weight of a missed finding as a constant.
    """

    miss: Tensor
    at_least: Tensor
    counts: Tensor

    def __init__(
        self, hierarchy: ClassHierarchy, *, miss: Array | None = None, align: float = 0.0, detach_weight: bool = False
    ) -> None:
        super().__init__()
        at_least, counts = boundary_members(hierarchy)
        costs = np.ones(counts.shape[1]) if miss is None else miss
        for name, values in (("miss", costs), ("at_least", at_least), ("counts", counts)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)
        self.align, self.detach_weight = align, detach_weight

    def forward(self, class_logits: Tensor, finding_logits: Tensor, present: Tensor) -> dict[str, Tensor]:
        """Named terms, [b] each; the mean over findings, so that it does not grow with their number."""
        loss = findings_loss(finding_logits, present, self.miss, detach_weight=self.detach_weight)
        terms = {"findings": loss / finding_logits.shape[-1]}
        if self.align:
            terms["findings_align"] = self.align * frechet_loss(
                class_logits, finding_logits, self.at_least, self.counts
            )
        return terms
