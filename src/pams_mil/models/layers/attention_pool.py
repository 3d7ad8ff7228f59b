"""The instance projection h_i = ReLU(W x_i + b) that every model starts with, streamed in evaluation.

Attention pooling (Ilse et al. 2018), shared by AB-MIL, CLAM, `priority` and both tiers of DTFD.

    a_i = w^T tanh(V h_i)                         plain
    a_i = w^T (tanh(V h_i) * sigmoid(U h_i))      gated
    z = sum_i softmax(a)_i h_i

A bag may be cut into groups, each with its own softmax (DTFD's pseudo-bags): the group weights form a
[g, n] matrix, so all groups are pooled by one matrix product and no row is moved. So are the branches of an attention
with several w on the same V and U, one per class or question, each with a softmax over the whole bag.

Projection and gated attention pooling as one function, for training on a CPU: few large temporaries, few passes.

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

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pams_mil.models.core.switch import by_hand, reference_gradients, without_autocast
from pams_mil.ops import at_least_float32

# Rows per piece: large enough for a fast matrix product, small enough for a piece to stay in cache.
CHUNK_ROWS = 2048


class Projection(nn.Linear):
    """h = ReLU(x W^T + b); [n, d] -> [n, e].

    Features of another precision than the weights are converted piece by piece, so float16 bags need no
    full-size float32 copy in evaluation.

    >>> projection = Projection(1, 1)
    >>> _ = projection.weight.data.fill_(2.0), projection.bias.data.fill_(-1.0)
    >>> projection(torch.tensor([[0.0], [3.0]])).tolist()
    [[0.0], [5.0]]
    """

    def forward(self, features: Tensor) -> Tensor:
        """Projected instances; without gradients they are computed in pieces."""
        if torch.is_grad_enabled() or len(features) <= CHUNK_ROWS:
            return self.project(features)
        # The first piece tells the precision, which under autocast is not that of the weights. The others are written
        # into place: all pieces and their concatenation would need twice the memory.
        first = self.project(features[:CHUNK_ROWS])
        projected = first.new_empty(len(features), self.out_features)
        projected[:CHUNK_ROWS] = first
        for start in range(CHUNK_ROWS, len(features), CHUNK_ROWS):
            projected[start : start + CHUNK_ROWS] = self.project(features[start : start + CHUNK_ROWS])
        return projected

    def mean(self, features: Tensor) -> Tensor:
        """The mean of a bag's projected instances, [n, d] -> [e]; without gradients piece by piece."""
        if torch.is_grad_enabled():
            rows: Tensor = self(features)
            return rows.mean(0)
        # In float32: sums of float16 would overflow where their mean does not.
        sums = [at_least_float32(self(piece)).sum(0) for piece in torch.split(features, CHUNK_ROWS)]
        return (torch.stack(sums).sum(0) / len(features)).to(self.weight.dtype)

    def project(self, features: Tensor) -> Tensor:
        """Projected instances in one piece; ReLU in place, since its derivative needs only its result."""
        return functional.linear(features.to(self.weight.dtype), self.weight, self.bias).relu_()


class AttentionScores(nn.Module):
    """Unnormalized attention of instances; [n, e] -> [n], or [n, q] with q branches.

    V and U are one matrix [2 * width, e], tanh rows first, so that both are one product.
    """

    def __init__(
        self, features: int, width: int, *, gated: bool = True, dropout: float = 0.0, branches: int | None = None
    ) -> None:
        super().__init__()
        self.gated = gated
        self.branches = branches
        self.inner = nn.Linear(features, 2 * width if gated else width)
        self.outer = nn.Linear(width, branches or 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, instances: Tensor) -> Tensor:
        """Scores [n] or [n, q] of instances [n, e]."""
        inner = self.inner(instances)
        if self.gated:
            # In place only without gradients: autograd would need what is written over.
            if torch.is_grad_enabled() or not by_hand(self.inner.weight):
                signal, gate = inner.chunk(2, dim=-1)
                signal, gate = signal.tanh(), gate.sigmoid()
            else:
                signal, gate = gate_in_place(inner)
            hidden = self.dropout(signal) * self.dropout(gate)
        else:
            hidden = self.dropout(inner.tanh())
        scores: Tensor = self.outer(hidden)
        return scores.squeeze(-1) if self.branches is None else scores


def gate_in_place(inner: Tensor) -> tuple[Tensor, Tensor]:
    """The tanh of the first half of the columns and the sigmoid of the second, [n, 2 w] -> two views [n, w].

    tanh(a) = 2 sigmoid(2 a) - 1 takes half the time of tanh itself. Its error is that of a number near 1, also for
    small a, which is why it is for full precision only.

    >>> [part.tolist() for part in gate_in_place(torch.zeros(1, 2))]
    [[[0.0]], [[0.5]]]
    """
    signal, gate = inner.chunk(2, dim=-1)
    signal.mul_(2)
    inner.sigmoid_()
    signal.mul_(2).sub_(1)
    return signal, gate


def merge_gates(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state with separate V and U as the one `inner` matrix, V first.

    >>> sorted(merge_gates({"scores.V.bias": torch.zeros(1), "scores.U.bias": torch.ones(1)}))
    ['scores.inner.bias']
    """
    merged = {key: value for key, value in state.items() if ".V." not in key and ".U." not in key}
    for key, value in state.items():
        if ".V." in key:
            # Attention without a gate has a V and no U.
            other = state.get(key.replace(".V.", ".U."))
            merged[key.replace(".V.", ".inner.")] = value if other is None else torch.cat([value, other])
    return merged


def spread_scores(scores: Tensor, groups: Tensor | None, count: int) -> Tensor:
    """Scores [n] laid out per group, [r * g, n], with -inf outside a group; without groups one row per branch.

    >>> spread_scores(torch.ones(3), torch.tensor([[0, 1, 0]]), 2).tolist()
    [[1.0, -inf, 1.0], [-inf, 1.0, -inf]]

    Args:
        scores: [n], or [n, q] without groups.
        groups: [r, n], the group of every instance in each of r partitions.
        count: g.
    """
    if groups is None:
        return scores[None] if scores.ndim == 1 else scores.T
    member = groups[:, None, :] == torch.arange(count, device=groups.device)[:, None]
    return torch.where(member, scores, float("-inf")).flatten(0, 1)


def stream_pool(
    features: Tensor,
    project: Callable[[Tensor], Tensor],
    score: Callable[[Tensor], Tensor],
    groups: Tensor | None,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Project, score and pool a bag piece by piece, keeping nothing but the scores and one running sum per group.

    With running maximum m and sums of exp(a_i - m): both are rescaled when a piece raises the maximum.

    Returns:
        The pooled vectors [r * g, e], or one per branch [q, e], and the scores [n] or [n, q].
    """
    scores: list[Tensor] = []
    top = total = pooled = torch.empty(0)
    for start in range(0, len(features), CHUNK_ROWS):
        piece = project(features[start : start + CHUNK_ROWS])
        piece_scores = at_least_float32(score(piece))
        scores.append(piece_scores)
        spread = spread_scores(piece_scores, None if groups is None else groups[:, start : start + CHUNK_ROWS], count)
        piece_top = spread.amax(-1, keepdim=True)
        new_top = piece_top if start == 0 else torch.maximum(top, piece_top)
        # A group without a member so far has maximum -inf; its exponentials are zero, not -inf - -inf.
        safe_top = new_top.clamp(min=torch.finfo(spread.dtype).min)
        weights = (spread - safe_top).exp()
        piece_total = weights.sum(-1, keepdim=True)
        # float16 ends at 65504, less than 2048 rows of 32: there it is a mean that is made a sum in float32. Not
        # elsewhere, where dividing and multiplying again would only round.
        half = piece.dtype == torch.float16
        size = piece_total.clamp(min=torch.finfo(weights.dtype).tiny) if half else torch.ones_like(piece_total)
        piece_pooled = at_least_float32((weights / size).to(piece.dtype) @ piece) * size
        if start == 0:
            total, pooled = piece_total, piece_pooled
        else:
            # At most 1, and 0 for a group that begins in this piece (its maximum so far is -inf).
            shrink = (top - safe_top).exp()
            total, pooled = total * shrink + piece_total, pooled * shrink + piece_pooled
        top = new_top
    return pooled / total, torch.cat(scores)


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


def attention_pool(
    features: Tensor,
    project: Callable[[Tensor], Tensor],
    scores: AttentionScores,
    groups: Tensor | None,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Pooled vectors [r * g, e] and scores [n] of rows [n, d], in the way that suits where they are computed."""
    if not torch.is_grad_enabled():
        return stream_pool(features, project, scores, groups, count)
    if isinstance(project, Projection) and pools_leanly(project, scores, len(features)):
        return lean_pool(features, project, scores, groups, count)
    instances = project(features)
    attention = at_least_float32(scores(instances))
    return spread_scores(attention, groups, count).softmax(-1).to(instances.dtype) @ instances, attention


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
