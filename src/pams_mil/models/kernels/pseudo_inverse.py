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
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pams_mil.devices import CoreTeam
from pams_mil.models.core.precision import without_autocast
from pams_mil.models.kernels.switch import kernels_on, reference_gradients

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

    Args:
        a: A, [b, m, m]
        c: positive scale of the start, a scalar or [b, 1, 1].
        y: Y, [b, m, w]
        steps: number of steps.
        transpose: apply Z^T = (1 / c) g(S) A instead.
    """
    # Z = (A^T / c) g(S): one root of 1 / c goes with A, which makes S = root root^T, the other comes last.
    root = a * c.rsqrt()
    s = root @ root.mT
    if transpose:
        return inverse_factor(s, root @ y, steps=steps) * c.rsqrt()
    return root.mT @ inverse_factor(s, y, steps=steps) * c.rsqrt()


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
