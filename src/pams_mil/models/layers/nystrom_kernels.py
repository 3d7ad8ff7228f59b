"""The iterative pseudo-inverse of Nystrom attention, applied to a narrow matrix without forming it.

The published recurrence starts at Z_0 = A^T / c and repeats

    Z <- 1/4 Z (13 I - A Z (15 I - A Z (7 I - A Z)))

Every A Z_k is a polynomial in the symmetric S = A A^T / c: with R_0 = S and R_{k+1} = R_k q(R_k),
q(R) = 1/4 (13 I - 15 R + 7 R^2 - R^3), one has A Z_k = R_k and Z_K = (A^T / c) g(S), g(S) the product of all q(R_k).

Training on a CPU goes through an eigendecomposition, whose backward pass takes two products in all. With
S = V diag(l) V^T the recurrence acts on eigenvalues alone, and g(S) Y = V diag(g(l)) V^T Y. The derivative of g(S) is
the matrix of divided differences g[i, j] = (g(l_i) - g(l_j)) / (l_i - l_j) in the basis V:

    grad S = V (g[i, j] * (V^T grad)(V^T Y)^T) V^T,        g[i, i] = g'(l_i).

Differences of close eigenvalues would cancel, so they are never taken: divided differences follow a product rule,
(a b)[i, j] = a_i b[i, j] + a[i, j] b_j, and start from l[i, j] = 1. An error e in a small eigenvalue changes g by up
to g^2 e, so the decomposition is in double precision.

With the recurrence instead a step of TransMIL takes 83, 70 and 19 % longer at n = 500, 2,000 and 8,000 than with a
decomposition in mixed precision, which was 6, 8 and 2 % faster than this one and is gone (one thread, processor time,
interleaved).

One row of Nystrom attention, for the class token: p_j = sum_i u_i softmax_j(q_i . k_j).

u [h, m] is the class token's row A1 Z over the landmarks, q [h, m, d] the (scaled) landmark queries, k the
keys of all n tokens. The wide softmax A [h, m, n] is walked in blocks of tokens that stay in cache, as

    A_ij = share_i exp(q_i . k_j - top_i),      top_i the largest of the block, share_i = exp(top_i) / sum of all

The exponentials are computed again whenever they are needed, so memory stays linear in n with a small constant.

    backward: with g = dL/dp,  du_i = sum_j A_ij g_j,  dS_ij = u_i A_ij (g_j - du_i)

It is here for memory, and for large bags alone. With its reference a step of TransMIL needs 1.2 times as much memory
at n = 8,000 and 1.6 times at 30,000 (1,659 MB instead of 1,024, by how much the resident size of a fresh process
rises), and prediction 1.5 and 1.3 times. In smaller bags the whole softmax costs little, and computing exponentials
again would cost 4 and 7 % of a step at n = 500 and 2,000.

Depthwise convolution of values along the token axis, one kernel per head, as banded matrix products.

    out[i, h, :] = sum_t w[h, t] v[i + t - K // 2, h, :],  v = 0 outside the sequence

Blocks of T tokens are a [T, T + K - 1] band matrix times a window of T + K - 1 tokens. Both gradients are
products of the same kind. This is faster on a CPU than a general convolution, works on the row layout of the
tokens without a copy per head, and its weight gradient is accurate: in torch 2.13 that of conv2d with a
33 x 1 kernel was measured to be off by 2 % in float32 for sequences of 2,026 tokens.

With its reference instead a step of TransMIL takes 55, 79 and 99 % longer at n = 500, 2,000 and 8,000 (one
thread, processor time, interleaved, D = 384).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pams_mil.models.core.devices import CoreTeam
from pams_mil.models.core.switch import kernels_on, reference_gradients, without_autocast

_CORES = CoreTeam()


def inverse_factor(s: Tensor, y: Tensor, *, steps: int = 6) -> Tensor:
    """g(S) Y for symmetric S [b, m, m] and Y [b, m, w].

    With one step and m = 1: g(s) = (13 - 15 s + 7 s^2 - s^3) / 4.

    >>> inverse_factor(torch.ones(1, 1, 1), torch.ones(1, 1, 1), steps=1).item()
    1.0
    """
    if steps == 0:
        return y
    if not kernels_on() or not _decomposes(s):
        return reference_inverse_factor(s, y, steps)
    result: Tensor = EigenFactor.apply(s, y, steps)  # type: ignore[no-untyped-call]
    return result


def _decomposes(s: Tensor) -> bool:
    """Whether a gradient will be asked for, on a device and of a matrix for which eigenvalues are quick to find."""
    # A decomposition pays in the backward pass. Of NaN the recurrence makes NaN, where an eigensolver raises an error.
    trains = torch.is_grad_enabled() and s.requires_grad
    # entries are at least 0 and at most about 1: their sum is finite when they are
    return trains and s.device.type == "cpu" and math.isfinite(s.detach().sum().item())


def pseudo_inverse_apply(a: Tensor, c: Tensor, y: Tensor, *, steps: int = 6, transpose: bool = False) -> Tensor:
    """Z Y, or Z^T Y, for the iterate Z after `steps` steps from A^T / c.

    A matrix whose columns sum to 1 and that is its own inverse:

    >>> a = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    >>> pseudo_inverse_apply(a, torch.ones(()), torch.tensor([[[3.0], [5.0]]])).flatten().tolist()
    [5.0, 3.0]

    Args:
        a: A, [b, m, m]
        c: positive scale of the start, a scalar or [b, 1, 1].
        y: Y, [b, m, w]
        steps: number of steps.
        transpose: apply Z^T = (1 / c) g(S) A instead.
    """
    # Z = (A^T / c) g(S): one root of 1 / c goes with A, which makes S = root root^T, the other comes last.
    root = a * c.rsqrt()
    turned = root.transpose(-1, -2)  # not `mT`, which an ONNX graph does not have
    s = root @ turned
    if transpose:
        return inverse_factor(s, root @ y, steps=steps) * c.rsqrt()
    return turned @ inverse_factor(s, y, steps=steps) * c.rsqrt()


def reference_inverse_factor(s: Tensor, y: Tensor, steps: int) -> Tensor:
    """The same by the recurrence itself: 4 g = 13 I - 15 R + 7 R^2 - R^3 and R <- R g, once per step."""
    r = s
    for step in range(steps):
        p, square = r @ y, r @ r
        y = (13 * y - 15 * p + 7 * (r @ p) - square @ p) / 4
        if step < steps - 1:
            r = (13 * r - 15 * square + 7 * (square @ r) - square @ square) / 4
    return y


class EigenFactor(torch.autograd.Function):
    """g(S) Y for symmetric S [b, m, m] and Y [b, m, w], after a number of steps."""

    @staticmethod
    @without_autocast
    def forward(ctx: Any, s: Tensor, y: Tensor, steps: int) -> Tensor:
        """V diag(g) V^T Y."""
        # one matrix per core: all cores on one matrix of this size mostly wait for each other
        # detached: whether gradients are recorded is a setting of each thread, and the team's threads record
        pairs = _CORES.map(_decomposed, s.detach().unbind())
        values, rows = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        r, g = values, torch.ones_like(values)
        for _ in range(steps):
            q = _factor(r)
            r, g = r * q, g * q
        # `rows` is V^T, so this is V^T Y.
        rotated = rows @ y
        ctx.steps = steps
        ctx.save_for_backward(values, rows, rotated, g, s, y)
        return torch.bmm(rows.mT, g[..., None] * rotated)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """The gradients of S and Y."""
        values, rows, rotated, g, s, y = ctx.saved_tensors
        if torch.is_grad_enabled():
            return reference_gradients(reference_inverse_factor, (s, y, ctx.steps), (grad,))
        turned = rows @ grad
        inner = torch.bmm(turned, rotated.mT).mul_(divided_differences(values, ctx.steps))
        # Every change of S is symmetric, so only the symmetric part of its gradient counts.
        half = rows.mT @ inner @ rows
        return (half + half.mT) / 2, rows.mT @ (g[..., None] * turned), None


def _decomposed(s: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [m] and eigenvectors, the rows of [m, m], of a symmetric matrix."""
    values, columns = torch.linalg.eigh(s.double())
    return values.to(s.dtype), columns.mT.to(s.dtype)


def divided_differences(values: Tensor, steps: int) -> Tensor:
    """g[i, j] of all pairs of eigenvalues [b, m], [b, m, m].

    With one step g = q: between 0 and 1 it falls from 13/4 to 1.

    >>> divided_differences(torch.tensor([[0.0, 1.0]]), 1)[0, 0, 1].item()
    -2.25
    """
    r, g = values, torch.ones_like(values)
    dr = torch.ones(*values.shape, values.shape[-1], dtype=values.dtype, device=values.device)
    dg = torch.zeros_like(dr)
    for _ in range(steps):
        q = _factor(r)
        # dq = 1/4 dr (-15 + 7 (r_i + r_j) - (r_i^2 + r_i r_j + r_j^2))
        own = r * (7 - r)
        dq = torch.addcmul(own[..., :, None] + (own - 15)[..., None, :], r[..., :, None], r[..., None, :], value=-1)
        dq.mul_(dr).mul_(1 / 4)
        # The product rule, (g q)[i, j] = g_i q[i, j] + g[i, j] q_j, and the same for r q. It needs r and g as they were
        # before this step, so they move on last.
        dg.mul_(q[..., None, :]).addcmul_(dq, g[..., :, None])
        dr.mul_(q[..., None, :]).addcmul_(dq, r[..., :, None])
        r, g = r * q, g * q
    return dg


def _factor(r: Tensor) -> Tensor:
    return (13 - r * (15 - r * (7 - r))) / 4


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


CONV_TOKENS = 32


def value_conv(values: Tensor, weight: Tensor) -> Tensor:
    """[n, h, d] and kernels [h, K], K odd -> [n, h, d].

    >>> value_conv(torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1), torch.tensor([[1.0, 0.0, 10.0]])).flatten().tolist()
    [20.0, 31.0, 2.0]
    """
    weight = weight.to(values.dtype)
    if not kernels_on():
        return reference_value_conv(values, weight)
    convolved: Tensor = _ValueConv.apply(values, weight)  # type: ignore[no-untyped-call]
    return convolved


def reference_value_conv(values: Tensor, weight: Tensor) -> Tensor:
    """The same as one sum over the taps."""
    taps = weight.shape[1]
    padded = functional.pad(values, (0, 0, 0, 0, taps // 2, taps // 2))
    return torch.einsum("nhdk,hk->nhd", padded.unfold(0, taps, 1), weight)


def _padded(values: Tensor, taps: int) -> Tensor:
    """Values with K // 2 rows of zeros around them, and more behind until blocks of T are full."""
    padded = functional.pad(values, (0, 0, 0, 0, taps // 2, taps // 2 + -len(values) % CONV_TOKENS))
    return padded.contiguous()  # where nothing is to be added, `pad` keeps the strides of the values


def _windows(padded: Tensor, taps: int) -> Tensor:
    """Overlapping windows [blocks, T + K - 1, h, d] of padded values."""
    length, heads, width = padded.shape
    row = heads * width
    shape = ((length - taps + 1) // CONV_TOKENS, CONV_TOKENS + taps - 1, heads, width)
    # A window begins T rows after the one before and overlaps it by K - 1 rows: a view, nothing is copied.
    return padded.as_strided(shape, (CONV_TOKENS * row, row, width, 1))


def _bands(weight: Tensor) -> Tensor:
    """Band matrices [h, T, T + K - 1] with w[h] starting at the diagonal."""
    heads, taps = weight.shape
    bands = weight.new_zeros(heads, CONV_TOKENS, CONV_TOKENS + taps - 1)
    size = CONV_TOKENS * (CONV_TOKENS + taps - 1)
    # One row down and one column to the right are T + K numbers further, since a row has T + K - 1.
    diagonal = bands.as_strided((heads, CONV_TOKENS, taps), (size, CONV_TOKENS + taps, 1))
    diagonal.copy_(weight[:, None])
    return bands


def _convolve(padded: Tensor, weight: Tensor, n: int) -> Tensor:
    windows, bands = _windows(padded, weight.shape[1]), _bands(weight)
    out = padded.new_empty(len(windows), CONV_TOKENS, *padded.shape[1:])
    for head, band in enumerate(bands):
        out[:, :, head] = torch.matmul(band, windows[:, :, head])
    return out.flatten(0, 1)[:n]


class _ValueConv(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight)
        return _convolve(_padded(values, weight.shape[1]), weight, len(values))

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        values, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            return reference_gradients(reference_value_conv, (values, weight), (grad,))
        heads, taps = weight.shape
        windows, padded = _windows(_padded(values, taps), taps), _padded(grad, taps)
        # The gradient without its margins, but with the zeros that fill its last block.
        blocks = padded[taps // 2 : len(padded) - taps // 2].reshape(-1, CONV_TOKENS, *padded.shape[1:])
        grad_weight = torch.empty_like(weight)
        for head in range(heads):
            # [T, T + K - 1]: entry [i, i + t] pairs output i with the value under tap t; dw_t is their sum.
            products = torch.bmm(blocks[:, :, head], windows[:, :, head].mT).sum(0)
            diagonals = products.as_strided((CONV_TOKENS, taps), (CONV_TOKENS + taps, 1))
            grad_weight[head] = diagonals.sum(0)
        # A value reaches outputs on either side by the mirrored taps.
        return _convolve(padded, weight.flip(1), len(grad)), grad_weight
