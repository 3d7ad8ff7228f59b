"""SFR, Semantic Feature Remix (the PAMS paper, Algorithm 1): what is typical of the more urgent bag joins the other.

    1. cluster Z_a ∪ Z_b into L clusters (`prototypes`)
    2. rank the occupied clusters by the share of their rows that comes from Z_a
    3. Z_{a+b} = Z_b ∪ {rows of Z_a in the first k clusters},   label Y_a

Ties in the ranking: the larger cluster first, then the lower number. When at most k clusters are occupied, step 3
copies all of Z_a; that is what the printed bins do on real features, so the default bins are quantiles.

On real cells with known classes this selection hardly prefers those that carry the label. So two others are offered,
which replace steps 1 and 2 and choose rows of Z_a one by one:
    * selection="neighbors": the `share` of rows farthest (in cosine, on average) from their 3 nearest rows of Z_b
    * selection="evidence": rows whose evidence for the label is at least 1 − `level`, at least one row (`evidence`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pams_mil.parameters import require_choice, require_count, require_number
from pams_mil.remix.clustering.prototypes import Clusters, Init, backend, check_clustering, cluster
from pams_mil.remix.selection.evidence import convincing_rows
from pams_mil.remix.selection.neighbors import distant_rows
from pams_mil.remix.strategy import Mixed, PartnerRule, check_pair, take

DISCOVER = "SFR"
Selection = Literal["clusters", "neighbors", "evidence"]


@dataclass(frozen=True)
class SFR:
    """Z_b and the rows of Z_a in the k clusters that Z_a dominates most.

    >>> a = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])  # the last row looks like b
    >>> b = torch.tensor([[0.1, 1.0], [0.0, 1.0], [0.1, 0.9]])
    >>> SFR(clusters=2, top_k=1)(a, b, torch.Generator()).rows_from(0).tolist()
    [0, 1]
    """

    clusters: int = 11
    """L, the number of clusters at most."""
    iterations: int = 6
    """T, the refinements."""
    top_k: int = 6
    """k, how many clusters are taken."""
    init: Init = "quantile"
    """The first clusters: quantile, range, uniform (as printed) or kmeans."""
    selection: Selection = "clusters"
    """How rows of Z_a are chosen: by clusters (the paper), neighbors or evidence."""
    share: float = 0.5
    """The share of Z_a that `selection="neighbors"` takes."""
    level: float = 0.2
    """The share of known negatives that `selection="evidence"` would let pass."""

    def __post_init__(self) -> None:
        check_clustering(clusters=self.clusters, iterations=self.iterations, init=self.init)
        require_count("top_k", self.top_k, at_least=1, at_most=self.clusters)
        require_choice("selection", self.selection, ("clusters", "neighbors", "evidence"))
        require_number("share", self.share, at_least=0, at_most=1)
        require_number("level", self.level, at_least=0, at_most=1)

    @property
    def partner(self) -> PartnerRule:
        """Z_a must be strictly more urgent than Z_b."""
        return "outranked"

    @property
    def needs_evidence(self) -> bool:
        """Whether calls must bring the evidence of a's rows."""
        return self.selection == "evidence"

    @property
    def backend(self) -> str | None:
        """Which code selects rows, where that depends on what is installed."""
        return backend(self.init) if self.selection == "clusters" else None

    def __call__(self, a: Tensor, b: Tensor, generator: torch.Generator, *, evidence: Tensor | None = None) -> Mixed:
        """Z_{a+b}: all rows of b, then the chosen rows of a in their original order.

        `evidence` [n_a] says how much each row of a speaks for its label; only `selection="evidence"` asks for it.
        """
        check_pair(a, b)
        if self.selection == "evidence":
            return take(a, b, convincing_rows(evidence, len(a), self.level))
        if self.selection == "neighbors":
            return take(a, b, distant_rows(a, b, self.share))
        found = cluster((a, b), clusters=self.clusters, iterations=self.iterations, init=self.init, generator=generator)
        return take(a, b, chosen_rows(found, len(a), self.top_k), live_clusters=found.live)


def shares(found: Clusters, rows_a: int) -> dict[int, tuple[float, int]]:
    """For each occupied cluster: the share of its rows that comes from a (the first `rows_a`), and its size.

    >>> shares(Clusters(torch.tensor([0, 2, 2, 2]), live=2), rows_a=2)
    {0: (1.0, 1), 2: (0.3333333333333333, 3)}
    """
    size = torch.bincount(found.labels).tolist()
    from_a = torch.bincount(found.labels[:rows_a], minlength=len(size)).tolist()
    return {label: (from_a[label] / size[label], size[label]) for label in range(len(size)) if size[label]}


def ranked_clusters(found: Clusters, rows_a: int) -> list[int]:
    """Occupied clusters, the one most dominated by a first; ties: larger first, then lower number.

    >>> ranked_clusters(Clusters(torch.tensor([0, 1, 1, 2, 0, 2]), live=3), rows_a=4)
    [1, 0, 2]
    """
    share = shares(found, rows_a)
    # Equal shares are equal numbers: a division of whole numbers rounds 1/3 and 2/6 alike.
    return sorted(share, key=lambda label: (-share[label][0], -share[label][1], label))


def chosen_rows(found: Clusters, rows_a: int, top_k: int) -> Tensor:
    """Rows of a in the first k ranked clusters, in their original order."""
    ranked = ranked_clusters(found, rows_a)
    top = torch.zeros(max(ranked) + 1, dtype=torch.bool, device=found.labels.device)
    top[ranked[:top_k]] = True
    return top[found.labels[:rows_a]].nonzero().squeeze(1)
