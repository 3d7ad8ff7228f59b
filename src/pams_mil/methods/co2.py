"""CO2: cross-entropy with an ordinal margin between neighbors (Albuquerque et al. 2021).

    L = −log p_t + λ Σ_{k<C−1} relu(δ + p_{k+1} − p_k) if k ≥ t, relu(δ + p_k − p_{k+1}) if k < t

Probabilities should fall by at least δ with every step away from the true class t, so they have one peak.

Paper's setting: λ is not stated; δ = 0.05 and λ = 0.01 are the authors' later values.
Deviations: the PAMS paper prints the second case as k ≤ t, which would also punish the peak itself; the authors'
k < t is used. Their first code weighted the cross-entropy by λ instead of the margins.
License: written from the equations; the authors' code has no license and was not used.
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
from pams_mil.parameters import require_number

DISCOVER = "Co2"


def co2_loss(logits: Tensor, target: Tensor, *, delta: float = 0.05, lambda_margin: float = 0.01) -> Tensor:
    """−log p_t + λ Σ_k margin between neighbors k and k + 1.

    Shapes: logits [b, c], target [b] -> [b]

    >>> logits = torch.tensor([[0.2, 0.5, 0.3]]).log()
    >>> co2_loss(logits, torch.tensor([1]), lambda_margin=1.0)  # ln 2; all margins hold
    tensor([0.6931])
    >>> co2_loss(logits, torch.tensor([0]), lambda_margin=1.0)  # ln 5 + (0.05 + 0.3)
    tensor([1.9594])
    """
    logits, target = checked(logits, target)
    log_p = logits.log_softmax(-1)
    rise = log_p.exp().diff(dim=-1)
    step = torch.arange(rise.shape[1], device=logits.device)
    margin = torch.relu(delta + torch.where(step >= target[:, None], rise, -rise)).sum(-1)
    return lambda_margin * margin - log_p.gather(-1, target[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class Co2(FinestMethod):
    """Cross-entropy with ordinal margins.

    Attributes:
        delta: δ, by how much probability should fall per class away from the true one.
        lambda_margin: λ, the weight of the margins; 0 is cross-entropy.
    """

    delta: float = 0.05
    lambda_margin: float = 0.01

    term: ClassVar[str] = "co2"

    def check(self) -> None:
        """Neither is negative."""
        require_number("delta", self.delta, at_least=0)
        require_number("lambda_margin", self.lambda_margin, at_least=0)

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level."""
        classes = hierarchy.num_classes(level)
        return LevelLoss(co2_loss, num_classes=classes, delta=self.delta, lambda_margin=self.lambda_margin)
