"""Rows of one bag that have no like in another: what makes the two bags different, row by row.

distance of z in Z_a = 1 − mean cosine to its m nearest rows of Z_b
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pams_mil.remix.clustering.lloyd import directions
from pams_mil.remix.strategy import widened

NEIGHBORS = 3
"""m; 1 to 5 make no difference on real cells."""
_BLOCK_VALUES = 2**20
"""Cosines held at a time: 4 MB in float32."""


def neighbor_distance(a: Tensor, b: Tensor) -> Tensor:
    """[n_a] distance of every row of a to its nearest rows of b, in blocks of bounded memory.

    >>> a, b = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 0.0]])
    >>> neighbor_distance(a, b).tolist()
    [0.0, 1.0]
    """
    others, count = directions(widened(b)).T, min(NEIGHBORS, len(b))
    blocks = torch.split(directions(widened(a)), max(1, _BLOCK_VALUES // len(b)))
    return torch.cat([1 - torch.mm(block, others).topk(count, dim=1).values.mean(1) for block in blocks])


def distant_rows(a: Tensor, b: Tensor, share: float) -> Tensor:
    """The share of a's rows farthest from b, at least one, in their original order.

    >>> a, b = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 0.0]])
    >>> distant_rows(a, b, 0.5).tolist()
    [1]
    """
    # Rounded first: 7 % of 100 rows is a little more than 7 in binary.
    count = max(1, math.ceil(round(share * len(a), 9)))
    order = neighbor_distance(a, b).argsort(descending=True, stable=True)
    return order[:count].sort().values
