"""Cross-entropy: every mistake weighs the same.

    L = Σ_h −log p_h[t]

p_h is the softmax at level h and t the true class there. The reference that every other method is compared with.

Paper's setting: one model per level.
Deviations: none.
License: written from the equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import checked
from pams_mil.methods.findings_loss import FindingsTerm
from pams_mil.methods.method import LevelMethod
from pams_mil.methods.objective import LevelLoss

DISCOVER = "CrossEntropy"


def ce_loss(logits: Tensor, target: Tensor) -> Tensor:
    """−log p_t, the cross-entropy of every sample.

    Shapes: logits [b, c], target [b] -> [b]

    >>> import torch
    >>> ce_loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
    tensor([0.3567])
    """
    logits, target = checked(logits, target)
    return nn.functional.cross_entropy(logits, target, reduction="none")


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(LevelMethod):
    """Cross-entropy at every trained level."""

    term: ClassVar[str] = "ce"

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level."""
        return LevelLoss(ce_loss, num_classes=hierarchy.num_classes(level))

    def findings_term(self, hierarchy: ClassHierarchy) -> FindingsTerm:
        """Binary cross-entropy of every finding."""
        return FindingsTerm(hierarchy)
