"""MSCE: mistake-severity cross-entropy, the loss of PAMS without alignment and remix (Hong et al. 2026).

    L = Σ_h −w_h log p_h[t],   w_h = Σ_r p_h[r] M[t, r],   M[t, r] = α |t − r| if t outranks r, else 1

The weight w is the expected severity of the prediction for a bag of true class t.

Paper's setting: α = 1.6.
Deviations: the index order in the paper's definition of M would punish false alarms and contradicts its text; the order
that the text describes is the default, `orientation="literal"` the other. The gradient passes through w
(`detach_weight`), which the paper leaves open. `distance="power"` is α^|t − r|; "rank" is ours, for many classes.
License: written from the paper's equations; no official code is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, get_args

import numpy as np
from torch import Tensor

from pams_mil.arrays import Array
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import CostMatrix, check_costs, checked, level_cost
from pams_mil.methods.findings_loss import FindingsTerm, miss_costs
from pams_mil.methods.method import LevelMethod
from pams_mil.methods.objective import LevelLoss
from pams_mil.parameters import require_choice, require_number
from pams_mil.severity import Distance, Orientation, loss_weight, scaled_ranks, with_nothing

DISCOVER = "Msce"


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


def rank_msce_loss(
    logits: Tensor, target: Tensor, ranks: Tensor, *, alpha: float, detach_weight: bool = False
) -> Tensor:
    """MSCE whose weight depends on ranks alone, w = 1 + α E[(ρ_t − ρ)₊] with ranks ρ scaled to [0, 1].

    In O(c) for a bag, without a matrix of classes: it serves hundreds of them, and w is at most 1 + α.

    Shapes: logits [b, c], target [b], ranks [c] -> [b]
    """
    logits, target = checked(logits, target)
    log_p = logits.log_softmax(-1)
    place = ranks.to(logits)
    weight = 1.0 + alpha * (log_p.exp() * (place[target][:, None] - place).clamp_min(0.0)).sum(-1)
    if detach_weight:
        weight = weight.detach()
    return -weight * log_p.gather(-1, target[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class Msce(LevelMethod):
    """Mistake-severity cross-entropy at every trained level.

    Attributes:
        alpha: α, how much a missed urgency weighs per class of distance; none for all ones, i.e. cross-entropy.
        distance: "product" for α |t − r|, "power" for α^|t − r|, "rank" for 1 + α times the difference in rank, from 0
            to 1: for hundreds of classes.
        orientation: "intended" punishes missed urgency, "literal" false alarms (ablation only).
        detach_weight: Take w as a constant.
        costs: Matrices `[true, predicted]` to use as M instead, one per level, coarsest first; none keeps M.
    """

    alpha: float | None = 1.6
    distance: Distance = "product"
    orientation: Orientation = "intended"
    detach_weight: bool = False
    costs: Sequence[CostMatrix | None] | None = field(default=None, hash=False)

    term: ClassVar[str] = "msce"

    def check(self) -> None:
        """Alpha is above 1, choices exist, costs are matrices."""
        if self.alpha is not None:
            require_number("alpha", self.alpha, above=1)
        require_choice("distance", self.distance, get_args(Distance))
        require_choice("orientation", self.orientation, ("intended", "literal"))
        check_costs(self.costs)

    def severity(self, hierarchy: ClassHierarchy, level: int = -1) -> Array:
        """M at a level."""
        own = level_cost(self.costs, hierarchy, level)
        if own is not None:
            return own
        if self.alpha is None:
            return np.ones((hierarchy.num_classes(level),) * 2)
        return loss_weight(hierarchy, level, alpha=self.alpha, distance=self.distance, orientation=self.orientation)

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level with its severity matrix, or with its ranks where those are enough."""
        plain = self.orientation == "intended" and self.costs is None
        if self.distance == "rank" and self.alpha is not None and plain:
            return LevelLoss(
                rank_msce_loss, num_classes=hierarchy.num_classes(level), alpha=self.alpha,
                matrices={"ranks": scaled_ranks(hierarchy, level)}, detach_weight=self.detach_weight,
            )  # fmt: skip
        severity = self.severity(hierarchy, level)
        matrices = {"severity": severity}
        return LevelLoss(msce_loss, num_classes=len(severity), matrices=matrices, detach_weight=self.detach_weight)

    def findings_term(self, hierarchy: ClassHierarchy, *, align: float = 0.0) -> FindingsTerm:
        """Two-class MSCE of every finding, with the weight of missing it altogether."""
        if self.orientation == "literal":
            raise ParameterError("orientation='literal' has no form for several findings per slide; use 'intended'.")
        # A cost matrix of the user's has no row for a "nothing" that is not a class.
        tree = with_nothing(hierarchy) if self.costs is None else hierarchy
        miss = miss_costs(hierarchy, self.severity(tree))
        return FindingsTerm(hierarchy, miss=miss, align=align, detach_weight=self.detach_weight)
