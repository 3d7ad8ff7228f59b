"""First guess of the clusters: bins of each instance's cosine to the mean of all instances.

With p the mean of all rows and s_i = cos(p, z_i), the L bins are half-open intervals of s:
    * quantile: equal counts (the default; every bin is occupied unless rows repeat),
    * range: equal widths on the observed [min, max],
    * uniform: equal widths on [-1, 1], the printed algorithm. Instances rarely point away from their own mean, so
      most of these bins stay empty: with non-negative features at least half of them always do.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Bins = Literal["quantile", "range", "uniform"]


def bin_edges(similarity: Tensor, bins: Bins, count: int) -> Tensor:
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
    low, high = (-1.0, 1.0) if bins == "uniform" else (float(similarity.min()), float(similarity.max()))
    return (low + (high - low) * torch.arange(1, count, dtype=torch.float64) / count).to(similarity)


def bin_labels(similarity: Tensor, bins: Bins, count: int) -> Tensor:
    """Bin of each instance, 0 to L - 1.

    >>> bin_labels(torch.tensor([0.1, 0.2, 0.3, 0.6]), "quantile", 2).tolist()
    [0, 0, 1, 1]
    >>> bin_labels(torch.tensor([0.1, 0.2, 0.3, 0.6]), "range", 5).tolist()
    [0, 1, 2, 4]
    """
    # With inner edges alone nothing falls outside, not even a cosine that rounding made larger than 1.
    return torch.bucketize(similarity, bin_edges(similarity, bins, count), right=True)
