"""Projection and gated attention pooling as one function, for training on a CPU: few large temporaries, few passes.

    h = ReLU(x W^T + b),  t = tanh(h V^T + v),  u = sigmoid(h U^T + v'),  a = (t * u) w + c
    alpha = softmax of a within each group [g, n],  f = alpha h

With F = dL/df and A = dL/da, everything but a is differentiated by hand:

    da = A + sum_g alpha_g * (F_g h^T - <F_g, f_g>)
    dt = da w u (1 - t^2),   du = da w t u (1 - u)
    dh = (dt V + du U + alpha^T F) where h > 0,      dW = dh^T x

Every instance has its own row of these, so the backward pass goes over the bag in blocks of rows that use the same
memory again and again. Autograd would hold each of the three summands of dh, and their sum before and after the ReLU,
in fresh memory of the size of the bag, which the system has to find and clear at every step. Elsewhere (GPU, autocast)
autograd does it.

A step without it takes 11, 10 and 14 % longer with AB-MIL (384 -> 512) at n = 600, 2,000 and 8,000, and 1, 4 and 28 %
with DTFD (one thread, processor time, interleaved). With bags of 30 rows autograd is faster, and is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pams_mil.models.core.precision import without_autocast
from pams_mil.models.kernels.switch import by_hand, reference_gradients
from pams_mil.models.layers.attention_pool import AttentionScores, gate_in_place, spread_scores
from pams_mil.models.layers.projection import Projection

_ROWS = 1024
"""Of a block: enough for matrix products at full speed."""
FEWEST_ROWS = 512
"""Of fewer rows every operation is short, and calling them from here takes longer than autograd's own copies."""


def pools_leanly(projection: Projection, scores: AttentionScores, rows: int) -> bool:
    """Whether `lean_pool` applies: a gradient is wanted, on a CPU, of many rows, one gated attention, no dropout.

    It passes by the modules whose weights it takes, so a hook on one of them would never be called.
    """
    if rows < FEWEST_ROWS or not torch.is_grad_enabled() or not by_hand(scores.inner.weight):
        return False
    plain = scores.gated and scores.branches is None and not (scores.training and scores.dropout.p)
    return plain and not any(map(_hooked, (projection, scores, scores.inner, scores.outer)))


def _hooked(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def lean_pool(
    features: Tensor, projection: Projection, scores: AttentionScores, groups: Tensor | None, count: int
) -> tuple[Tensor, Tensor]:
    """Pooled vectors [r * g, e] and scores [n] of a bag [n, d]; groups as in `spread_scores`."""
    pooled, attention = _LeanPool.apply(  # type: ignore[no-untyped-call]
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
    return pooled, attention


def reference_pool(
    x: Tensor, w: Tensor, b: Tensor | None, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor,
    groups: Tensor | None, count: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same, left to autograd."""
    h = functional.linear(x, w, b).relu()
    t, u = functional.linear(h, inner, inner_bias).chunk(2, dim=1)
    scores = functional.linear(t.tanh() * u.sigmoid(), outer, outer_bias).squeeze(1)
    return spread_scores(scores, groups, count).softmax(-1) @ h, scores


class _LeanPool(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, inner: Tensor, inner_bias: Tensor, outer: Tensor,
        outer_bias: Tensor, groups: Tensor | None, count: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        h = (torch.mm(x, w.T) if b is None else torch.addmm(b, x, w.T)).relu_()
        # [n, 2 w], both gates side by side; from the next line on it holds t and u, which is all that backward needs.
        gates = torch.addmm(inner_bias, h, inner.T)
        t, u = gate_in_place(gates)
        scores = torch.mv(t * u, outer[0]) + outer_bias
        alpha = spread_scores(scores, groups, count).softmax(-1)
        pooled = alpha @ h
        ctx.save_for_backward(x, w, inner, outer, h, gates, alpha, pooled, b, inner_bias, outer_bias, groups)
        ctx.count = count
        return pooled, scores

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad_pooled: Tensor, grad_scores: Tensor) -> tuple[Any, ...]:
        x, w, inner, outer, h, gates, alpha, pooled, b, inner_bias, outer_bias, groups = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs = (x, w, b, inner, inner_bias, outer, outer_bias, groups, ctx.count)
            return reference_gradients(reference_pool, inputs, (grad_pooled, grad_scores))
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_w, grad_inner, grad_outer = torch.zeros_like(w), torch.zeros_like(inner), torch.zeros_like(outer)
        grad_b = None if b is None else torch.zeros_like(b)
        grad_inner_bias, grad_outer_bias = torch.zeros_like(inner_bias), torch.zeros_like(outer_bias)
        # <F_g, f_g>, [r * g]: the part of the softmax's derivative that all rows of a group share.
        already = (grad_pooled * pooled).sum(-1)
        # The memory that every block uses again; the last block may be shorter and takes its first rows.
        all_grad_h, all_grad_gates = torch.empty_like(h[:_ROWS]), torch.empty_like(gates[:_ROWS])
        for start in range(0, len(x), _ROWS):
            block = slice(start, start + _ROWS)
            x_, h_, alpha_ = x[block], h[block], alpha[:, block]
            grad_h, grad_gates = all_grad_h[: len(x_)], all_grad_gates[: len(x_)]
            t, u = gates[block].chunk(2, dim=1)
            grad_t, grad_u = grad_gates.chunk(2, dim=1)
            # The sum over groups is over one term: alpha is 0 in all groups (of a partition) that a row is not in.
            grad_a = grad_scores[block] + ((h_ @ grad_pooled.T - already) * alpha_.T).sum(1)
            both, grad_both = t * u, grad_a[:, None] * outer
            # grad_u holds da w t u at first: dt = da w u - (da w t u) t, and du = (da w t u) - (da w t u) u.
            torch.mul(grad_both, both, out=grad_u)
            torch.mul(grad_both, u, out=grad_t).addcmul_(grad_u, t, value=-1)
            grad_u.addcmul_(grad_u, u, value=-1)
            torch.mm(grad_gates, inner, out=grad_h).addmm_(alpha_.T, grad_pooled)
            # The ReLU, in place: 0 wherever its result h is 0.
            torch.ops.aten.threshold_backward.grad_input(grad_h, h_, 0, grad_input=grad_h)
            if grad_x is not None:
                torch.mm(grad_h, w, out=grad_x[block])
            grad_w.addmm_(grad_h.T, x_)
            if grad_b is not None:
                grad_b += grad_h.sum(0)
            grad_inner.addmm_(grad_gates.T, h_)
            grad_inner_bias += grad_gates.sum(0)
            grad_outer.addmm_(grad_a[None], both)
            grad_outer_bias += grad_a.sum()
        return grad_x, grad_w, grad_b, grad_inner, grad_inner_bias, grad_outer, grad_outer_bias, None, None
