"""SFR, Semantic Feature Remix (the PAMS paper, Algorithm 1): what is typical of one bag joins another.

    1. cluster Z_a ∪ Z_b into L clusters (`prototypes`)
    2. rank the occupied clusters by the share of their rows that comes from Z_a
    3. Z_{a+b} = Z_b ∪ {rows of Z_a in the first k clusters},   label Y_a

Ties in the ranking: the larger cluster first, then the lower number. When at most k clusters are occupied, step 3
copies all of Z_a; that is what equal bins on [-1, 1] do on real features, so the default bins are quantiles.

The chosen clusters may leave behind the few rows that show the label, the more rarely the more clusters there are;
`selection="all"` takes every row of Z_a and clusters nothing. docs/remix.md has how often each loses the label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from pams_mil.errors import CheckedFields, Count, Within, require_count
from pams_mil.remix.clustering import Clusters, Init, cluster
from pams_mil.remix.strategy import Mixed, PartnerRule, check_pair, take

DISCOVER = {"sfr": "SFR"}
Selection = Literal["clusters", "all"]


@dataclass(frozen=True)
class SFR(CheckedFields):
    """Z_b and the rows of Z_a in the clusters that Z_a dominates most.

    >>> a = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])  # the last row looks like b
    >>> b = torch.tensor([[0.1, 1.0], [0.0, 1.0], [0.1, 0.9]])
    >>> SFR(clusters=2, top_k=1)(a, b, torch.Generator()).rows_from(0).tolist()
    [0, 1]
    """

    clusters: Count = 11
    """L, the number of clusters at most."""
    iterations: Annotated[int, Within(at_least=0)] = 6
    """T, the refinements."""
    top_k: int = 6
    """k, how many clusters `selection="clusters"` takes."""
    init: Init = "quantile"
    """The first clusters: quantile, or uniform (equal bins on [-1, 1])."""
    selection: Selection = "clusters"
    """Which rows of Z_a are taken: those of k clusters (Algorithm 1), or all."""

    partner: ClassVar[PartnerRule] = "keep_label"
    """Z_a keeps its label; Z_b is less urgent, or of the same class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("top_k", self.top_k, at_least=1, at_most=self.clusters)

    def __call__(self, a: Tensor, b: Tensor, generator: torch.Generator) -> Mixed:
        """Z_{a+b}: all rows of b, then the chosen rows of a in their original order."""
        check_pair(a, b)
        if self.selection == "all":
            return take(a, b, torch.arange(len(a), device=a.device))
        clusters = cluster((a, b), clusters=self.clusters, iterations=self.iterations, init=self.init)
        return take(a, b, chosen_rows(clusters, len(a), self.top_k), live_clusters=clusters.live)


def shares(clusters: Clusters, rows_a: int) -> dict[int, tuple[float, int]]:
    """For each occupied cluster: the share of its rows that comes from a (the first `rows_a`), and its size.

    >>> shares(Clusters(torch.tensor([0, 2, 2, 2]), live=2), rows_a=2)
    {0: (1.0, 1), 2: (0.3333333333333333, 3)}
    """
    size = torch.bincount(clusters.labels).tolist()
    from_a = torch.bincount(clusters.labels[:rows_a], minlength=len(size)).tolist()
    return {label: (from_a[label] / size[label], size[label]) for label in range(len(size)) if size[label]}


def ranked_clusters(clusters: Clusters, rows_a: int) -> list[int]:
    """Occupied clusters, the one most dominated by a first; ties: larger first, then lower number.

    >>> ranked_clusters(Clusters(torch.tensor([0, 1, 1, 2, 0, 2]), live=3), rows_a=4)
    [1, 0, 2]
    """
    share = shares(clusters, rows_a)
    # Equal shares are equal numbers: a division of whole numbers rounds 1/3 and 2/6 alike.
    return sorted(share, key=lambda label: (-share[label][0], -share[label][1], label))


def chosen_rows(clusters: Clusters, rows_a: int, top_k: int) -> Tensor:
    """Rows of a in the first k ranked clusters, in their original order."""
    ranked = ranked_clusters(clusters, rows_a)
    top = torch.zeros(max(ranked) + 1, dtype=torch.bool, device=clusters.labels.device)
    top[ranked[:top_k]] = True
    return top[clusters.labels[:rows_a]].nonzero().squeeze(1)
