"""Losses that weigh a missed urgency more than a false alarm: MSCE, PAMS and OCE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pams_mil import ops
from pams_mil.arrays import AnyArray, Array
from pams_mil.errors import NotNegative, ParameterError, Positive, Within
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.findings_loss import FindingsTerm, miss_costs
from pams_mil.methods.method import FinestMethod, HierarchyLoss, LevelMethod, Towers
from pams_mil.methods.objective import (
    CostMatrix,
    LevelLoss,
    LevelTerm,
    LossFunction,
    Objective,
    check_costs,
    checked,
    level_cost,
)
from pams_mil.methods.terms import AlignmentTerm, Detach
from pams_mil.severity import (
    Distance,
    Orientation,
    loss_weight,
    orders_at,
    resolved_distance,
    scaled_ranks,
    with_nothing,
)

DISCOVER = {"msce": "Msce", "pams": "Pams", "oce": "Oce"}


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

    In O(c) for a bag, without a matrix of classes: it serves hundreds of them, and w is at most 1 + α. With J orders of
    urgency w is the mean over them.

    Shapes: logits [b, c], target [b], ranks [j, c] -> [b]
    """
    logits, target = checked(logits, target)
    log_p = logits.log_softmax(-1)
    gaps = torch.stack([(place[target][:, None] - place).clamp_min(0.0) for place in ranks.to(logits)])
    weight = 1.0 + alpha * (log_p.exp() * gaps.mean(0)).sum(-1)
    if detach_weight:
        weight = weight.detach()
    return -weight * log_p.gather(-1, target[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class Msce(LevelMethod):
    """MSCE: mistake-severity cross-entropy, the loss of PAMS without alignment and remix (Hong et al. 2026).

        L = Σ_h −w_h log p_h[t],   w_h = Σ_r p_h[r] M[t, r],   M[t, r] = α |t − r| if t outranks r, else 1

    The weight w is the expected severity of the prediction for a bag of true class t. Where the classes have several
    orders of urgency, M is the mean of theirs.

    Paper's setting: α = 1.6.
    Deviations: the index order in the paper's definition of M would punish false alarms and contradicts its text; the
    order that the text describes is the default, `orientation="literal"` the other. The gradient passes through w
    (`detach_weight`), which the paper leaves open. `distance="power"` is α^|t − r|; "rank" is ours, for levels of
    more than 30 classes, where the product would outweigh everything else.
    License: written from the paper's equations; no official code is known.

    Attributes:
        alpha: α, how much a missed urgency weighs per class of distance; none for all ones, i.e. cross-entropy.
        distance: "product" for α |t − r|, "power" for α^|t − r|, "rank" for 1 + α times the difference in rank, from 0
            to 1; "auto" is "product", and "rank" at levels of more than 30 classes.
        orientation: "intended" punishes missed urgency, "literal" false alarms (ablation only).
        detach_weight: Take w as a constant.
        costs: Matrices `[true, predicted]` to use as M instead, one per level, coarsest first; none keeps M.
    """

    alpha: Annotated[float, Within(above=1)] | None = 1.6
    distance: Distance = "auto"
    orientation: Orientation = "intended"
    detach_weight: bool = False
    costs: Sequence[CostMatrix | None] | None = field(default=None, hash=False)

    function: ClassVar[LossFunction] = staticmethod(msce_loss)

    def check(self) -> None:
        """Costs are matrices."""
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
        if resolved_distance(hierarchy, level, self.distance) == "rank" and self.alpha is not None and plain:
            ranks = [scaled_ranks(order, at)[place] for order, at, place in orders_at(hierarchy, level)]
            return LevelLoss(
                rank_msce_loss, num_classes=hierarchy.num_classes(level), alpha=self.alpha,
                matrices={"ranks": np.stack(ranks)}, detach_weight=self.detach_weight,
            )  # fmt: skip
        return super().level_loss(hierarchy, level)

    def matrices(self, hierarchy: ClassHierarchy, level: int) -> dict[str, AnyArray]:
        """The severity matrix."""
        return {"severity": self.severity(hierarchy, level)}

    def findings_term(self, hierarchy: ClassHierarchy, *, align: float = 0.0) -> FindingsTerm:
        """Two-class MSCE of every finding, with the weight of missing it altogether."""
        if self.orientation == "literal":
            raise ParameterError("orientation='literal' has no form for several findings per slide; use 'intended'.")
        # A cost matrix of the user's has no row for a "nothing" that is not a class.
        tree = with_nothing(hierarchy) if self.costs is None else hierarchy
        miss = miss_costs(hierarchy, self.severity(tree))
        return FindingsTerm(hierarchy, miss=miss, align=align, detach_weight=self.detach_weight)


MSCELoss = HierarchyLoss.of(Msce, "MSCELoss")


@dataclass(frozen=True, kw_only=True)
class Pams(Msce):
    """PAMS: priority-aware mistake severity (Hong et al. 2026). A missed urgent class costs more than a false alarm.

        L = λ₁ Σ_h MSCE_h + λ₂ Σ_{h<H} JS(p_h, ṗ_{h+1})
        MSCE = −w log p_t,   w = Σ_r p_r M[t, r],   M[t, r] = α |t − r| if t outranks r, else 1

    The weight w is the expected severity of the prediction for a bag of true class t. ṗ_{h+1} is the finer level's
    softmax summed into the coarser classes. SFR remixes bags: the drawn bag gives its label and the rows that
    distinguish it, a bag that is less urgent or of the same class the rest.

    Paper's setting: α = 1.6, λ = (2, 1), SFR with 11 clusters, 6 iterations and the top 6 clusters. With one level
    there is no alignment. Ablations are values: `alpha` none (M is all ones: cross-entropy), `lambda_align` 0, `remix`
    none.
    Deviations: those of `msce`; gradients go to both sides of the alignment (`detach`), and the drawn bag keeps its
    label (`pairing.rule`), which the paper leaves open. On DTFD-MIL the alignment compares bags, with `align_tier1`
    also pseudo-bags.
    License: written from the paper's equations; no official code is known.

    Attributes:
        lambda_msce: λ₁, the weight of MSCE.
        lambda_align: λ₂, the weight of the alignment; 0 leaves it out.
        detach: The side of the alignment that receives no gradient: none, fine or coarse.
        align_tier1: On a two-tier model, align the pseudo-bags too.
    """

    lambda_msce: NotNegative = 2.0
    lambda_align: NotNegative = 1.0
    detach: Detach = "none"
    align_tier1: bool = False
    remix: str | None = "sfr"

    allowed_towers: ClassVar[tuple[Towers, ...]] = ("per_level", "shared")
    paper_remix_options: ClassVar[Mapping[str, Any]] = {
        "clusters": 11, "iterations": 6, "top_k": 6, "init": "quantile"
    }  # fmt: skip

    def check(self) -> None:
        """What MSCE asks for, and something to train."""
        super().check()
        if not self.lambda_msce and not self.lambda_align:
            raise ParameterError("lambda_msce and lambda_align must not both be 0: nothing would be trained.")

    def objective(self, hierarchy: ClassHierarchy) -> Objective:
        """Terms "msce" and "alignment"."""
        levels = range(hierarchy.num_levels)
        losses = {level: self.level_loss(hierarchy, level) for level in levels}
        align = self.lambda_align if len(levels) > 1 else 0.0
        alignment = AlignmentTerm(hierarchy, detach=self.detach, tier1=self.align_tier1)
        terms = {self.term: (self.lambda_msce, LevelTerm(losses)), "alignment": (align, alignment)}
        return Objective(terms, num_outputs=len(levels))

    def findings_term(self, hierarchy: ClassHierarchy, *, align: float | None = None) -> FindingsTerm:
        """Two-class MSCE of every finding, aligned with the most urgent one within Fréchet's bounds."""
        return super().findings_term(hierarchy, align=self.lambda_align if align is None else align)


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
    """OCE: ordinal cross-entropy with an asymmetric cost matrix (Dvora, Haba and Singer 2026, arXiv 2606.25769).

        L = −C[t, t] log p_t − Σ_{r≠t} C[t, r] log(1 − p_r),   C[t, r] = |t − r|, times m if t outranks r;   C[t, t] = 1

    Cross-entropy of the true class, and of every other class the log-probability that it is not called, weighed by what
    the mistake costs. C = 1 on the diagonal and 0 elsewhere is cross-entropy.

    Paper's setting: matrices written by hand for five grades, whose numbers are in no source that could be read; m = 2
    and the steps between classes are ours, `costs` takes your own matrix.
    Deviations: log(1 − p) is taken in log space, where the authors add 1e-7 to its argument, which ends the gradient of
    a confident mistake.
    License: written from the equation; the authors' code (no license) was read for the equation only.

    Attributes:
        miss: m, how much more a step of missed urgency costs than a step of false alarm; 1 is symmetric.
        costs: Matrices `[true, predicted]` to use as C instead, one per level, coarsest first; none keeps C.
    """

    miss: Positive = 2.0
    costs: Sequence[CostMatrix | None] | None = field(default=None, hash=False)

    function: ClassVar[LossFunction] = staticmethod(oce_loss)

    def check(self) -> None:
        """Costs are matrices."""
        check_costs(self.costs)

    def cost(self, hierarchy: ClassHierarchy, level: int = -1) -> Array:
        """C at a level."""
        own = level_cost(self.costs, hierarchy, level)
        if own is not None:
            return own
        steps = hierarchy.distance(level) * np.where(hierarchy.outranks(level), self.miss, 1.0)
        matrix: Array = steps + np.eye(len(steps))
        return matrix

    def matrices(self, hierarchy: ClassHierarchy, level: int) -> dict[str, AnyArray]:
        """The cost matrix."""
        return {"cost": self.cost(hierarchy, level)}


OCELoss = HierarchyLoss.of(Oce, "OCELoss")
