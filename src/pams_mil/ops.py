"""Numerically safe building blocks on logits and log-probabilities.

Everything stays in log space, so that finite logits of any size give finite values and gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

# Stands for log 0: its exponential is 0, and 0 times it is 0 rather than NaN.
_LOG_ZERO = -1e30


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half-precision numbers as float32, others as they are: sums of probabilities need the digits.

    >>> at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def log_complement(log_p: Tensor) -> Tensor:
    """log(1 − p_c) of every class, from the log-probabilities of at least two classes.

        log(1 − p_c) = log Σ_{j≠c} p_j

    Only the likeliest class can have p > ½, where 1 − p loses digits; it alone is summed over the others.

    Shapes: [.., c] -> [.., c]

    >>> log_complement(torch.tensor([0.9, 0.1]).log()).exp()
    tensor([0.1000, 0.9000])
    >>> log_complement(torch.tensor([0.0, -1000.0]))[0].item()
    -1000.0
    """
    top = log_p.argmax(-1, keepdim=True)
    # All others are at most 1/2, where log1p(-p) loses no digits.
    others = log_p.scatter(-1, top, -torch.inf)
    return torch.log1p(-others.exp()).scatter(-1, top, others.logsumexp(-1, keepdim=True))


def chain_log_probabilities(answers: Tensor) -> Tensor:
    """Log-probabilities of where a chain of questions ends; answer k is the logit of "further than k", once there.

        log p_k = Σ_{j<k} log σ(z_j) + log(1 − σ(z_k)),   without the last term for the end of the chain

    Shapes: [.., k] -> [.., k + 1]

    >>> chain_log_probabilities(torch.zeros(2)).exp()
    tensor([0.5000, 0.2500, 0.2500])
    """
    certain = answers.new_zeros((*answers.shape[:-1], 1))
    reached = torch.cat([certain, logsigmoid(answers).cumsum(-1)], dim=-1)
    return reached + torch.cat([logsigmoid(-answers), certain], dim=-1)


def group_logsumexp(log_p: Tensor, sizes: Sequence[int]) -> Tensor:
    """Log-probability of groups of neighboring classes, log Σ_{c in g} p_c; a hierarchy lists classes by group.

    Shapes: [.., sum(sizes)] -> [.., len(sizes)]

    >>> group_logsumexp(torch.tensor([0.1, 0.2, 0.7]).log(), [2, 1]).exp()
    tensor([0.3000, 0.7000])
    """
    return torch.stack([group.logsumexp(-1) for group in torch.split(log_p, list(sizes), dim=-1)], dim=-1)


def group_log_softmax(logits: Tensor, sizes: Sequence[int]) -> Tensor:
    """Log-probabilities of groups of neighboring classes: log Σ_{c in g} softmax(z)_c.

    Shapes: [.., sum(sizes)] -> [.., len(sizes)]

    >>> group_log_softmax(torch.tensor([0.1, 0.2, 0.7]).log(), [2, 1]).exp()
    tensor([0.3000, 0.7000])
    """
    # The largest logit is taken off first: float32 has no digits left for log-sums near 1e4.
    shifted = logits - logits.detach().amax(-1, keepdim=True)
    return group_logsumexp(shifted, sizes).log_softmax(-1)


def divergences_to_mean(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """KL(p ‖ m) and KL(q ‖ m) with m = ½(p + q), natural log, each between 0 and ln 2.

    Shapes: [.., c], [.., c] -> [..], [..]

    >>> both = divergences_to_mean(torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log())
    >>> [round(value.item(), 4) for value in both]
    [0.6931, 0.6931]
    """
    log_p, log_q = log_p.clamp_min(_LOG_ZERO), log_q.clamp_min(_LOG_ZERO)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    return (log_p.exp() * (log_p - log_m)).sum(-1), (log_q.exp() * (log_q - log_m)).sum(-1)


def js_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Jensen-Shannon divergence from log-probabilities, natural log, between 0 and ln 2.

        JS(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m),   m = ½(p + q)

    Shapes: [.., c], [.., c] -> [..]

    >>> p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    >>> round(js_divergence(p.log(), q.log()).item(), 6)
    0.125101
    """
    from_p, from_q = divergences_to_mean(log_p, log_q)
    return 0.5 * (from_p + from_q)


def index_distance(count: int, like: Tensor) -> Tensor:
    """|t − r| for all pairs of `count` class indices, [count, count], in the dtype and on the device of `like`.

    >>> index_distance(3, torch.zeros(1))
    tensor([[0., 1., 2.],
            [1., 0., 1.],
            [2., 1., 0.]])
    """
    index = torch.arange(count, dtype=like.dtype, device=like.device)
    return (index[:, None] - index).abs()
