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
    def forward(ctx: Any, s: Tensor, y: Tensor, steps: int) -> Tensor:
        saved: list[Tensor] = []
        r = s
        for _ in range(steps - 1):
            p, q = r @ y, r @ r
            saved += [r, q, y, p]
            y = torch.baddbmm(13 * y - 15 * p, q, 7 * y - p, beta=0.25, alpha=0.25)
            r = torch.baddbmm(13 * r - 15 * q, q, 7 * r - q, beta=0.25, alpha=0.25)
        # The last power is needed only times Y, which is narrow.
        p = r @ y
        rp = r @ p
        ctx.save_for_backward(*saved, r, y, p, rp)
        return torch.baddbmm(13 * y - 15 * p + 7 * rp, r, rp, beta=0.25, alpha=-0.25)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        *saved, r, y, p, rp = ctx.saved_tensors
        grad = grad / 4
        # Y' = 13 Y - 15 RY + 7 R(RY) - R(R(RY)), all over 4
        grad_rp = 7 * grad - r @ grad
        grad_p = r @ grad_rp - 15 * grad
        grad_r = grad_p @ y.mT + grad_rp @ p.mT - grad @ rp.mT
        grad_y = 13 * grad + r @ grad_p
        grad_r = _symmetric(grad_r)
        for start in range(len(saved) - 4, -1, -4):
            r, q, y, p = saved[start : start + 4]
            grad_r, grad_y = _step_backward(r, q, y, p, grad_r / 4, grad_y / 4)
        return grad_r, grad_y, None


def _step_backward(r: Tensor, q: Tensor, y: Tensor, p: Tensor, grad_r: Tensor, grad_y: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of (R, Y) from those of 4 (R', Y'); `grad_r` is symmetric, which halves the products."""
    narrow = q @ grad_y
    grad_p = -15 * grad_y - narrow
    wide = q @ grad_r
    grad_q = torch.baddbmm(-15 * grad_r - wide, grad_r, 7 * r - q)
    grad_q.baddbmm_(grad_y, (7 * y - p).mT)
    from_q = torch.bmm(r, _symmetric(grad_q))
    mixed = torch.baddbmm(7 * wide + 2 * from_q, grad_p, y.mT)
    return _symmetric(mixed) + 13 * grad_r, torch.baddbmm(13 * grad_y + 7 * narrow, r, grad_p)


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2
