"""PAMS: priority-aware mistake severity (Hong et al. 2026). A missed urgent class costs more than a false alarm.

    L = λ₁ Σ_h MSCE_h + λ₂ Σ_{h<H} JS(p_h, ṗ_{h+1})
    MSCE = −w log p_t,   w = Σ_r p_r M[t, r],   M[t, r] = α |t − r| if t outranks r, else 1

The weight w is the expected severity of what the model would say about a bag of true class t. ṗ_{h+1} is the finer
level's softmax summed into the coarser classes. SFR remixes a less urgent bag with the instances that make a more
urgent one more urgent.

Paper's setting: α = 1.6, λ = (2, 1), SFR with 11 clusters, 6 iterations and the top 6 clusters. With one level there
is no alignment. Ablations are values: `alpha` none (M is all ones: cross-entropy), `lambda_align` 0, `remix` none.
Deviations: the printed index order of M would punish false alarms and contradicts the text; the intended one is the
default and `orientation="literal"` the printed one. The gradient passes through w (`detach_weight`) and through both
sides of the alignment (`detach`), which the paper leaves open. `distance="power"` is α^|t − r|. On DTFD-MIL the
alignment compares bags, with `align_tier1` also pseudo-bags.
License: written from the paper's equations; no official code is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.alignment import DETACH, AlignmentTerm, Detach, alignment_loss
from pams_mil.methods.method import Method, Towers
from pams_mil.methods.msce import CostMatrix, Msce, msce_loss
from pams_mil.methods.objective import LevelTerm, Objective
from pams_mil.parameters import require_choice, require_number
from pams_mil.severity import Distance, Orientation

__all__ = ["Pams", "alignment_loss", "msce_loss"]

DISCOVER = "Pams"


@dataclass(frozen=True, kw_only=True)
class Pams(Method):
    """MSCE at every level, alignment and SFR.

    Attributes:
        alpha: α, how much a missed urgency weighs per class of distance; none for all ones, i.e. cross-entropy.
        lambda_msce: λ₁, the weight of MSCE.
        lambda_align: λ₂, the weight of the alignment; 0 leaves it out.
        distance: "product" for α |t − r|, "power" for α^|t − r|.
        orientation: "intended", or "literal" for the printed index order (ablation only).
        detach_weight: Take w as a constant.
        detach: The side of the alignment that receives no gradient: none, fine or coarse.
        align_tier1: On a two-tier model, align the pseudo-bags too.
        costs: Matrices `[true, predicted]` to use as M instead, one per level, coarsest first; none keeps M.
    """

    alpha: float | None = 1.6
    lambda_msce: float = 2.0
    lambda_align: float = 1.0
    distance: Distance = "product"
    orientation: Orientation = "intended"
    detach_weight: bool = False
    detach: Detach = "none"
    align_tier1: bool = False
    costs: Sequence[CostMatrix | None] | None = field(default=None, hash=False)
    remix: str | None = "sfr"

    allowed_towers: ClassVar[tuple[Towers, ...]] = ("per_level", "shared")
    paper_remix_options: ClassVar[Mapping[str, Any]] = {
        "clusters": 11, "iterations": 6, "top_k": 6, "init": "quantile"
    }  # fmt: skip

    def check(self) -> None:
        """Alpha is above 1, weights are not negative, choices exist."""
        for cost in self.costs or [None]:
            self._msce(cost)
        require_number("lambda_msce", self.lambda_msce, at_least=0)
        require_number("lambda_align", self.lambda_align, at_least=0)
        require_choice("detach", self.detach, DETACH)
        if not self.lambda_msce and not self.lambda_align:
            raise ParameterError("lambda_msce and lambda_align must not both be 0: nothing would be trained.")

    def objective(self, hierarchy: ClassHierarchy) -> Objective:
        """Terms "msce" and "alignment"."""
        levels = range(hierarchy.num_levels)
        costs = self.costs if self.costs is not None else [None] * len(levels)
        if len(costs) != len(levels):
            raise ParameterError(f"costs must hold one entry per level, {len(levels)}, found {len(costs)}.")
        losses = {
            level: self._msce(cost).level_loss(hierarchy, level) for level, cost in zip(levels, costs, strict=True)
        }
        align = self.lambda_align if len(levels) > 1 else 0.0
        alignment = AlignmentTerm(hierarchy, detach=self.detach, tier1=self.align_tier1)
        terms = {"msce": (self.lambda_msce, LevelTerm(losses)), "alignment": (align, alignment)}
        return Objective(terms, num_outputs=len(levels))

    def _msce(self, cost: CostMatrix | None) -> Msce:
        return Msce(
            alpha=self.alpha, distance=self.distance, orientation=self.orientation,
            detach_weight=self.detach_weight, cost=cost,
        )  # fmt: skip
