"""PseudoMix (PseMix; Liu et al., 2024): pseudo-bags of one bag are exchanged for pseudo-bags of another.

    1. cluster each bag into L phenotypes (`prototypes`), then deal the rows of every phenotype evenly and at random
       to n pseudo-bags
    2. λ ~ Beta(α, α), c = ⌊λ (n + 1)⌋ in 0 .. n: take c pseudo-bags of Z_a and n − c of Z_b
    3. with probability p the two are joined, with weight c/n for Y_a and 1 − c/n for Y_b; otherwise the c pseudo-bags
       of Z_a stand alone. When one part is empty, the other is the bag.

`labels="urgent"` is our variant for priority learning: partners differ in urgency, at least one pseudo-bag is of the
more urgent Z_a, and the result carries Y_a alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from pams_mil.errors import CheckedFields, Count, Share, Within
from pams_mil.remix.clustering import Init, cluster
from pams_mil.remix.strategy import FROM_A, FROM_B, Mixed, PartnerRule, check_pair, shuffled, uniform

DISCOVER = {"pseudomix": "PseudoMix"}


@dataclass(frozen=True)
class PseudoMix(CheckedFields):
    """Some pseudo-bags of Z_a with some of Z_b; soft labels by their numbers.

    >>> mixed = PseudoMix(mix_probability=1.0)(torch.rand(90, 4), torch.rand(60, 4), torch.Generator().manual_seed(0))
    >>> 0.0 <= mixed.weight_a <= 1.0, len(mixed.features) > 0
    (True, True)
    """

    clusters: Count = 8
    """l, the phenotypes at most."""
    pseudo_bags: Count = 30
    """n, the pseudo-bags."""
    iterations: Annotated[int, Within(at_least=0)] = 8
    """T, the refinements."""
    init: Init = "quantile"
    """The first clusters; the publication's code offers uniform (its default) and quantile."""
    alpha: Annotated[float, Within(at_least=1e-3)] = 1.0
    """α of the Beta distribution."""
    mix_probability: Share = 0.4
    """p, how often the two parts are joined."""
    labels: Literal["soft", "urgent"] = "soft"
    """Weights for both labels, or the more urgent label alone."""

    @property
    def partner(self) -> PartnerRule:
        """Any other bag; with the more urgent label alone, a strictly less urgent one."""
        return "any" if self.labels == "soft" else "keep_label"

    def __call__(self, a: Tensor, b: Tensor, generator: torch.Generator) -> Mixed:
        """The chosen rows of a, then those of b, each in their original order."""
        check_pair(a, b)
        count = self._draw_count(generator)
        joined = bool(uniform(generator) < self.mix_probability)
        live_a, rows_a = self._rows(a, count, generator)
        _, rows_b = self._rows(b, self.pseudo_bags - count, generator)
        if len(rows_a) and len(rows_b) and not joined:
            rows_b = rows_b[:0]
        features = torch.cat([a.detach().index_select(0, rows_a), b.detach().index_select(0, rows_b)])
        origin = torch.full((len(features),), FROM_A, dtype=torch.int8, device=a.device)
        origin[len(rows_a) :] = FROM_B
        weight = self._weight(count, len(rows_a), len(rows_b))
        return Mixed(features, origin, torch.cat([rows_a, rows_b]), weight_a=weight, live_clusters=live_a)

    def _draw_count(self, generator: torch.Generator) -> int:
        # A share of exactly 1 would give n + 1.
        share = _beta(self.alpha, generator)
        count = min(self.pseudo_bags, int(share * (self.pseudo_bags + 1)))
        return max(1, count) if self.labels == "urgent" else count

    def _rows(self, bag: Tensor, count: int, generator: torch.Generator) -> tuple[int, Tensor]:
        """Rows in `count` of the pseudo-bags; at least one row when any pseudo-bag is asked for."""
        clusters = cluster([bag], clusters=self.clusters, iterations=self.iterations, init=self.init)
        if count == 0:
            return clusters.live, torch.empty(0, dtype=torch.int64, device=bag.device)
        dealt = deal(clusters.labels, self.pseudo_bags, generator)
        # Small bags leave some pseudo-bags empty; drawing among the others keeps the part from being empty.
        occupied = torch.bincount(dealt, minlength=self.pseudo_bags).nonzero().squeeze(1)
        order = shuffled(len(occupied), generator, occupied)
        taken = occupied[order[: max(1, round(count * len(occupied) / self.pseudo_bags))]]
        return clusters.live, torch.isin(dealt, taken).nonzero().squeeze(1)

    def _weight(self, count: int, rows_a: int, rows_b: int) -> float:
        if rows_b == 0 or self.labels == "urgent":
            return 1.0
        return 0.0 if rows_a == 0 else count / self.pseudo_bags


def deal(labels: Tensor, hands: int, generator: torch.Generator) -> Tensor:
    """Deal the rows of every cluster to `hands` pseudo-bags: random, and even to within one row per cluster.

    >>> dealt = deal(torch.tensor([0, 0, 0, 0, 1, 1]), 2, torch.Generator().manual_seed(0))
    >>> torch.bincount(dealt[:4]).tolist(), torch.bincount(dealt[4:]).tolist()
    ([2, 2], [1, 1])
    """
    dealt = torch.empty_like(labels)
    for label in torch.unique(labels).tolist():
        rows = (labels == label).nonzero().squeeze(1)
        order, names = shuffled(len(rows), generator, labels), shuffled(hands, generator, labels)
        # The place in a random order, modulo n, is even to within one row. With the pseudo-bags in a random order too,
        # it is not always the same ones that get one more.
        dealt[rows] = names[order % hands]
    return dealt


def _beta(alpha: float, generator: torch.Generator) -> float:
    """One draw from Beta(α, α) by two gamma draws, which torch can take from a given generator."""
    if alpha == 1.0:
        return float(uniform(generator))
    shape = torch.full((2,), alpha, dtype=torch.float64, device=generator.device)
    first, second = torch._standard_gamma(shape, generator=generator).tolist()
    return float(first / (first + second)) if first + second > 0 else 0.5
