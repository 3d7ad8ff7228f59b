"""Projection and gated attention pooling as one function, for training on a CPU: few large temporaries, few passes.

    h = ReLU(x W^T + b),  t = tanh(h V^T + v),  u = sigmoid(h U^T + v'),  a = (t * u) w + c
    alpha = softmax of a within each group [g, n],  f = alpha h

With F = dL/df and A = dL/da, everything but a is differentiated by hand:

    da = A + sum_g alpha_g * (F_g h^T - <alpha_g, F_g h^T>)
    dt = da w u (1 - t^2),   du = da w t u (1 - u)
    dh = (dt V + du U + alpha^T F) where h > 0,      dW = dh^T x

Autograd would hold each of the three summands of dh, and their sum before and after the ReLU, in fresh memory of
the size of the bag; here they share one. Elsewhere (GPU, autocast) autograd does it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pams_mil.models.attention_pool import AttentionScores, spread_scores
from pams_mil.models.by_hand import by_hand
from pams_mil.models.precision import without_autocast
from pams_mil.models.projection import Projection


def pools_leanly(scores: AttentionScores) -> bool:
    """Whether `lean_pool` applies: a gradient is wanted, on a CPU, of gated attention without dropout."""
    plain = scores.gated and not (scores.training and scores.dropout.p)
    return plain and torch.is_grad_enabled() and by_hand(scores.inner.weight)


def lean_pool(
    features: Tensor, projection: Projection, scores: AttentionScores, groups: Tensor | None, count: int
) -> tuple[Tensor, Tensor]:
    """Pooled vectors [r * g, e] and scores [n] of a bag [n, d]; groups as in `spread_scores`."""
    pooled, found = _LeanPool.apply(  # type: ignore[no-untyped-call]
        features.to(projection.weight.dtype),
        projection.weight,
        projection.bias,
        scores.inner.weight,
        scores.inner.bias,
        scores.outer.weight,
        scores.outer.bias,
        groups,
        count,
    )
    return pooled, found


class _LeanPool(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, inner: Tensor, inner_bias: Tensor, outer: Tensor,
        outer_bias: Tensor, groups: Tensor | None, count: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        h = (torch.mm(x, w.T) if b is None else torch.addmm(b, x, w.T)).relu_()
        gates = torch.addmm(inner_bias, h, inner.T)
        t, u = gates.chunk(2, dim=1)
        scores = torch.mv(t.tanh_() * u.sigmoid_(), outer[0]) + outer_bias
        alpha = spread_scores(scores, groups, count).softmax(-1)
        ctx.save_for_backward(x, w, inner, outer, h, gates, alpha)
        ctx.has_bias = b is not None
        return alpha @ h, scores

    @staticmethod
    @without_autocast
    @once_differentiable
    def backward(ctx: Any, grad_pooled: Tensor, grad_scores: Tensor) -> tuple[Tensor | None, ...]:
        x, w, inner, outer, h, gates, alpha = ctx.saved_tensors
        t, u = gates.chunk(2, dim=1)
        grad_alpha = grad_pooled @ h.T
        grad_a = grad_scores + (alpha * (grad_alpha - (alpha * grad_alpha).sum(-1, keepdim=True))).sum(0)
        both, grad_both = t * u, grad_a[:, None] * outer
        grad_gates = torch.empty_like(gates)
        grad_t, grad_u = grad_gates.chunk(2, dim=1)
        torch.mul(grad_both, u, out=grad_t).addcmul_(grad_t, t * t, value=-1)
        torch.mul(grad_both, both, out=grad_u).addcmul_(grad_u, u, value=-1)
        grad_h = torch.mm(grad_gates, inner).addmm_(alpha.T, grad_pooled)
        torch.ops.aten.threshold_backward.grad_input(grad_h, h, 0, grad_input=grad_h)
        return (
            grad_h @ w if ctx.needs_input_grad[0] else None,
            grad_h.T @ x,
            grad_h.sum(0) if ctx.has_bias else None,
            grad_gates.T @ h,
            grad_gates.sum(0),
            grad_a[None] @ both,
            grad_a.sum()[None],
            None,
            None,
        )
