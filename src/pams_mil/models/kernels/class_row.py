"""One row of Nystrom attention, for the class token: p_j = sum_i u_i softmax_j(q_i . k_j).

u [h, m] is the class token's row A1 Z over the landmarks, q [h, m, d] the (scaled) landmark queries, k the
keys of all n tokens. The wide softmax A [h, m, n] is walked in blocks of tokens that stay in cache, as

    A_ij = share_i exp(q_i . k_j - top_i),      top_i the largest of the block, share_i = exp(top_i) / sum of all

The exponentials are computed again whenever they are needed, so memory stays linear in n with a small constant.

    backward: with g = dL/dp,  du_i = sum_j A_ij g_j,  dS_ij = u_i A_ij (g_j - du_i)

It is here for memory, and for large bags alone. With its reference a step of TransMIL needs 1.2 times as much memory
at n = 8,000 and 1.6 times at 30,000 (1,659 MB instead of 1,024, by how much the resident size of a fresh process
rises), and prediction 1.5 and 1.3 times. In smaller bags the whole softmax costs little, and computing exponentials
again would cost 4 and 7 % of a step at n = 500 and 2,000.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pams_mil.models.core.precision import without_autocast
from pams_mil.models.kernels.switch import kernels_on, reference_gradients

BLOCK_TOKENS = 256
FEWEST_ENTRIES = 2**23
"""Of a softmax (32 MiB in float32) that is walked in blocks; a smaller one is left to the reference."""


def class_row(u: Tensor, queries: Tensor, keys: Tensor, *, zeros: int = 0) -> Tensor:
    """The row p, [h, n].

    >>> class_row(torch.ones(1, 2), torch.zeros(1, 2, 3), torch.zeros(4, 1, 3)).tolist()
    [[0.5, 0.5, 0.5, 0.5]]

    Args:
        u: [h, m]
        queries: [h, m, d]
        keys: [n, h, d]
        zeros: number of further tokens with key 0, which share in the softmax but are not returned.
    """
    if u.numel() * len(keys) < FEWEST_ENTRIES or not kernels_on():
        return reference_class_row(u, queries, keys, zeros)
    row: Tensor = _ClassRow.apply(u, queries, keys, zeros)  # type: ignore[no-untyped-call]
    return row


def reference_class_row(u: Tensor, queries: Tensor, keys: Tensor, zeros: int) -> Tensor:
    """The same with the whole softmax [h, m, n] in memory; one more column stands for all keys that are 0."""
    with torch.autocast(u.device.type, enabled=False):
        logits = torch.bmm(queries, keys.permute(1, 2, 0))
        if zeros:
            # exp(log(zeros)) is the sum of as many exp(0).
            logits = torch.cat([logits, torch.full_like(logits[..., :1], math.log(zeros))], -1)
        return torch.bmm(u[:, None], logits.softmax(-1)[..., : len(keys)]).squeeze(1)


def _blocks(count: int) -> list[slice]:
    return [slice(start, start + BLOCK_TOKENS) for start in range(0, count, BLOCK_TOKENS)]


def _logits(queries: Tensor, keys: Tensor, block: slice) -> Tensor:
    return torch.bmm(queries, keys[block].permute(1, 2, 0))


def _weights(queries: Tensor, keys: Tensor, block: slice, top: Tensor) -> Tensor:
    """The exponentials of a block, at most 1."""
    return _logits(queries, keys, block).sub_(top).exp_()


def _shares(tops: Tensor, totals: Tensor) -> Tensor:
    """What the exponentials of every block are multiplied by, given their largest logit and their sum.

    All are [blocks, h, m, 1].
    """
    # Relative to the largest of all blocks: no exponential overflows, and those that vanish add nothing anyway.
    shrunk = (tops - tops.amax(0)).exp_()
    return shrunk / (shrunk * totals).sum(0)


class _ClassRow(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(ctx: Any, u: Tensor, queries: Tensor, keys: Tensor, zeros: int) -> Tensor:
        # First pass: every weight is divided by a sum over all blocks, so the sums come before any row of weights.
        tops, totals = [], []
        for block in _blocks(len(keys)):
            logits = _logits(queries, keys, block)
            tops.append(logits.amax(-1, keepdim=True))
            totals.append(logits.sub_(tops[-1]).exp_().sum(-1, keepdim=True))
        if zeros:
            # One more block for the zero keys, of logit 0: it counts in the shares and has no row in the result.
            tops.append(torch.zeros_like(tops[0]))
            totals.append(torch.full_like(tops[0], zeros))
        shares = _shares(torch.stack(tops), torch.stack(totals))
        # Second pass: the exponentials again, [h, 1, m] times [h, m, block], written where they belong.
        row = u.new_empty(len(u), len(keys))
        for index, block in enumerate(_blocks(len(keys))):
            weights = _weights(queries, keys, block, tops[index])
            torch.bmm((u[..., None] * shares[index]).mT, weights, out=row[:, None, block])
        ctx.zeros = zeros
        # Largest logits and shares are two numbers per landmark and block; the weights would be one per token.
        ctx.save_for_backward(u, queries, keys, torch.stack(tops), shares)
        return row

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        u, queries, keys, tops, shares = ctx.saved_tensors
        # Only with create_graph: the gradient will be differentiated, and what follows leaves no graph.
        if torch.is_grad_enabled():
            return reference_gradients(reference_class_row, (u, queries, keys, ctx.zeros), (grad,))
        blocks = _blocks(len(keys))
        # dS of any block needs the whole du, so du has a pass of its own.
        grad_u = torch.zeros_like(u)[..., None]
        for index, block in enumerate(blocks):
            weights = _weights(queries, keys, block, tops[index])
            grad_u.addcmul_(shares[index], torch.bmm(weights, grad[:, block, None]))
        scaled = u[..., None] * queries
        grad_q, grad_k = torch.zeros_like(queries), torch.empty_like(keys)
        for index, block in enumerate(blocks):
            # dS without the factors u and share, which go with the narrow matrices: [h, m, d] instead of [h, m, block].
            slope = (grad[:, None, block] - grad_u).mul_(_weights(queries, keys, block, tops[index]))
            grad_q.addcmul_(shares[index], torch.bmm(slope, keys[block].transpose(0, 1)))
            grad_k[block] = torch.bmm(slope.mT, scaled * shares[index]).transpose(0, 1)
        return grad_u.squeeze(-1), grad_q * u[..., None], grad_k, None
