"""Clustering compiled to machine code by Numba: a row is read once for its similarities, its cluster and the sums.

A matrix library writes all similarities to memory, searches them, and reads all rows again for the sums. Here three
rows meet four prototypes at a time, twelve running sums that stay in the processor's registers.

Cores share the work without waiting to be woken: one thread leads, and whoever else has arrived takes pieces of rows
from the same pile. The pile is a number, the round in its upper half and the next piece in its lower half; taking a
piece adds one to it. If nobody else arrives, the leader does it all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from pams_mil.remix.clustering.atomics import fetch, fetch_add, step_aside, store
from pams_mil.remix.clustering.prefetch import LINE, prefetch

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])

ROWS = 3
PROTOTYPES = 4
MEASURE, BIN, ANEW, CORRECT, LEAVE = 0, 1, 2, 3, 4
"""What is done to a piece: measure the similarity to the first prototype; put rows into bins of it; reassign them with
sums taken anew, corrected for the rows that moved, or left as they are because nobody will ask for them."""
PILE, DONE, MOVED, TASK, USED = 0, 1, 2, 3, 4
NEAR_VALUES = 2**13
"""What the cache next to a core holds: 32 kB of float32. Rows are read ahead only if they have a place in it."""
ROUND = 2**32
CLOSED, OVER = ROUND - 2**20, 2**62
"""A pile before the first round, and after the last one."""


class Job(NamedTuple):
    """What all threads of a clustering share."""

    first: Floats
    """[n1, d] one bag."""
    second: Floats
    """[n2, d] the other bag."""
    pieces: Integers
    """[p, 3] which bag, first row, end."""
    inverse_norms: Floats
    """[n1 + n2]"""
    similarity: Floats
    """[n1 + n2] the cosine of each row to the first prototype."""
    edges: Floats
    """[l - 1] between the bins of similarities."""
    labels: Integers
    """[n1 + n2] the cluster of each row."""
    sums: Floats
    """[p, l, d] of the rows of every cluster in every piece."""
    counts: Integers
    """[p, l] their numbers."""
    prototypes: Floats
    """[k, d] of this round, k a multiple of four."""
    names: Integers
    """[k] the clusters that these are of."""
    state: Integers
    """[5] the pile, pieces done, rows moved, what is done to a piece, how many prototypes are in use."""


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
def measure(job: Job, total: Floats) -> None:
    """Fill in the similarities to the mean of all rows, given their sum; followers stay for `refine`."""
    _point(total, job.prototypes[0])
    _lead_round(job, 0, MEASURE)


@compiled
def refine(job: Job, iterations: int) -> None:
    """Start from bins of the similarities; T times, or until no row moves, find prototypes and reassign all rows."""
    _lead_round(job, 1, BIN)
    for number in range(1, iterations + 1):
        job.state[USED] = _directions(job)
        # most rows move in the first round, few of them later
        task = LEAVE if number == iterations else CORRECT if number > 1 else ANEW
        if _lead_round(job, number + 1, task) == 0:
            break
    store(job.state, PILE, OVER)


@compiled
def follow(job: Job) -> None:
    """Take part until the work is over."""
    pile = fetch(job.state, PILE)
    while pile < OVER:
        if pile % ROUND < len(job.pieces):
            _take_pieces(job)
        else:
            step_aside()
        pile = fetch(job.state, PILE)


@compiled
def _lead_round(job: Job, number: int, task: int) -> int:
    state = job.state
    state[DONE] = state[MOVED] = 0
    state[TASK] = task
    store(state, PILE, number * ROUND)
    _take_pieces(job)
    while fetch(state, DONE) < len(job.pieces):
        step_aside()  # someone else is about to finish, perhaps on this very core
    return int(state[MOVED])


@compiled
def _take_pieces(job: Job) -> None:
    state = job.state
    while True:
        pile = fetch_add(state, PILE, 1)
        if pile >= OVER or pile % ROUND >= len(job.pieces):
            return
        piece = pile % ROUND
        if pile // ROUND % 2:  # back and forth, so that what was read last is still in the cache when read next
            piece = len(job.pieces) - 1 - piece
        moved = _do(job, piece, state[TASK])
        fetch_add(state, MOVED, moved)
        fetch_add(state, DONE, 1)


@compiled
def _do(job: Job, piece: int, task: int) -> int:
    """Work on one piece; how many rows moved."""
    bag, start, end = job.pieces[piece]
    rows = job.second[start:end] if bag else job.first[start:end]
    if bag:
        start, end = start + len(job.first), end + len(job.first)
    labels, sums, counts = job.labels[start:end], job.sums[piece], job.counts[piece]
    if task == MEASURE:
        _measure(rows, job.prototypes[0], job.inverse_norms[start:end], job.similarity[start:end])
        return 0
    if task == BIN:
        _bin(rows, job.similarity[start:end], job.edges, labels, sums)
        moved = 0
    else:
        moved = _reassign(rows, job.prototypes[: job.state[USED]], job.names, labels, sums, task)
    counts[:] = 0
    for label in labels:
        counts[label] += 1
    return moved


@compiled
def _measure(rows: Floats, direction: Floats, inverse_norms: Floats, similarity: Floats) -> None:
    for i in range(rows.shape[0]):
        row = rows[i]
        total = rows.dtype.type(0)
        for j in range(rows.shape[1]):
            total += row[j] * direction[j]
        similarity[i] = total * inverse_norms[i]


@compiled
def _bin(rows: Floats, similarity: Floats, edges: Floats, labels: Integers, sums: Floats) -> None:
    """The bin of a row is the number of edges that are at most its similarity."""
    sums[:] = 0
    for i in range(rows.shape[0]):
        label = 0
        for edge in edges:
            label += edge <= similarity[i]
        labels[i] = label
        _add(rows[i], sums[label])


@compiled
def _directions(job: Job) -> int:
    """Unit vectors along the sums of all occupied clusters, with their names; how many.

    Sums are added up over the pieces in float64. To make it a multiple of four, the first one is repeated under its
    own name.
    """
    sums, names, prototypes = job.sums, job.names, job.prototypes
    live = job.counts.sum(0).nonzero()[0]
    used = -(-len(live) // PROTOTYPES) * PROTOTYPES
    names[:used] = live[0]
    names[: len(live)] = live
    total = np.empty(sums.shape[2], np.float64)
    for row in range(used):
        total[:] = 0
        for piece in range(sums.shape[0]):
            part = sums[piece, names[row]]
            for j in range(len(total)):
                total[j] += part[j]
        _point(total, prototypes[row])
    return used


@compiled
def _point(total: Floats, direction: Floats) -> None:
    """The unit vector along a sum; zero for a zero sum."""
    length = np.sqrt((total * total).sum())
    scale = 1 / length if length > 0 else 0.0
    for j in range(len(total)):
        direction[j] = total[j] * scale


@compiled
def _reassign(rows: Floats, prototypes: Floats, names: Integers, labels: Integers, sums: Floats, task: int) -> int:
    """Give every row the name of its most similar prototype, and the sums the rows; how many rows moved.

    While three rows meet a group of prototypes, a share of the next three is read from memory.
    """
    if task == ANEW:
        sums[:] = 0
    n, width = rows.shape
    flat = rows.ravel()
    groups = prototypes.shape[0] // PROTOTYPES
    fits = (PROTOTYPES + 2 * ROWS) * width <= NEAR_VALUES
    share = -(-ROWS * width // groups) if fits else 0
    zero = rows.dtype.type(0)
    similarity = np.empty((ROWS, prototypes.shape[0]), rows.dtype)
    moved = 0
    for begin in range(0, n, ROWS):
        first = max(0, min(begin, n - ROWS))  # the last three rows may include some that are done
        row_a, row_b, row_c = rows[first], rows[min(first + 1, n - 1)], rows[min(first + 2, n - 1)]
        for group in range(groups):
            ahead = (begin + ROWS) * width + share * group
            for j in range(ahead, min(ahead + share, flat.size), LINE):
                prefetch(flat, j)
            k = PROTOTYPES * group
            p0, p1, p2, p3 = prototypes[k], prototypes[k + 1], prototypes[k + 2], prototypes[k + 3]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = zero
            for j in range(width):
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
            similarity[0, k], similarity[0, k + 1], similarity[0, k + 2], similarity[0, k + 3] = a0, a1, a2, a3
            similarity[1, k], similarity[1, k + 1], similarity[1, k + 2], similarity[1, k + 3] = b0, b1, b2, b3
            similarity[2, k], similarity[2, k + 1], similarity[2, k + 2], similarity[2, k + 3] = c0, c1, c2, c3
        for i in range(begin, min(begin + ROWS, n)):
            label, old = names[_largest(similarity[i - first])], labels[i]
            labels[i] = label
            moved += label != old
            if task == ANEW:
                _add(rows[i], sums[label])
            elif task == CORRECT and label != old:
                _move(rows[i], sums[old], sums[label])
    return moved


@compiled
def _largest(values: Floats) -> int:
    """Where the largest value is; the first of equal ones."""
    best, winner = values[0], 0
    for k in range(1, len(values)):
        if values[k] > best:
            best, winner = values[k], k
    return winner


@compiled
def _add(row: Floats, total: Floats) -> None:
    for j in range(row.shape[0]):
        total[j] += row[j]


@compiled
def _move(row: Floats, before: Floats, after: Floats) -> None:
    for j in range(row.shape[0]):
        before[j] -= row[j]
        after[j] += row[j]
