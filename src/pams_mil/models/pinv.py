"""The iterative pseudo-inverse of Nystrom attention, applied to a narrow matrix without forming it.

The published recurrence starts at Z_0 = A^T / c and repeats

    Z <- 1/4 Z (13 I - A Z (15 I - A Z (7 I - A Z)))

Every A Z_k is a polynomial in the symmetric S = A A^T / c. With R_0 = S, Q_k = R_k^2 and

    R_{k+1} = 1/4 (13 R_k - 15 Q_k + Q_k (7 R_k - Q_k))

one has A Z_k = R_k and Z_K = (A^T / c) g(S), where g(S) = prod_k 1/4 (13 I - 15 R_k + 7 R_k^2 - R_k^3). So g(S) Y
takes two products of square matrices per step instead of four and, because all of them are symmetric, three
instead of eight in the backward pass. In exact arithmetic it is the same function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pams_mil.models.precision import without_autocast


def inverse_factor(s: Tensor, y: Tensor, *, steps: int = 6) -> Tensor:
    """g(S) Y for symmetric S [b, m, m] and Y [b, m, w].

    With one step and m = 1: g(s) = (13 - 15 s + 7 s^2 - s^3) / 4.

    >>> inverse_factor(torch.ones(1, 1, 1), torch.ones(1, 1, 1), steps=1).item()
    1.0
    """
    if steps == 0:
        return y
    result: Tensor = _InverseFactor.apply(s, y, steps)  # type: ignore[no-untyped-call]
    return result


def pseudo_inverse_apply(a: Tensor, c: Tensor, y: Tensor, *, steps: int = 6, transpose: bool = False) -> Tensor:
    """Z Y, or Z^T Y, for the iterate Z after `steps` steps from A^T / c.

    Args:
        a: A, [b, m, m]
        c: positive scale of the start, a scalar or [b, 1, 1].
        y: Y, [b, m, w]
        steps: number of steps.
        transpose: apply Z^T = (1 / c) g(S) A instead.
    """
    root = a * c.rsqrt()
    s = root @ root.mT
    if transpose:
        return inverse_factor(s, root @ y, steps=steps) * c.rsqrt()
    return root.mT @ inverse_factor(s, y, steps=steps) * c.rsqrt()


class _InverseFactor(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(ctx: Any, s: Tensor, y: Tensor, steps: int) -> Tensor:
        saved: list[Tensor] = []
        r = s
        for _ in range(steps - 1):
            p, q = r @ y, r @ r
            t = torch.add(p, y, alpha=-7)
            saved += [r, q, y, t]
            y = torch.baddbmm(torch.add(y, p, alpha=-15 / 13), q, t, beta=13 / 4, alpha=-1 / 4)
            r = torch.baddbmm(torch.add(r, q, alpha=-15 / 13), q, torch.add(q, r, alpha=-7), beta=13 / 4, alpha=-1 / 4)
        # The last power is needed only times Y, which is narrow.
        p = r @ y
        rp = r @ p
        ctx.save_for_backward(*saved, r, y, p, rp)
        return torch.baddbmm(13 * y - 15 * p + 7 * rp, r, rp, beta=1 / 4, alpha=-1 / 4)

    @staticmethod
    @without_autocast
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        *saved, r, y, p, rp = ctx.saved_tensors
        # 4 Y' = 13 Y - 15 RY + 7 R(RY) - R(R(RY))
        grad = grad / 4
        grad_rp = 7 * grad - r @ grad
        grad_p = r @ grad_rp - 15 * grad
        half = torch.cat([grad_p, grad_rp, -grad], -1) @ torch.cat([y, p, rp], -1).mT
        grad_y = torch.baddbmm(grad, r, grad_p, beta=13)
        for start in range(len(saved) - 4, -1, -4):
            r, q, y, t = saved[start : start + 4]
            half, grad_y = _step_backward(r, q, y, t, (half + half.mT) / 8, grad_y / 4)
        return (half + half.mT) / 2, grad_y, None


def _step_backward(r: Tensor, q: Tensor, y: Tensor, t: Tensor, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """From X, the symmetric gradient of 4 R', and G, that of 4 Y', to a matrix K and the gradient of Y.

    The gradient of R is (K + K^T) / 2. For 4 R' = 13 R - 15 R^2 + 7 R^3 - R^4 it takes two products,

        K/2 = 13/2 X - 11/4 XR + N (7/2 R - Q),  N = XR + (XR)^T - 7/2 X,

    since (XR, RXR, XR^2, RXR^2, XR^3) then get their factors (-15, 7/2, 7, -1, -1), up to transposition. From
    4 Y' = 13 Y - 15 RY - Q t, with t = RY - 7 Y, come only outer products of narrow matrices.
    """
    width = g.shape[-1]
    xr = torch.bmm(x, r)
    n = torch.add(xr + xr.mT, x, alpha=-3.5)
    k = torch.add(13 * x, xr, alpha=-5.5).baddbmm_(n, torch.add(q, r, alpha=-3.5), alpha=-2)
    rg_rt = torch.bmm(r, torch.cat([g, t], -1))
    rg, rt = rg_rt[..., :width], rg_rt[..., width:]
    qg = torch.bmm(q, g)
    k.baddbmm_(torch.cat([rg, g, torch.add(qg, g, alpha=15)], -1), torch.cat([t, rt, y], -1).mT, alpha=-1)
    # G (13 - 15 R + 7 Q - RQ), in factors that are at hand
    grad_y = torch.baddbmm(torch.add(13 * g - 15 * rg, qg, alpha=7), r, qg, alpha=-1)
    return k, grad_y
