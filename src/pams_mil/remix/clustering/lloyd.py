"""Cosine refinement of clusters.

    repeat T times:   p_l = mean of cluster l,   z_i goes to argmax_l cos(p_l, z_i)

Nothing is normalized: the argmax over l does not depend on |z_i|, and the mean and the sum of a cluster point the same
way. An empty cluster is dropped and never comes back; when no row moved, the remaining repetitions would change
nothing. `compiled_lloyd` does the same in compiled code.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def refine(values: Tensor, labels: Tensor, *, clusters: int, iterations: int) -> Tensor:
    """The cluster [n] of every row of `values` [n, d], from the first `labels` [n].

    >>> refine(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([0, 1, 1]), clusters=2, iterations=5)
    tensor([0, 0, 1])
    """
    for _ in range(iterations):
        sums = values.new_zeros(clusters, values.shape[1]).index_add_(0, labels, values)
        # Only occupied ones: the zero vector of an empty cluster would win where all similarities are negative.
        live = torch.bincount(labels, minlength=clusters).nonzero().squeeze(1)
        nearest = live[torch.mm(values, directions(sums[live]).T).max(1).indices]
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
