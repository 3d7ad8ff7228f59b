"""The iterative pseudo-inverse of Nystrom attention, applied to a narrow matrix without forming it.

The published recurrence starts at Z_0 = A^T / c and repeats

    Z <- 1/4 Z (13 I - A Z (15 I - A Z (7 I - A Z)))

Every A Z_k is a polynomial in the symmetric S = A A^T / c. With R_0 = S, U_k = R_k^2 - 7/2 R_k and

    R_{k+1} = 1/4 (13 R - 15 R^2 + 7 R^3 - R^4) = 1/4 (27/8 R_k - 11/4 U_k - U_k^2)

one has A Z_k = R_k and Z_K = (A^T / c) g(S), where g(S) is the product over k of

    1/4 (13 I - 15 R + 7 R^2 - R^3) = 1/4 (13 I - 11/4 R_k - U_k (R_k - 7/2 I)).

So g(S) Y takes two products of square matrices per step instead of four and, because all of them are symmetric,
two instead of eight in the backward pass. Training on a CPU goes through an eigendecomposition instead (see
`pseudo_inverse_eigen`), whose backward pass takes two products in all. In exact arithmetic it is all the same function.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pams_mil.models.core.precision import without_autocast
from pams_mil.models.kernels.pseudo_inverse_eigen import EigenFactor, plain_inverse_factor
from pams_mil.models.kernels.switch import kernels_on, twin_gradients


def inverse_factor(s: Tensor, y: Tensor, *, steps: int = 6) -> Tensor:
    """g(S) Y for symmetric S [b, m, m] and Y [b, m, w].

    With one step and m = 1: g(s) = (13 - 15 s + 7 s^2 - s^3) / 4.

    >>> inverse_factor(torch.ones(1, 1, 1), torch.ones(1, 1, 1), steps=1).item()
    1.0
    """
    if steps == 0:
        return y
    if not kernels_on():
        return plain_inverse_factor(s, y, steps)
    kind = EigenFactor if _decomposes(s) else _InverseFactor
    result: Tensor = kind.apply(s, y, steps)  # type: ignore[no-untyped-call]
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


class _InverseFactor(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(ctx: Any, s: Tensor, y: Tensor, steps: int) -> Tensor:
        saved: list[Tensor] = []
        r, given = s, y
        for _ in range(steps - 1):
            u, p = torch.bmm(r, r).sub_(r, alpha=7 / 2), r @ y
            t = torch.add(p, y, alpha=-7 / 2)
            if any(ctx.needs_input_grad):
                saved += [r, u, y, t]
            # U t = (R^2 - 7/2 R)(R - 7/2) Y = (R^3 - 7 R^2 + 49/4 R) Y. So 13 - 15 R + 7 R^2 - R^3 is
            # 13 - (15 - 49/4) R - U (R - 7/2), where 15 - 49/4 = 11/4. Over 4, with 13/4 taken out of the first two
            # terms, which `beta` puts back: (11/4) / 13 = 11/52.
            y = torch.add(y, p, alpha=-11 / 52).baddbmm_(u, t, beta=13 / 4, alpha=-1 / 4)
            # U^2 = R^4 - 7 R^3 + 49/4 R^2. So 13 R - 15 R^2 + 7 R^3 - R^4 is 13 R - 11/4 R^2 - U^2, and with
            # R^2 = U + 7/2 R it is (13 - 77/8) R - 11/4 U - U^2, where 13 - 77/8 = 27/8. Over 4, with 27/32 taken out:
            # (11/4) / (27/8) = 22/27.
            r = torch.add(r, u, alpha=-22 / 27).baddbmm_(u, u, beta=27 / 32, alpha=-1 / 4)
        # The last power is needed only times Y, which is narrow.
        p = r @ y
        rp = r @ p
        ctx.steps = steps
        ctx.save_for_backward(*saved, r, y, p, rp, s, given)
        return torch.baddbmm(13 * y - 15 * p + 7 * rp, r, rp, beta=1 / 4, alpha=-1 / 4)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        *saved, r, y, p, rp, s, given = ctx.saved_tensors
        if torch.is_grad_enabled():
            return twin_gradients(plain_inverse_factor, (s, given, ctx.steps), (grad,))
        # The last step of the forward pass is the first one here; y, p = R y and rp = R p are narrow.
        # 4 Y' = 13 Y - 15 RY + 7 R(RY) - R(R(RY))
        grad = grad / 4
        grad_rp = 7 * grad - r @ grad
        grad_p = r @ grad_rp - 15 * grad
        # R occurs three times, as the factor of y, of p and of rp: three outer products, taken as one. Only the
        # symmetric part of `half` is the gradient of R, so it is made symmetric where it is used and not in between.
        half = torch.cat([grad_p, grad_rp, -grad], -1) @ torch.cat([y, p, rp], -1).mT
        grad_y = torch.baddbmm(grad, r, grad_p, beta=13)
        for start in range(len(saved) - 4, -1, -4):
            r, u, y, t = saved[start : start + 4]
            half, grad_y = _step_backward(r, u, y, t, half + half.mT, grad_y / 4)
        return (half + half.mT) / 2, grad_y, None


def _step_backward(r: Tensor, u: Tensor, y: Tensor, t: Tensor, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """From X, twice the symmetric gradient of R', and G, that of 4 Y', to a matrix K and the gradient of Y.

    The gradient of R is (K + K^T) / 2. For 4 R' = 13 R - 15 R^2 + 7 R^3 - R^4 it takes two products,

        8 K = 13 X - 11/2 XR - 2 N U,  N = XR + (XR)^T - 7/2 X,

    since (XR, RXR, XR^2, RXR^2, XR^3) then get (-30, 7, 14, -2, -2). From 4 Y' = 13 Y - 11/4 RY - U t, with
    t = RY - 7/2 Y, come only outer products of narrow matrices.

    How K comes about: the gradient of a power R^p is the sum of R^i X R^j over i + j = p - 1, so that

        8 (K + K^T) = 26 X - 30 (XR + RX) + 14 (XR^2 + RXR + R^2 X) - 2 (XR^3 + RXR^2 + R^2 XR + R^3 X)

    of which 8 K has one of each two transposed summands, and half of X and RXR. Written out with U = R^2 - 7/2 R,

        N U = XR^3 + RXR^2 - 7 XR^2 - 7/2 RXR + 49/4 XR

    which -2 times is all but 13 X and a rest of XR: -30 + 49/2 = -11/2.
    """
    width = g.shape[-1]
    xr = torch.bmm(x, r)
    n = torch.add(xr, x, alpha=-7 / 4)  # n + n^T = N
    # 8 K over 8, with 13/8 taken out of the first two terms: (11/2) / 13 = 11/26.
    k = torch.add(x, xr, alpha=-11 / 26).baddbmm_(n + n.mT, u, beta=13 / 8, alpha=-1 / 4)
    rg_rt = torch.bmm(r, torch.cat([g, t], -1))
    rg, rt = rg_rt[..., :width], rg_rt[..., width:]
    ug = torch.bmm(u, g)
    left = torch.cat([rg, g, torch.add(ug, g, alpha=11 / 4)], -1)
    k.baddbmm_(left, torch.cat([t, torch.add(rt, t, alpha=-7 / 2), y], -1).mT, alpha=-1)
    grad_y = torch.baddbmm(torch.add(13 * g - 11 / 4 * rg, ug, alpha=7 / 2), r, ug, alpha=-1)
    return k, grad_y
