"""Hong-style: remixed bags carry the more urgent label, and neighboring levels are aligned (after Hong et al. 2025).

    L = Σ_h −log p_h[t] + λ Σ_{h<H} JS(p_h, ṗ_{h+1})

ṗ_{h+1} is the finer level's softmax summed into the coarser classes. RandomMix adds a random τ percent of the more
urgent bag's instances to the less urgent bag.

Paper's setting: τ = 10 and τ = 15 (`remix_options`), λ = 1. With one level only the cross-entropy remains.
Deviations: this is our reading. Neither code nor full text could be obtained; the original's injection of the
predicted coarse class into the bag and its second alignment loss are left out. Tables should say "Hong-style".
License: written from the PAMS paper's description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.alignment import DETACH, AlignmentTerm, Detach
from pams_mil.methods.ce import CrossEntropy
from pams_mil.methods.method import Method, Towers
from pams_mil.methods.objective import LevelTerm, Objective
from pams_mil.parameters import require_choice, require_number

DISCOVER = "Hong"


@dataclass(frozen=True, kw_only=True)
class Hong(Method):
    """Cross-entropy at every level, alignment and RandomMix.

    Attributes:
        lambda_align: λ, the weight of the alignment; 0 leaves it out.
        detach: The side of the alignment that receives no gradient: none, fine or coarse.
    """

    lambda_align: float = 1.0
    detach: Detach = "none"
    remix: str | None = "randommix"

    allowed_towers: ClassVar[tuple[Towers, ...]] = ("per_level", "shared")
    paper_remix_options: ClassVar[Mapping[str, Any]] = {"tau": 10}

    def check(self) -> None:
        """The weight is not negative."""
        require_number("lambda_align", self.lambda_align, at_least=0)
        require_choice("detach", self.detach, DETACH)

    def objective(self, hierarchy: ClassHierarchy) -> Objective:
        """Terms "ce" and "alignment"."""
        levels = range(hierarchy.num_levels)
        ce = LevelTerm({level: CrossEntropy().level_loss(hierarchy, level) for level in levels})
        align = self.lambda_align if len(levels) > 1 else 0.0
        return Objective(
            {"ce": (1.0, ce), "alignment": (align, AlignmentTerm(hierarchy, detach=self.detach))},
            num_outputs=len(levels),
        )
