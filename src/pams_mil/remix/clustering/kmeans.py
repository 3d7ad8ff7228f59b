"""Euclidean k-means of one bag, as ReMix reduces a slide to prototypes.

    z_i goes to argmin_k |z_i − c_k|² = argmax_k (z_i · c_k − |c_k|²/2),   c_k = mean of cluster k

The first centers are random instances; an empty cluster is dropped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pams_mil.remix.strategy import shuffled


def euclidean_clusters(values: Tensor, *, clusters: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Cluster of every row, numbered 0, 1, ... without gaps.

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
        # Numbered anew without those that nobody chose: that drops empty clusters, and `means` divides by no 0.
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
