"""g(S) Y of the pseudo-inverse (see `pseudo_inverse`) with a cheap backward pass, through one eigendecomposition.

With S = V diag(l) V^T the recurrence acts on eigenvalues alone: r_0 = l and, K times,

    q = 1/4 (13 - 15 r + 7 r^2 - r^3),   g <- g q,   r <- r q,        g(S) Y = V diag(g) V^T Y.

The derivative of g(S) is the matrix of divided differences g[i, j] = (g(l_i) - g(l_j)) / (l_i - l_j) in the basis V:

    grad S = V (g[i, j] * (V^T grad)(V^T Y)^T) V^T,        g[i, i] = g'(l_i).

Differences of close eigenvalues would cancel, so they are never taken: divided differences follow a product rule,
(a b)[i, j] = a_i b[i, j] + a[i, j] b_j, and start from l[i, j] = 1. An error e in a small eigenvalue changes g by up
to g^2 e, so the decomposition has to be more exact than float32 (see `deflated_eigh`).

With the recurrence of `pseudo_inverse` instead a step of TransMIL takes 35, 25 and 9 % longer at n = 500, 2,000 and
8,000, with the plain recurrence 83, 70 and 19 % (one thread, processor time, interleaved).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pams_mil.devices import CoreTeam
from pams_mil.models.core.precision import without_autocast
from pams_mil.models.kernels.deflated_eigh import deflated_eigh
from pams_mil.models.kernels.switch import twin_gradients

_CORES = CoreTeam()


def plain_inverse_factor(s: Tensor, y: Tensor, steps: int) -> Tensor:
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
        pairs = _CORES.map(deflated_eigh, s.detach().unbind())
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
            return twin_gradients(plain_inverse_factor, (s, y, ctx.steps), (grad,))
        turned = rows @ grad
        inner = torch.bmm(turned, rotated.mT).mul_(divided_differences(values, ctx.steps))
        # Every change of S is symmetric, so only the symmetric part of its gradient counts.
        half = rows.mT @ inner @ rows
        return (half + half.mT) / 2, rows.mT @ (g[..., None] * turned), None


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
