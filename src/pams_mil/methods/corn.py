"""CORN: conditional ordinal regression (Shi, Cao and Raschka 2021), one yes-or-no question per step of urgency.

    P(y > k | y ≥ k) = σ(z_k),   p_t = (1 − σ(z_t)) Π_{k<t} σ(z_k)   (without the first factor for the last class)
    L = −log p_t

This is the sum of the binary cross-entropies of the questions that the sample reaches. p is a distribution over
classes, so areas under the curve and decision rules work as for a softmax.

Paper's setting: not in the PAMS paper.
Deviations: C − 1 questions need C − 1 logits; a head with C fits and its last logit is unused. Averaged over bags,
where the original divides by the number of questions reached. The original's label, the median of p, is the decision
of least expected distance; the most probable class is the default here as for every method.
License: written from the equations; the authors' code (MIT license) was not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pams_mil import ops
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.checks import checked
from pams_mil.methods.method import FinestMethod
from pams_mil.methods.objective import LevelLoss

DISCOVER = "Corn"


def corn_log_probabilities(logits: Tensor) -> Tensor:
    """Logarithm of p for every class from the answers' logits; the last logit is unused.

    Shapes: [b, c] -> [b, c]

    >>> import torch
    >>> corn_log_probabilities(torch.zeros(1, 3)).exp()
    tensor([[0.5000, 0.2500, 0.2500]])
    """
    return ops.chain_log_probabilities(ops.at_least_float32(logits)[:, :-1])


def corn_loss(logits: Tensor, target: Tensor) -> Tensor:
    """−log p_t of the chain of questions.

    Shapes: logits [b, c], target [b] -> [b]

    >>> import torch
    >>> corn_loss(torch.zeros(1, 3), torch.tensor([0]))  # one question, a coin flip: ln 2
    tensor([0.6931])
    """
    logits, target = checked(logits, target)
    return -corn_log_probabilities(logits).gather(-1, target[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class Corn(FinestMethod):
    """Conditional ordinal regression; it has no hyper-parameters."""

    term: ClassVar[str] = "corn"
    has_softmax: ClassVar[bool] = False

    def level_loss(self, hierarchy: ClassHierarchy, level: int = -1) -> LevelLoss:
        """The loss of one level."""
        return LevelLoss(corn_loss, num_classes=hierarchy.num_classes(level))

    def probabilities(self, logits: Tensor) -> Tensor:
        """p, by the chain of questions."""
        return corn_log_probabilities(logits).exp()
