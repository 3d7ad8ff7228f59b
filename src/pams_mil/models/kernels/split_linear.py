"""One linear map whose outputs are wanted apart, as the queries, keys and values of attention are.

    y_p = x W_p^T  for the parts W_p of W,      dL/dx = sum_p g_p W_p,      dL/dW_p = g_p^T x

Autograd would put the g_p side by side first, or, with one product per part, take every summand of dL/dx to memory of
its own; here each is added where the sum is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pams_mil.models.core.precision import without_autocast
from pams_mil.models.kernels.switch import by_hand


def split_linear(x: Tensor, weight: Tensor, parts: int) -> tuple[Tensor, ...]:
    """[n, e] and W [p * f, e] -> p times [n, f].

    >>> [part.tolist() for part in split_linear(torch.ones(1, 2), torch.tensor([[1.0, 1.0], [2.0, 0.0]]), 2)]
    [[[2.0]], [[2.0]]]
    """
    if not by_hand(weight):
        return tuple(functional.linear(x, part) for part in weight.chunk(parts))
    outputs: tuple[Tensor, ...] = _SplitLinear.apply(x, weight, parts)  # type: ignore[no-untyped-call]
    return outputs


class _SplitLinear(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(ctx: Any, x: Tensor, weight: Tensor, parts: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        return tuple(torch.mm(x, part.T) for part in weight.chunk(parts))

    @staticmethod
    @without_autocast
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad_x, grad_weight = torch.empty_like(x), torch.empty_like(weight)
        places = zip(grads, weight.chunk(len(grads)), grad_weight.chunk(len(grads)), strict=True)
        for number, (grad, part, grad_part) in enumerate(places):
            torch.mm(grad.T, x, out=grad_part)
            grad_x.addmm_(grad, part, beta=min(number, 1))
        return grad_x, grad_weight, None
