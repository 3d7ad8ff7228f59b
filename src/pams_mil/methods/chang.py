"""Chang et al. 2021: finer levels help coarser ones, but coarser ones must not disturb finer ones.

    L = Σ_h −log p_h[t],   logits_h = W_h [x_h, sg(x_{h+1}), ..., sg(x_H)]

One bag feature is cut into a slice per level, x_1 (coarse) to x_H (fine). A level's head sees its own slice and,
behind a stop-gradient sg, the slices of all finer levels; the finest head sees its own slice only.

Paper's setting: equal weights for all levels. With one level there is one slice, and this is cross-entropy.
Deviations: the feature goes through Linear, LayerNorm and ELU; the original's BatchNorm cannot work with one bag.
License: written from the equations; the authors' code (MIT license) was not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pams_mil.methods.ce import CrossEntropy
from pams_mil.methods.method import Heads, Towers

DISCOVER = "Chang"


@dataclass(frozen=True, kw_only=True)
class Chang(CrossEntropy):
    """Cross-entropy at every level on split features; the heads hold the method."""

    towers: Towers = "shared"

    heads: ClassVar[Heads] = "split"
    allowed_towers: ClassVar[tuple[Towers, ...]] = ("shared",)
