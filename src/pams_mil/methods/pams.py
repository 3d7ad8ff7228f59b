"""PAMS: priority-aware mistake severity (Hong et al. 2026). A missed urgent class costs more than a false alarm.

    L = λ₁ Σ_h MSCE_h + λ₂ Σ_{h<H} JS(p_h, ṗ_{h+1})
    MSCE = −w log p_t,   w = Σ_r p_r M[t, r],   M[t, r] = α |t − r| if t outranks r, else 1

The weight w is the expected severity of the prediction for a bag of true class t. ṗ_{h+1} is the finer level's softmax
summed into the coarser classes. SFR remixes bags: the drawn bag gives its label and the rows that distinguish it, a bag
that is less urgent or of the same class the rest.

Paper's setting: α = 1.6, λ = (2, 1), SFR with 11 clusters, 6 iterations and the top 6 clusters. With one level there
is no alignment. Ablations are values: `alpha` none (M is all ones: cross-entropy), `lambda_align` 0, `remix` none.
Deviations: those of `msce`; gradients go to both sides of the alignment (`detach`), and the drawn bag keeps its label
(`pairing.rule`), which the paper leaves open. On DTFD-MIL the alignment compares bags, with `align_tier1` also
pseudo-bags.
License: written from the paper's equations; no official code is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.alignment import DETACH, AlignmentTerm, Detach, alignment_loss
from pams_mil.methods.findings_loss import FindingsTerm
from pams_mil.methods.method import Towers
from pams_mil.methods.msce import Msce, msce_loss
from pams_mil.methods.objective import LevelTerm, Objective
from pams_mil.parameters import require_choice, require_number

__all__ = ["Pams", "alignment_loss", "msce_loss"]

DISCOVER = "Pams"


@dataclass(frozen=True, kw_only=True)
class Pams(Msce):
    """MSCE at every level, alignment and SFR.

    Attributes:
        lambda_msce: λ₁, the weight of MSCE.
        lambda_align: λ₂, the weight of the alignment; 0 leaves it out.
        detach: The side of the alignment that receives no gradient: none, fine or coarse.
        align_tier1: On a two-tier model, align the pseudo-bags too.
    """

    lambda_msce: float = 2.0
    lambda_align: float = 1.0
    detach: Detach = "none"
    align_tier1: bool = False
    remix: str | None = "sfr"

    allowed_towers: ClassVar[tuple[Towers, ...]] = ("per_level", "shared")
    paper_remix_options: ClassVar[Mapping[str, Any]] = {
        "clusters": 11, "iterations": 6, "top_k": 6, "init": "quantile"
    }  # fmt: skip

    def check(self) -> None:
        """What MSCE asks for, weights that are not negative, choices that exist."""
        super().check()
        require_number("lambda_msce", self.lambda_msce, at_least=0)
        require_number("lambda_align", self.lambda_align, at_least=0)
        require_choice("detach", self.detach, DETACH)
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
