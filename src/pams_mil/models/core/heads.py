"""Heads: from a bag's vector to logits, for one level or for all levels at once.

| name | logits of level h | from |
|---|---|---|
| linear | W_h x + b_h | every model's default |
| normalized | (W_h / |rows|) x + b_h | HAF |
| split | W_h [x_h, sg(x_{h+1}), ..., sg(x_H)] + b_h, x = ELU(LayerNorm(W e + b)) cut into H slices | Chang et al. |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pams_mil.errors import ParameterError, listing, nearest


class Head(nn.Linear):
    """Linear head, logits = x W^T + b; [.., e] -> [.., c]."""

    def rows(self) -> Tensor:
        """The weight rows as used, [c, e]."""
        return self.weight


class NormalizedHead(Head):
    """Linear head whose weight rows have length 1; the input is not normalized.

    >>> head = NormalizedHead(2, 1)
    >>> _ = head.weight.data.copy_(torch.tensor([[3.0, 4.0]])), head.bias.data.zero_()
    >>> round(head(torch.tensor([[1.0, 1.0]])).item(), 4)
    1.4
    """

    def rows(self) -> Tensor:
        """The unit rows, [c, e]."""
        return functional.normalize(self.weight, dim=-1)

    def forward(self, vectors: Tensor) -> Tensor:
        """Logits [.., c] of vectors [.., e]."""
        return functional.linear(vectors, self.rows(), self.bias)


class Scored(NamedTuple):
    """What a head makes of vectors: logits [.., c], the vectors as it saw them [.., e], its rows [c, e] if any."""

    logits: Tensor
    seen: Tensor
    rows: Tensor | None


_HEADS: dict[str, type[Head]] = {"linear": Head, "normalized": NormalizedHead}


def make_head(kind: str, features: int, num_classes: int) -> Head:
    """A head for one level by name."""
    if kind not in _HEADS:
        raise ParameterError(
            f"There is no head called {kind!r} for a single level.{nearest(kind, _HEADS)} "
            f"Available: {listing(sorted(_HEADS))}."
        )
    return _HEADS[kind](features, num_classes)


def heads_of(bundle: LevelHeads | SplitHeads) -> list[Head]:
    """The heads of a bundle, coarse first."""
    return cast("list[Head]", list(bundle.levels))


def make_level_heads(kind: str, features: int, num_classes: Sequence[int]) -> LevelHeads | SplitHeads:
    """Heads for all levels on one vector, by name."""
    if kind == "split":
        return SplitHeads(features, num_classes)
    return LevelHeads(kind, features, num_classes)


class LevelHeads(nn.Module):
    """One independent head per level on the same vector: [b, e] -> per level logits [b, c_h]."""

    def __init__(self, kind: str, features: int, num_classes: Sequence[int]) -> None:
        super().__init__()
        self.levels = nn.ModuleList(make_head(kind, features, count) for count in num_classes)

    def forward(self, vectors: Tensor) -> list[Scored]:
        """Logits, what the head saw and its weight rows, per level."""
        return [Scored(head(vectors), vectors, head.rows()) for head in heads_of(self)]


class SplitHeads(nn.Module):
    """Slices of one vector, coarse first; a level sees its own slice and, without gradient, all finer ones.

    So a coarse level may read what the finer levels know but cannot disturb it. When e is not a multiple of
    the number of levels H, the first e mod H slices are one wider.

    >>> [tuple(seen.shape) for _, seen, _ in SplitHeads(5, [2, 3])(torch.zeros(1, 5))]
    [(1, 5), (1, 2)]
    """

    def __init__(self, features: int, num_classes: Sequence[int]) -> None:
        super().__init__()
        levels = len(num_classes)
        if features < levels:
            raise ParameterError(f"Cannot split a vector of width {features} between {levels} levels.")
        self.slices = [features // levels + (level < features % levels) for level in range(levels)]
        self.mix = nn.Sequential(nn.Linear(features, features), nn.LayerNorm(features), nn.ELU())
        self.levels = nn.ModuleList(Head(sum(self.slices[level:]), count) for level, count in enumerate(num_classes))

    def forward(self, vectors: Tensor) -> list[Scored]:
        """Logits, what the head saw and its weight rows, per level."""
        slices = self.mix(vectors).split(self.slices, dim=-1)
        results = []
        for level, head in enumerate(heads_of(self)):
            seen = torch.cat([slices[level], *(finer.detach() for finer in slices[level + 1 :])], dim=-1)
            results.append(Scored(head(seen), seen, head.rows()))
        return results
