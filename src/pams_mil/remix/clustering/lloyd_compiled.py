"""The clustering of `prototypes` in compiled code, for bags in main memory where Numba is installed.

It computes the same: bins of the cosine to the mean, then T times the mean of every cluster and the argmax of cosines,
empty clusters dropped, an early end when no row moved. Sums are taken in float32 within a piece of rows and in
float64 over pieces; how rows are cut into pieces depends on the bags alone, so the result does not depend on the
number of cores.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pams_mil.remix.strategy import PreparedBag
from pams_mil.spare_cores import SpareCores

_PIECES, _LEAST_ROWS = 16, 256
"""A bag pair has about so many pieces, of at least so many rows."""
_SHARE_VALUES = 2**18
"""Fewer values are done before another core has woken up."""
_SPARE_CORES = SpareCores()


@cache
def kernels() -> Any:
    """The compiled code, or None where Numba is not installed or does not work with the NumPy that is."""
    try:
        return importlib.import_module("pams_mil.remix.clustering.compiled_kernels")
    except ImportError:
        return None


def fits(bags: Sequence[PreparedBag]) -> bool:
    """Whether there is compiled code for these bags."""
    ready = all(bag.values.device.type == "cpu" and bag.values.is_contiguous() for bag in bags)
    return ready and len({bag.values.dtype for bag in bags}) == 1 and kernels() is not None


def cluster(
    bags: Sequence[PreparedBag],
    edges_of: Callable[[Any], Any],
    *,
    clusters: int,
    iterations: int,
) -> Tensor:
    """The cluster [n] of every row.

    Args:
        bags: whose rows are clustered.
        edges_of: the inner edges [l - 1] of bins, given the similarities of all rows to their mean.
        clusters: l.
        iterations: T.
    """
    code = kernels()
    first, second = _two([bag.values.numpy() for bag in bags])
    n, width, kind = len(first) + len(second), first.shape[1], first.dtype
    pieces = _cut(len(first), len(second))
    most = -(-clusters // code.PROTOTYPES) * code.PROTOTYPES
    job = code.Job(
        first=first,
        second=second,
        pieces=pieces,
        inverse_norms=np.concatenate([bag.inverse_norms.numpy() for bag in bags]),
        similarity=np.empty(n, kind),
        edges=np.empty(clusters - 1, kind),
        labels=np.empty(n, np.int64),
        sums=np.empty((len(pieces), clusters, width), kind),
        counts=np.empty((len(pieces), clusters), np.int64),
        prototypes=np.empty((most, width), kind),
        names=np.empty(most, np.int64),
        state=np.array([code.OVER, 0, 0, 0, 0]),
    )
    try:
        if n * width >= _SHARE_VALUES:
            code.follow(job)  # over before it began, but now it is compiled, by this thread and no other
            job.state[code.PILE] = code.CLOSED
            _SPARE_CORES.call(partial(code.follow, job), len(pieces) - 1)
        code.measure(job, sum(bag.total.numpy() for bag in bags))
        job.edges[:] = edges_of(job.similarity)
        code.refine(job, iterations)
    finally:  # also when interrupted, so that nobody follows for ever
        job.state[code.PILE] = code.OVER
    return torch.from_numpy(job.labels)


def _two(bags: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    if len(bags) == 2:
        return bags[0], bags[1]
    joined = bags[0] if len(bags) == 1 else np.concatenate(bags)
    return joined, joined[:0]


def _cut(*sizes: int) -> npt.NDArray[np.int64]:
    """Pieces [p, 3]: bag, first row, end."""
    height = max(_LEAST_ROWS, -(-sum(sizes) // _PIECES))
    pieces = []
    for bag, size in enumerate(sizes):
        count = -(-size // height)
        pieces += [(bag, size * number // count, size * (number + 1) // count) for number in range(count)]
    return np.array(pieces, np.int64)
