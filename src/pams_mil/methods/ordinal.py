"""Losses for ordered classes that punish distance in both directions alike: CDW-CE, CO2, CORN, EMD and SORD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pams_mil import ops
from pams_mil.errors import NotNegative, Positive
from pams_mil.methods.method import FinestMethod, HierarchyLoss
from pams_mil.methods.objective import LossFunction, checked
from pams_mil.methods.tree import soft_labels_loss

DISCOVER = {"cdw_ce": "CdwCe", "co2": "Co2", "corn": "Corn", "emd": "Emd", "sord": "Sord"}


def cdw_ce_loss(logits: Tensor, target: Tensor, *, alpha: float = 2.0) -> Tensor:
    """−Σ_r |t − r|^α log(1 − p_r).

    Shapes: logits [b, c], target [b] -> [b]

    >>> import torch
    >>> cdw_ce_loss(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([0]))  # (1 + 4) ln(4/3)
    tensor([1.4384])
    """
    logits, target = checked(logits, target)
    if logits.shape[1] == 1:  # a single class cannot be missed
        return 0.0 * logits[:, 0]
    weight = ops.index_distance(logits.shape[1], logits) ** alpha
    return -(weight[target] * ops.log_complement(logits.log_softmax(-1))).sum(-1)


@dataclass(frozen=True, kw_only=True)
class CdwCe(FinestMethod):
    """CDW-CE: class-distance-weighted cross-entropy (Polat et al. 2022, 2025) for ordered classes.

        L = −Σ_r |t − r|^α log(1 − p_r)

    Probability is punished where it should not be, more so the farther from the true class t, in both directions alike.

    Paper's setting: α is not stated; 2 is the authors' default, 1 and 1.5 are worth trying. With seven or more classes
    large values let the farthest class dominate.
    Deviations: log(1 − p) is taken in log space, so no clamp silences a confident mistake.
    License: written from the equation; the authors' code (MIT license) was not used.

    Attributes:
        alpha: α, the power of the distance.
    """

    alpha: Positive = 2.0

    function: ClassVar[LossFunction] = staticmethod(cdw_ce_loss)


CDWCELoss = HierarchyLoss.of(CdwCe, "CDWCELoss")


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
    """CO2: cross-entropy with an ordinal margin between neighbors (Albuquerque et al. 2021).

        L = −log p_t + λ Σ_{k<C−1} relu(δ + p_{k+1} − p_k) if k ≥ t, relu(δ + p_k − p_{k+1}) if k < t

    Probabilities should fall by at least δ with every step away from the true class t, so they have one peak.

    Paper's setting: λ is not stated; δ = 0.05 and λ = 0.01 are the authors' later values.
    Deviations: the PAMS paper prints the second case as k ≤ t, which would also punish the peak itself; the authors'
    k < t is used. Their first code weighted the cross-entropy by λ instead of the margins.
    License: written from the equations; the authors' code has no license and was not used.

    Attributes:
        delta: δ, by how much probability should fall per class away from the true one.
        lambda_margin: λ, the weight of the margins; 0 is cross-entropy.
    """

    delta: NotNegative = 0.05
    lambda_margin: NotNegative = 0.01

    function: ClassVar[LossFunction] = staticmethod(co2_loss)


CO2Loss = HierarchyLoss.of(Co2, "CO2Loss")


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
    """CORN: conditional ordinal regression (Shi, Cao and Raschka 2021), one yes-or-no question per step of urgency.

        P(y > k | y ≥ k) = σ(z_k),   p_t = (1 − σ(z_t)) Π_{k<t} σ(z_k)   (without the first factor for the last class)
        L = −log p_t

    This is the sum of the binary cross-entropies of the questions that the sample reaches. p is a distribution over
    classes, so areas under the curve and decision rules work as for a softmax.

    Paper's setting: not in the PAMS paper.
    Deviations: C − 1 questions need C − 1 logits; a head with C fits and its last logit is unused. Averaged over bags,
    where the original divides by the number of questions reached. The original's label, the median of p, is the
    decision of least expected distance; the most probable class is the default here as for every method.
    License: written from the equations; the authors' code (MIT license) was not used.
    """

    function: ClassVar[LossFunction] = staticmethod(corn_loss)
    has_softmax: ClassVar[bool] = False

    def probabilities(self, logits: Tensor) -> Tensor:
        """p, by the chain of questions."""
        return corn_log_probabilities(logits).exp()


CORNLoss = HierarchyLoss.of(Corn, "CORNLoss")


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
    """EMD: squared earth mover's distance between cumulative distributions (Hou et al. 2016), for ordered classes.

        L = Σ_r (P_r − 1[r ≥ t])²,   P_r = Σ_{k≤r} p_k

    Also known as the ranked probability score. It grows with how far probability lies from the true class t, in both
    directions alike, and is bounded by C − 1.

    Paper's setting: not in the PAMS paper.
    Deviations: none.
    License: written from the equation.
    """

    function: ClassVar[LossFunction] = staticmethod(emd_loss)


EMDLoss = HierarchyLoss.of(Emd, "EMDLoss")


def sord_loss(logits: Tensor, target: Tensor, *, alpha: float = 1.0) -> Tensor:
    """−Σ_r s[t, r] log p[r] with s[t] = softmax(−α |t − r|).

    Shapes: logits [b, c], target [b] -> [b]

    >>> import torch
    >>> sord_loss(torch.zeros(1, 2), torch.tensor([0]))  # uniform: ln 2 whatever s
    tensor([0.6931])
    """
    logits = ops.at_least_float32(logits)
    share = (-alpha * ops.index_distance(logits.shape[-1], logits)).softmax(-1)
    return soft_labels_loss(logits, target, share)


@dataclass(frozen=True, kw_only=True)
class Sord(FinestMethod):
    """SORD: soft ordinal labels (Diaz and Marathe 2019), classes near the true one in order get a share of the target.

        L = −Σ_r s[t, r] log p[r],   s[t, r] = softmax_r(−α |t − r|)

    Like soft labels, with the distance in the order of urgency instead of the tree.

    Paper's setting: not in the PAMS paper.
    Deviations: none; of the original's distances the absolute one is used.
    License: written from the equation.

    Attributes:
        alpha: α, how fast the share falls with the distance; a large one is cross-entropy.
    """

    alpha: Positive = 1.0  # at 0 all classes would be equally right

    function: ClassVar[LossFunction] = staticmethod(sord_loss)


SORDLoss = HierarchyLoss.of(Sord, "SORDLoss")
