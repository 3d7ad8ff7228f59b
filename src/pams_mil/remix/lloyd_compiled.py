"""The refinement of `lloyd` in compiled code, for bags in main memory where Numba is installed.

It computes the same: T times the mean of every cluster and the argmax of cosines, empty clusters dropped, an early
end when no row moved. Sums are taken in float32 within a piece of rows and in float64 over pieces; how rows are cut
into pieces depends on the bags alone, so the result does not depend on the number of cores.
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

from pams_mil.core_team import CoreTeam

_PIECES, _LEAST_ROWS = 16, 512
"""A bag pair has about so many pieces, of at least so many rows."""
_SHARE_VALUES = 2**22
"""From this many values on, waking other cores costs less than they save."""
_CORES = CoreTeam()


@cache
def kernels() -> Any:
    """The compiled code, or None where Numba is not installed or does not work with the NumPy that is."""
    try:
        return importlib.import_module("pams_mil.remix.kernels")
    except ImportError:
        return None


def fits(bags: Sequence[Tensor]) -> bool:
    """Whether there is compiled code for these bags [n, d]."""
    return all(bag.device.type == "cpu" and bag.is_contiguous() for bag in bags) and kernels() is not None


def refine(bags: Sequence[Tensor], labels: Tensor, clusters: int, *, iterations: int) -> Tensor:
    """Labels [n] of all rows after the repetitions; `labels` are the first ones and are kept."""
    code = kernels()
    pieces = [piece for bag in bags for piece in _cut(bag.numpy(), sum(map(len, bags)))]
    found = labels.numpy().copy()
    owns = np.split(found, np.cumsum([len(piece) for piece in pieces])[:-1])
    sums = np.zeros((len(pieces), clusters, pieces[0].shape[1]), pieces[0].dtype)
    counts = np.zeros((len(pieces), clusters), np.int64)
    work = list(zip(pieces, owns, sums, counts, strict=True))
    each: Callable[..., list[Any]] = _CORES.map if found.size * sums.shape[2] >= _SHARE_VALUES else _one_by_one
    each(code.add_up, work)
    for _ in range(iterations):
        prototypes, names = code.directions(sums, counts)
        if not any(each(partial(code.reassign, prototypes, names), work)):
            break
    return torch.from_numpy(found)


def _cut(bag: npt.NDArray[Any], rows: int) -> list[npt.NDArray[Any]]:
    height = max(_LEAST_ROWS, -(-rows // _PIECES))
    return np.array_split(bag, -(-len(bag) // height))


def _one_by_one(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    return [work(part) for part in parts]
