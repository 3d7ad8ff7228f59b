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

from pams_mil.remix.atomics import fetch, fetch_add, step_aside, store

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])

ROWS = 3
PROTOTYPES = 4
MEASURE, BIN, ANEW, CORRECT, LEAVE = 0, 1, 2, 3, 4
"""What is done to a piece: measure the similarity to the first prototype; put rows into bins of it; reassign them with
sums taken anew, corrected for the rows that moved, or left as they are because nobody will ask for them."""
PILE, DONE, MOVED, TASK, USED = 0, 1, 2, 3, 4
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
def measure(job: Job, totals: Floats) -> None:
    """Fill in the similarities to the mean of all rows, given the sum of each bag; followers stay for `refine`."""
    _point(totals.sum(0), job.prototypes[0])
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
        moved = _do(job, pile % ROUND, state[TASK])
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
        _bin(rows, job.similarity[start:end], job.edges, labels, sums, counts)
        return 0
    return _reassign(rows, job.prototypes[: job.state[USED]], job.names, labels, sums, counts, task)


@compiled
def _measure(rows: Floats, direction: Floats, inverse_norms: Floats, similarity: Floats) -> None:
    for i in range(rows.shape[0]):
        row = rows[i]
        total = rows.dtype.type(0)
        for j in range(rows.shape[1]):
            total += row[j] * direction[j]
        similarity[i] = total * inverse_norms[i]


@compiled
def _bin(rows: Floats, similarity: Floats, edges: Floats, labels: Integers, sums: Floats, counts: Integers) -> None:
    """The bin of a row is the number of edges that are at most its similarity."""
    sums[:] = 0
    counts[:] = 0
    for i in range(rows.shape[0]):
        label = 0
        for edge in edges:
            label += edge <= similarity[i]
        labels[i] = label
        _add(rows[i], label, sums, counts)


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
    for j in range(len(total)):
        direction[j] = total[j] / length if length > 0 else 0.0


@compiled
def _reassign(
    rows: Floats, prototypes: Floats, names: Integers, labels: Integers, sums: Floats, counts: Integers, task: int
) -> int:
    """Give every row the name of its most similar prototype, and the sums the rows; how many rows moved.

    The first of equal similarities wins.
    """
    if task == ANEW:
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
            label, old = names[winner[i - first]], labels[i]
            labels[i] = label
            moved += label != old
            if task == ANEW:
                _add(rows[i], label, sums, counts)
            elif task == CORRECT and label != old:
                _move(rows[i], old, label, sums, counts)
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


@compiled
def _move(row: Floats, old: int, label: int, sums: Floats, counts: Integers) -> None:
    counts[old] -= 1
    counts[label] += 1
    before, after = sums[old], sums[label]
    for j in range(row.shape[0]):
        before[j] -= row[j]
        after[j] += row[j]
