"""HAF: hierarchy-aware features (Garg et al. 2022). One bag feature whose heads agree along the tree.

    L = −log p_H[t] + λ_a Σ_{h<H} JS(p_h, ṗ_{h+1}) − λ_g Σ_{h<H} mean_g cos(W_h[g], Σ_{c in g} W_{h+1}[c])
        + λ_m Σ_{h<H} mean over pairs (p, q) of unlike bags of ½ [relu(μ − KL(p ‖ m)) + relu(μ − KL(q ‖ m))]

ṗ_{h+1} is the finer level's softmax summed into the coarser classes, W_h are unit rows of a level's head and
m = ½(p + q). The last term pushes bags of unlike coarse classes apart. With the authors' margin μ = 3 > ln 2 the hinge
never closes, so it is μ − JS.

Paper's setting: all weights 1. With one level only the cross-entropy remains.
Deviations: pairs need several bags, but a step may see one. So the last 256 bags' coarse predictions are remembered
without gradient, as part of the objective's state, and each bag is compared with its successors in the row of batch
mates and memories, about 256 comparisons per step; pairs of the same class are skipped. On DTFD-MIL the alignment also
covers pseudo-bags; nothing else would train their coarse heads.
License: written from the equations; the authors' code has no license and was not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.alignment import AlignmentTerm, child_counts
from pams_mil.methods.ce import CrossEntropy
from pams_mil.methods.margin import MarginTerm
from pams_mil.methods.method import Heads, Method, Towers
from pams_mil.methods.objective import LevelTerm, Objective
from pams_mil.parameters import require_count, require_number

if TYPE_CHECKING:
    from pams_mil.models.core.mil_model import LevelOutput

DISCOVER = "Haf"


def geometry_loss(coarse_rows: Tensor, fine_rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """−mean_g cos(W_h[g], Σ_{c in g} W_{h+1}[c] / |W_{h+1}[c]|), one value for the whole level.

    Shapes: coarse_rows [g, e], fine_rows [c, e] -> []

    >>> rows = torch.eye(3)
    >>> geometry_loss(torch.stack([rows[0] + rows[1], rows[2]]), rows, [2, 1])  # parents point as their children
    tensor(-1.)
    """
    unit = nn.functional.normalize(fine_rows, dim=-1)
    toward = torch.stack([children.sum(0) for children in torch.split(unit, list(sizes))])
    return -nn.functional.cosine_similarity(coarse_rows, toward, dim=-1).mean()


class GeometryTerm(nn.Module):
    """Sum of the geometry losses of all neighboring levels; the same value for every bag."""

    def __init__(self, hierarchy: ClassHierarchy) -> None:
        super().__init__()
        self.sizes = [child_counts(hierarchy, level) for level in range(hierarchy.num_levels - 1)]

    def forward(
        self, outputs: Sequence[LevelOutput], targets: Sequence[Tensor], weights: Tensor | None = None
    ) -> Tensor:
        """[b]; the targets are not used."""
        rows = [output.weight for output in outputs if output.weight is not None]
        if len(rows) != len(outputs):
            raise ParameterError("HAF needs the weight rows of every head, but a LevelOutput has none.")
        pairs = zip(rows[:-1], rows[1:], self.sizes, strict=True)
        value = torch.stack([geometry_loss(coarse, fine, sizes) for coarse, fine, sizes in pairs]).sum()
        return value.expand(len(outputs[0].logits))


@dataclass(frozen=True, kw_only=True)
class Haf(Method):
    """Hierarchy-aware features.

    Attributes:
        margin: μ, the divergence beyond which unlike bags are left alone; above ln 2 they never are.
        memory: How many past bags are remembered for pairs.
        lambda_align: λ_a, the weight of the alignment; 0 leaves it out.
        lambda_geometry: λ_g, the weight of the heads' geometry; 0 leaves it out.
        lambda_margin: λ_m, the weight of the pairs; 0 leaves them out.
    """

    margin: float = 3.0
    memory: int = 256
    lambda_align: float = 1.0
    lambda_geometry: float = 1.0
    lambda_margin: float = 1.0
    towers: Towers = "shared"

    heads: ClassVar[Heads] = "normalized"
    allowed_towers: ClassVar[tuple[Towers, ...]] = ("shared",)

    def check(self) -> None:
        """The margin is above 0, weights are not negative."""
        require_number("margin", self.margin, above=0)
        require_count("memory", self.memory, at_least=1)
        for name in ("lambda_align", "lambda_geometry", "lambda_margin"):
            require_number(name, getattr(self, name), at_least=0)

    def objective(self, hierarchy: ClassHierarchy) -> Objective:
        """Terms "ce" (finest level only), "alignment", "geometry" and "margin"."""
        finest, several = hierarchy.num_levels - 1, float(hierarchy.num_levels > 1)
        terms: dict[str, tuple[float, nn.Module]] = {
            "ce": (1.0, LevelTerm({finest: CrossEntropy().level_loss(hierarchy, finest)})),
            "alignment": (several * self.lambda_align, AlignmentTerm(hierarchy, tier1=True)),
            "geometry": (several * self.lambda_geometry, GeometryTerm(hierarchy)),
            "margin": (several * self.lambda_margin, MarginTerm(hierarchy, margin=self.margin, memory=self.memory)),
        }
        return Objective(terms, num_outputs=hierarchy.num_levels)
