"""Cosine refinement of clusters, at the speed of reading the rows.

    repeat T times:   p_l = mean of cluster l,   z_i goes to argmax_l cos(p_l, z_i)

Nothing is normalized or joined: the argmax over l does not depend on |z_i|, and the mean and the sum of a cluster
point the same way. What makes it fast changes no result:
    * Rows are visited in blocks that fit the cache, so similarity, argmax and sums read a row from memory once.
    * Similarities come from a 1 x 1 convolution over the rows as pixels, which on a CPU is up to twice as fast as
      a matrix product with so few columns.
    * Where few rows of a block moved, its sums change by these alone; when none moved at all, the remaining
      repetitions would change nothing.
An empty cluster is dropped and never comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

BLOCK_VALUES = 2**20
"""Values per block: 4 MB in float32, a share of the last-level cache."""
_IMAGES = 16
"""From this many images on, torch hands a 1 x 1 convolution to oneDNN also when it may use one thread only."""
_CONVOLVE = 2048
"""From this many rows on, the convolution is faster than the matrix product."""
_COLUMNS = 16
"""Prototypes are padded to a multiple of this: narrow products run faster at full vector width."""
_FEW = 4
"""Sums are corrected instead of taken anew when less than one in this many rows moved."""


class Block:
    """Some rows, the cluster of each, and the sum of the rows of every cluster."""

    def __init__(self, values: Tensor, labels: Tensor, clusters: int) -> None:
        self.values = values
        self.labels = labels
        self.sums = torch.zeros(clusters, values.shape[1], dtype=values.dtype, device=values.device)
        self.sums.index_add_(0, labels, values)

    def reassign(self, prototypes: Tensor, live: Tensor | None, *, last: bool) -> bool:
        """Move every row to its nearest prototype; whether any row moved. `live` numbers the prototypes."""
        count = len(self.sums) if live is None else len(live)
        labels = product(self.values, prototypes)[:, :count].max(1).indices
        if live is not None:
            labels = live[labels]
        moved = (labels != self.labels).nonzero().squeeze(1)
        before, self.labels = self.labels, labels
        if len(moved) and not last:
            self._update(moved, before)
        return len(moved) > 0

    def _update(self, moved: Tensor, before: Tensor) -> None:
        if len(moved) * _FEW > len(before):
            self.sums.zero_().index_add_(0, self.labels, self.values)
        else:
            rows = self.values.index_select(0, moved)
            self.sums.index_add_(0, self.labels[moved], rows)
            self.sums.index_add_(0, before[moved], rows, alpha=-1)


def product(values: Tensor, prototypes: Tensor) -> Tensor:
    """The product values @ prototypes.T; [n, d] by [columns, d] gives [n, columns].

    >>> rows, columns = torch.rand(3000, 5), torch.rand(16, 5)
    >>> bool(torch.allclose(product(rows, columns), rows @ columns.T, atol=1e-5))
    True
    """
    rows, width = values.shape
    height = rows // _IMAGES
    if values.dtype != torch.float32 or values.device.type != "cpu" or rows < _CONVOLVE:
        return torch.mm(values, prototypes.T)
    # Images of one line of `height` pixels with `width` channels, channels last: exactly how the rows lie in memory.
    images = values.as_strided((_IMAGES, width, 1, height), (height * width, 1, height * width, width))
    whole = functional.conv2d(images, prototypes[:, :, None, None]).permute(0, 2, 3, 1).reshape(-1, len(prototypes))
    if len(whole) == rows:
        return whole
    return torch.cat([whole, torch.mm(values[len(whole) :], prototypes.T)])


def directions(sums: Tensor) -> Tensor:
    """Unit vectors along the rows; a zero row stays zero.

    >>> directions(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return functional.normalize(sums, dim=1, eps=torch.finfo(sums.dtype).tiny)


def refine(blocks: Sequence[Block], *, iterations: int) -> Tensor:
    """Run the repetitions; labels of all rows in block order. `blocks` carry the first labels."""
    clusters, width = blocks[0].sums.shape
    prototypes = blocks[0].sums.new_zeros(-(-clusters // _COLUMNS) * _COLUMNS, width)
    for step in range(iterations):
        unit = directions(_total(blocks))
        live = _occupied(blocks, clusters)
        if live is None:
            prototypes[:clusters] = unit
        else:
            prototypes[: len(live)] = unit[live]
        last = step == iterations - 1
        moved = [block.reassign(prototypes, live, last=last) for block in blocks]
        if not any(moved):
            break
    return torch.cat([block.labels for block in blocks])


def _total(blocks: Sequence[Block]) -> Tensor:
    if len(blocks) == 1:
        return blocks[0].sums
    # Float64 here, and corrections only within a block: a cluster that loses most of its rows keeps its direction.
    return torch.stack([block.sums for block in blocks]).sum(0, dtype=torch.float64).to(blocks[0].sums.dtype)


def _occupied(blocks: Sequence[Block], clusters: int) -> Tensor | None:
    """Numbers of the occupied clusters, or None when all are."""
    counts = torch.bincount(blocks[0].labels, minlength=clusters)
    for block in blocks[1:]:
        counts += torch.bincount(block.labels, minlength=clusters)
    return None if bool(counts.all()) else counts.nonzero().squeeze(1)
