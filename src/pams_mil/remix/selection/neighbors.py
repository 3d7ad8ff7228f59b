"""Rows of one bag that have no like in another: what makes the two bags different, row by row.

distance of z in Z_a = 1 − mean cosine to its m nearest rows of Z_b
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pams_mil.remix.clustering.lloyd import BLOCK_VALUES
from pams_mil.remix.strategy import PreparedBag

NEIGHBORS = 3
"""m; 1 to 5 make no difference on real cells."""


def neighbor_distance(a: PreparedBag, b: PreparedBag, *, neighbors: int = NEIGHBORS) -> Tensor:
    """[n_a] distance of every row of a to its nearest rows of b, in blocks of bounded memory.

    >>> from pams_mil.remix.strategy import prepare
    >>> a, b = prepare(torch.tensor([[1.0, 0.0], [0.0, 2.0]])), prepare(torch.tensor([[3.0, 0.0]]))
    >>> neighbor_distance(a, b).tolist()
    [0.0, 1.0]
    """
    unit = (b.values * b.inverse_norms[:, None]).T
    count = min(neighbors, len(b))
    distances = []
    height = max(1, BLOCK_VALUES // len(b))
    for values, inverse in zip(torch.split(a.values, height), torch.split(a.inverse_norms, height), strict=True):
        nearest = torch.mm(values, unit).topk(count, dim=1).values
        distances.append(1 - nearest.mean(1) * inverse)
    return torch.cat(distances)


def distant_rows(a: PreparedBag, b: PreparedBag, share: float) -> Tensor:
    """The share of a's rows farthest from b, at least one, in their original order.

    >>> from pams_mil.remix.strategy import prepare
    >>> a, b = prepare(torch.tensor([[1.0, 0.0], [0.0, 2.0]])), prepare(torch.tensor([[3.0, 0.0]]))
    >>> distant_rows(a, b, 0.5).tolist()
    [1]
    """
    count = max(1, math.ceil(round(share * len(a), 9)))
    order = neighbor_distance(a, b).argsort(descending=True, stable=True)
    return order[:count].sort().values
