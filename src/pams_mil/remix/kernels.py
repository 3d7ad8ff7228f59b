"""Clustering compiled to machine code by Numba: a row is read once for its similarities, its cluster and the sums.

A matrix library writes all similarities to memory, searches them, and reads all rows again for the sums. Here three
rows meet four prototypes at a time, twelve running sums that stay in the processor's registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Part = tuple[Floats, Integers, Floats, Integers]
"""Some rows [n, d], the cluster of each [n], and the sum [l, d] and size [l] of every cluster."""
Function = TypeVar("Function", bound=Callable[..., Any])

ROWS = 3
PROTOTYPES = 4


def compiled(function: Function) -> Function:
    """Compile at the first call, once per machine: the result is kept beside the source, as Python's own is.

    Sums may be taken in any order, so that eight are taken at a time; infinities and NaN keep their meaning.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract", "reassoc", "nsz"}}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no folder to keep it in
        return cast(Function, numba.njit(**options)(function))


@compiled
def add_up(part: Part) -> None:
    """Add every row to the sum of its cluster, and 1 to its count."""
    rows, labels, sums, counts = part
    for i in range(rows.shape[0]):
        _add(rows[i], labels[i], sums, counts)


@compiled
def directions(sums: Floats, counts: Integers) -> tuple[Floats, Integers]:
    """Unit vectors [k, d] along the sums of all occupied clusters, and their names [k].

    Sums [pieces, l, d] are added up in float64. To make k a multiple of four, the first one is repeated under its
    own name. A zero sum has a zero direction.
    """
    live = counts.sum(0).nonzero()[0]
    k = -(-len(live) // PROTOTYPES) * PROTOTYPES
    names = np.full(k, live[0])
    names[: len(live)] = live
    units = np.empty((k, sums.shape[2]), sums.dtype)
    total = np.empty(sums.shape[2], np.float64)
    for row in range(k):
        total[:] = 0
        for piece in range(sums.shape[0]):
            part = sums[piece, names[row]]
            for j in range(len(total)):
                total[j] += part[j]
        length = np.sqrt((total * total).sum())
        for j in range(len(total)):
            units[row, j] = total[j] / length if length > 0 else 0.0
    return units, names


@compiled
def reassign(prototypes: Floats, names: Integers, part: Part) -> int:
    """Give every row the name of its most similar prototype and add it up there; how many rows changed their name.

    The first of equal similarities wins. Labels, sums and counts are replaced; the number of prototypes is a multiple
    of four.
    """
    rows, labels, sums, counts = part
    sums[:] = 0
    counts[:] = 0
    n = rows.shape[0]
    zero = rows.dtype.type(0)
    winner = np.empty(ROWS, np.int64)
    moved = 0
    for begin in range(0, n, ROWS):
        first = max(0, min(begin, n - ROWS))  # the last three rows may include some that are done
        row_a, row_b, row_c = rows[first], rows[min(first + 1, n - 1)], rows[min(first + 2, n - 1)]
        best_a = best_b = best_c = rows.dtype.type(-np.inf)
        winner_a = winner_b = winner_c = 0
        for k in range(0, prototypes.shape[0], PROTOTYPES):
            p0, p1, p2, p3 = prototypes[k], prototypes[k + 1], prototypes[k + 2], prototypes[k + 3]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = zero
            for j in range(rows.shape[1]):
                a, b, c = row_a[j], row_b[j], row_c[j]
                p = p0[j]
                a0 += a * p
                b0 += b * p
                c0 += c * p
                p = p1[j]
                a1 += a * p
                b1 += b * p
                c1 += c * p
                p = p2[j]
                a2 += a * p
                b2 += b * p
                c2 += c * p
                p = p3[j]
                a3 += a * p
                b3 += b * p
                c3 += c * p
            best_a, winner_a = _better(best_a, winner_a, k, (a0, a1, a2, a3))
            best_b, winner_b = _better(best_b, winner_b, k, (b0, b1, b2, b3))
            best_c, winner_c = _better(best_c, winner_c, k, (c0, c1, c2, c3))
        winner[0], winner[1], winner[2] = winner_a, winner_b, winner_c
        for i in range(begin, min(begin + ROWS, n)):
            label = names[winner[i - first]]
            moved += label != labels[i]
            labels[i] = label
            _add(rows[i], label, sums, counts)
    return moved


@compiled
def _better(best: float, winner: int, first: int, similarities: tuple[float, ...]) -> tuple[float, int]:
    for offset, similarity in enumerate(similarities):
        if similarity > best:
            best, winner = similarity, first + offset
    return best, winner


@compiled
def _add(row: Floats, label: int, sums: Floats, counts: Integers) -> None:
    counts[label] += 1
    total = sums[label]
    for j in range(row.shape[0]):
        total[j] += row[j]
