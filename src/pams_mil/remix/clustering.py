"""Clustering of instances: by cosine for SFR and PseudoMix, Euclidean k-means for ReMix.

    s_i = cos(p, z_i), p the mean of all rows;   first clusters = L bins of s   (`bin_labels`)
    T times: p_l = mean of cluster l; z_i goes to the cluster of argmax_l cos(p_l, z_i)   (`refine`)

Algorithm 1 says argmin, which sends an instance to the least similar prototype and is not a clustering; argmax is what
its source (PseMix) does.

The bins are half-open intervals of s:
    * quantile: equal counts (the default; every bin is occupied unless rows repeat),
    * uniform: equal widths on [-1, 1], Algorithm 1 to the letter. Instances rarely point away from their own mean, so
      most of these bins stay empty: with non-negative features at least half of them always do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from pams_mil.remix.strategy import shuffled, widened

Init = Literal["quantile", "uniform"]


@dataclass(frozen=True)
class Clusters:
    """Cluster of every row, over all bags in the order given."""

    labels: Tensor
    """[n] int64 in 0 .. L - 1; ids of empty clusters do not occur."""
    live: int
    """How many clusters are occupied."""


def cluster(
    bags: Sequence[Tensor],
    *,
    clusters: int = 11,
    iterations: int = 6,
    init: Init = "quantile",
) -> Clusters:
    """Cluster the rows of all bags together.

    >>> bag = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 3.0], [0.1, 1.0]])
    >>> labels = cluster([bag], clusters=2, iterations=2).labels
    >>> bool(labels[0] == labels[1]), bool(labels[2] == labels[3]), bool(labels[0] == labels[2])
    (True, True, False)
    """
    with torch.inference_mode():  # less work per call, which counts for small bags
        values = torch.cat([widened(bag) for bag in bags])
        norms = torch.linalg.vector_norm(values, dim=1).clamp_min(torch.finfo(values.dtype).tiny)
        cosine = torch.mv(values, directions(values.sum(0)[None])[0]) / norms
        start = bin_labels(cosine, init, clusters)
        labels = refine(values, start, clusters=clusters, iterations=iterations)
    labels = labels.clone()  # an ordinary tensor again
    return Clusters(labels, live=int(torch.bincount(labels, minlength=clusters).count_nonzero()))


def refine(values: Tensor, labels: Tensor, *, clusters: int, iterations: int) -> Tensor:
    """The cluster [n] of every row of `values` [n, d], from the first `labels` [n].

    Nothing is normalized: the argmax over l does not depend on |z_i|, and the mean and the sum of a cluster point the
    same way. An empty cluster is dropped and never comes back; when no row moved, further repetitions change nothing.

    >>> refine(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([0, 1, 1]), clusters=2, iterations=5)
    tensor([0, 0, 1])
    """
    for _ in range(iterations):
        sums = values.new_zeros(clusters, values.shape[1]).index_add_(0, labels, values)
        # Only occupied ones: the zero vector of an empty cluster would win where all similarities are negative.
        live = torch.bincount(labels, minlength=clusters).nonzero().squeeze(1)
        # [clusters, n] and not [n, clusters]: the product and the maximum over few rows are nearly twice as fast.
        nearest = live[torch.mm(directions(sums[live]), values.T).max(0).indices]
        if torch.equal(nearest, labels):
            break
        labels = nearest
    return labels


def directions(sums: Tensor) -> Tensor:
    """Unit vectors along the rows; a zero row stays zero.

    >>> directions(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return functional.normalize(sums, dim=1, eps=torch.finfo(sums.dtype).tiny)


def bin_edges(similarity: Tensor, bins: Init, count: int) -> Tensor:
    """The L - 1 inner edges; value v falls into the bin numbered by how many edges are at most v.

    >>> bin_edges(torch.tensor([0.1, 0.2, 0.3, 0.6]), "uniform", 4).tolist()
    [-0.5, 0.0, 0.5]
    >>> bin_edges(torch.tensor([0.25, 0.75, 0.125, 0.5]), "quantile", 2).tolist()
    [0.5]
    """
    if bins == "quantile":
        n = len(similarity)
        # The value at place i n / L begins bin i. Equal values stay together, so repeated rows leave bins empty.
        return similarity.sort().values[[inner * n // count for inner in range(1, count)]]
    return (-1.0 + 2.0 * torch.arange(1, count, dtype=torch.float64) / count).to(similarity)


def bin_labels(similarity: Tensor, bins: Init, count: int) -> Tensor:
    """Bin of each instance, 0 to L - 1.

    >>> bin_labels(torch.tensor([0.1, 0.2, 0.3, 0.6]), "quantile", 2).tolist()
    [0, 0, 1, 1]
    """
    # With inner edges alone nothing falls outside, not even a cosine that rounding made larger than 1.
    return torch.bucketize(similarity, bin_edges(similarity, bins, count), right=True)


def euclidean_clusters(values: Tensor, *, clusters: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Euclidean k-means of one bag, started from random instances: cluster of every row, numbered without gaps.

    z_i goes to argmin_k |z_i − c_k|² = argmax_k (z_i · c_k − |c_k|²/2),   c_k = mean of cluster k

    >>> values = torch.tensor([[0.0], [0.2], [9.0], [9.1]])
    >>> labels = euclidean_clusters(values, clusters=2, iterations=5, generator=torch.Generator().manual_seed(3))
    >>> bool(labels[0] == labels[1] != labels[2] == labels[3])
    True
    """
    centers = values[shuffled(len(values), generator, values)[:clusters]]
    labels = torch.full((len(values),), -1, dtype=torch.int64, device=values.device)
    # One assignment more than refinements: the first one is to the random instances.
    for _ in range(iterations + 1):
        # |z|^2 is the same for all centers, so it is left out and no difference z - c is ever formed.
        score = torch.mm(values, centers.T) - centers.square().sum(1) / 2
        # Renumbered without empty ones: that drops empty clusters, and `means` divides by no 0.
        nearest = torch.unique(score.max(1).indices, return_inverse=True)[1]
        if torch.equal(nearest, labels):
            break
        labels = nearest
        centers = means(values, labels)
    return labels


def means(values: Tensor, labels: Tensor) -> Tensor:
    """[k, d] mean of the rows of each of the k occupied clusters.

    >>> means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1])).tolist()
    [[2.0], [5.0]]
    """
    counts = torch.bincount(labels)
    sums = values.new_zeros(len(counts), values.shape[1]).index_add_(0, labels, values)
    return sums / counts[:, None]
