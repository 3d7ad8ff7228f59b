"""First guess of the clusters: bins of each instance's cosine to the mean of all instances.

With p the mean of all rows and s_i = cos(p, z_i), the L bins are half-open intervals of s:
    * quantile: equal counts (the default; every bin is occupied unless rows repeat),
    * range: equal widths on the observed [min, max],
    * uniform: equal widths on [-1, 1], the printed algorithm. Instances rarely point away from their own mean, so
      most of these bins stay empty: with non-negative features at least half of them always do.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Bins = Literal["quantile", "range", "uniform"]
Values = TypeVar("Values", Tensor, npt.NDArray[np.floating[Any]])


def bin_edges(similarity: Values, bins: Bins, count: int) -> Values:
    """The L - 1 inner edges; value v falls into the bin numbered by how many edges are at most v.

    >>> bin_edges(torch.tensor([0.1, 0.2, 0.3, 0.6]), "uniform", 4).tolist()
    [-0.5, 0.0, 0.5]
    >>> bin_edges(np.array([0.2, 0.6, 0.1, 0.3]), "quantile", 2).tolist()
    [0.3]
    """
    if bins == "quantile":
        n = len(similarity)
        return _sorted(similarity)[[inner * n // count for inner in range(1, count)]]
    low, high = (-1.0, 1.0) if bins == "uniform" else (float(similarity.min()), float(similarity.max()))
    edges = low + (high - low) * np.arange(1, count) / count
    if isinstance(similarity, Tensor):
        return torch.from_numpy(edges).to(similarity)
    return edges.astype(similarity.dtype)


def bin_labels(similarity: Tensor, bins: Bins, count: int) -> Tensor:
    """Bin of each instance, 0 to L - 1.

    >>> bin_labels(torch.tensor([0.1, 0.2, 0.3, 0.6]), "quantile", 2).tolist()
    [0, 0, 1, 1]
    >>> bin_labels(torch.tensor([0.1, 0.2, 0.3, 0.6]), "range", 5).tolist()
    [0, 1, 2, 4]
    """
    return torch.bucketize(similarity, bin_edges(similarity, bins, count), right=True)


def _sorted(values: Values) -> Values:
    if isinstance(values, Tensor):
        return values.sort().values
    return cast(Values, np.sort(values))
