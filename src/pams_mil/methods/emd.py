"""EMD: squared earth mover's distance between cumulative distributions (Hou et al. 2016), for ordered classes.

    L = Σ_r (P_r − 1[r ≥ t])²,   P_r = Σ_{k≤r} p_k

Also known as the ranked probability score. It grows with how far probability lies from the true class t, in both
directions alike, and is bounded by C − 1.

Paper's setting: not in the PAMS paper.
Deviations: none.
License: written from the equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import checked
from pams_mil.methods.method import FinestMethod
from pams_mil.methods.objective import LevelLoss

DISCOVER = "Emd"


def emd_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Σ_r (P_r − 1[r ≥ t])².

    Shapes: logits [b, c], target [b] -> [b]

    >>> emd_loss(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0]))  # 0.5² + 0.2²
    tensor([0.2900])
    """
    logits, target = checked(logits, target)
    index = torch.arange(logits.shape[1], device=logits.device)
    reached = (index >= target[:, None]).to(logits.dtype)
    return (logits.softmax(-1).cumsum(-1) - reached).square().sum(-1)


@dataclass(frozen=True, kw_only=True)
class Emd(FinestMethod):
    """Squared earth mover's distance; it has no hyper-parameters."""

    term: ClassVar[str] = "emd"

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level."""
        return LevelLoss(emd_loss, num_classes=hierarchy.num_classes(level))
