"""Attention pooling (Ilse et al. 2018), shared by AB-MIL, CLAM, `priority` and both tiers of DTFD.

    a_i = w^T tanh(V h_i)                         plain
    a_i = w^T (tanh(V h_i) * sigmoid(U h_i))      gated
    z = sum_i softmax(a)_i h_i

A bag may be cut into groups, each with its own softmax (DTFD's pseudo-bags): the group weights form a
[g, n] matrix, so all groups are pooled by one matrix product and no row is moved. So are the branches of an attention
with several w on the same V and U, one per class or question, each with a softmax over the whole bag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from pams_mil.models.kernels.switch import by_hand
from pams_mil.models.layers.projection import CHUNK_ROWS
from pams_mil.ops import at_least_float32


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
