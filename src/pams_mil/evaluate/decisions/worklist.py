"""A worklist's order: how urgent a case looks from its class probabilities, and what reading in that order is worth.

With p the probabilities of the finest classes and ρ their ranks (0 = least urgent):

    expected severity   s = Σ_c p_c ρ_c
    at least r          P(ρ ≥ r) = Σ_{c: ρ_c ≥ r} p_c
    uncertainty         u = −Σ_c p_c log p_c / log C,  0 for a sure case, 1 for a uniform one
    agreement           share of the runs whose own call is the call that is shown

What the order is worth is seen in two ways. The static one takes a pile of n cases read from the top: how many reads
until the last urgent case, which share of the urgent ones lies in the first reads. For comparison, k urgent cases in a
pile without order lie on average at (n + 1) / 2, and the last of them at k (n + 1) / (k + 1).

The other lets cases arrive while others are read (one reader, Poisson arrivals, exponential reading times, a case once
begun is finished; Cobham 1954). With ρ the share of time the reader is busy, reading times of mean 1, and

    σ_{≥r} = ρ P(call ≥ r),   W₀ = ρ,
    W_r = W₀ / ((1 − σ_{>r}) (1 − σ_{≥r}))        wait of a case called r
    W(t) = Σ_r P(r | t) W_r                        wait of a case that truly is t
    FIFO = W₀ / (1 − ρ)

it needs nothing but the confusion matrix. False alarms show up in it as the delay of others. On average nobody gains:
Σ_r P(call = r) W_r is the wait of FIFO, whatever the calls; order only moves waiting from one case to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.probability import check_probabilities


def expected_severity(probabilities: npt.ArrayLike, ranks: Ints) -> Array:
    """Σ_c p_c ρ_c in steps of rank; [n, c], [c] -> [n].

    >>> expected_severity([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]], np.arange(3)).tolist()
    [0.7, 2.0]
    """
    severity: Array = check_probabilities(probabilities, len(ranks)) @ ranks.astype(np.float64)
    return severity


def at_least(probabilities: npt.ArrayLike, ranks: Ints) -> Array:
    """P(ρ ≥ r) for every rank r above the lowest, in order; [n, c], [c] -> [n, number of ranks − 1].

    >>> at_least([[0.5, 0.25, 0.125, 0.125]], np.array([0, 1, 1, 2])).tolist()  # two classes are equally urgent
    [[0.5, 0.125]]
    """
    above = ranks[:, None] >= np.unique(ranks)[1:]
    reached: Array = check_probabilities(probabilities, len(ranks)) @ above.astype(np.float64)
    return np.clip(reached, 0.0, 1.0)


def uncertainty(probabilities: npt.ArrayLike) -> Array:
    """Entropy as a share of its largest value log C; [n, c] -> [n].

    >>> uncertainty([[1.0, 0.0], [0.5, 0.5]]).tolist()
    [0.0, 1.0]
    """
    p = check_probabilities(probabilities)
    share: Array = special.entr(p).sum(axis=1) / np.log(p.shape[1])
    return np.clip(share, 0.0, 1.0)


def agreement(calls: npt.ArrayLike, shown: npt.ArrayLike) -> Array:
    """The share of runs that make the call that is shown; [runs, n], [n] -> [n].

    >>> agreement([[0, 2], [1, 2], [1, 2]], [1, 2]).tolist()
    [0.6666666666666666, 1.0]
    """
    each, one = np.asarray(calls), np.asarray(shown)
    if each.ndim != 2 or one.shape != each.shape[1:] or not len(each):
        raise ParameterError(f"Expected calls [runs, n] and [n], found {list(each.shape)} and {list(one.shape)}.")
    share: Array = (each == one).mean(axis=0)
    return share


UTILIZATIONS = tuple(round(0.05 * step, 2) for step in range(1, 20))
FIRST = 0.2
"""The share of the pile that is read first."""


@dataclass(frozen=True)
class PileReading:
    """How early the urgent cases of a pile are read: mean and last position, from 1, and the share among the first."""

    mean: float
    last: float
    first: float


def read_pile(is_urgent: npt.ArrayLike, share: float = FIRST) -> PileReading:
    """Statistics of a pile in reading order; `is_urgent` [n] from the top, of which some are.

    >>> read_pile([True, True, False, True, False], share=0.4)
    PileReading(mean=2.3333333333333335, last=4.0, first=0.66...)
    """
    urgent = np.asarray(is_urgent, dtype=bool)
    positions = np.flatnonzero(urgent) + 1
    first = urgent[: _reads(share, urgent.size)].sum() / positions.size
    return PileReading(float(positions.mean()), float(positions[-1]), float(first))


def unordered_pile(cases: int, urgent: int, share: float = FIRST) -> PileReading:
    """What to expect of a pile whose order says nothing about urgency.

    >>> unordered_pile(9, 4, share=0.5)
    PileReading(mean=5.0, last=8.0, first=0.55...)
    """
    return PileReading((cases + 1) / 2, urgent * (cases + 1) / (urgent + 1), _reads(share, cases) / cases)


def waits_by_call(called: npt.ArrayLike, utilization: float) -> Array:
    """W_r [c] in mean reading times; `called` [c] is the share of cases at each priority, least urgent first.

    >>> waits_by_call([0.5, 0.5], 0.8).round(3).tolist()
    [6.667, 1.333]
    """
    share = np.asarray(called, dtype=np.float64)
    if share.ndim != 1 or not np.isfinite(share).all() or (share < 0).any() or abs(share.sum() - 1) > 1e-9:
        raise ParameterError("The shares of the priorities must be 0 or more and sum to 1.")
    if not 0 <= utilization < 1:
        raise ParameterError(f"The utilization is {utilization:g}; expected a value from 0 to below 1.")
    # σ_{≥r}: from the most urgent priority down
    at_or_above = utilization * share[::-1].cumsum()[::-1]
    above = at_or_above - utilization * share
    waits: Array = utilization / ((1 - above) * (1 - at_or_above))
    return waits


def waits_by_truth(confusion: npt.ArrayLike, ranks: npt.ArrayLike, utilization: float) -> Array:
    """W(t) [c] in mean reading times from S[t, r], counts or shares; NaN for classes that never occur.

    Calls of equal rank share one priority and are read in the order of their arrival.

    >>> waits_by_truth([[4, 1], [1, 4]], [0, 1], 0.8).round(3).tolist()
    [5.6, 2.4]
    """
    counts, rho = np.asarray(confusion, dtype=np.float64), np.asarray(ranks, dtype=np.int64)
    if counts.ndim != 2 or counts.shape != (rho.size, rho.size) or (counts < 0).any() or not counts.sum() > 0:
        raise ParameterError(f"Expected counts [c, c] for {rho.size} classes, found shape {list(counts.shape)}.")
    _, priority = np.unique(rho, return_inverse=True)
    called = np.bincount(priority, counts.sum(0) / counts.sum())
    waits = waits_by_call(called, utilization)[priority]
    totals = counts.sum(1)
    mean: Array = np.divide(counts @ waits, totals, out=np.full(rho.size, np.nan), where=totals > 0)
    return mean


def wait_in_arrival_order(utilization: float) -> float:
    """FIFO in mean reading times, ρ / (1 − ρ).

    >>> wait_in_arrival_order(0.75)
    3.0
    """
    return float(waits_by_call([1.0], utilization)[0])


def order_worth(
    truths: Mapping[str, Ints], call: Ints, order: Ints, ranks: Ints, probabilities: Array | None
) -> dict[str, Any]:
    """What an order (rows, [n]) is worth on these cases: pile and queue against first in, first out, for a page.

    `truths` may be taken for the truth, best first, each [n] with -1 where unknown. The first that knows anything is
    used and named as `basis`; failing all, for the queue alone, the probabilities [n, c], as if they were calibrated:
    the expected count of class t among cases called r is the sum of p_t over them.
    """
    basis, truth = next(((name, values) for name, values in truths.items() if (values >= 0).any()), ("", None))
    if truth is not None:
        known = np.flatnonzero(truth >= 0)
        confusion = count_cells(truth[known], call[known], len(ranks)).astype(np.float64)
        piles = _piles(ranks[truth[order[truth[order] >= 0]]], ranks)
    elif probabilities is not None and len(probabilities):
        basis, known, piles = "probabilities", np.empty(0, np.int64), []
        confusion = np.zeros((len(ranks), len(ranks)))
        # Row r of the transpose is the column of calls r: it gets p_t of every case called r.
        np.add.at(confusion.T, call, probabilities)
    else:
        return {"basis": "none", "known": 0, "piles": [], "waits": None}
    waits = [waits_by_truth(confusion, ranks, load).tolist() for load in UTILIZATIONS]
    return {
        "basis": basis,
        "known": int(known.size),
        "confusion": np.round(confusion, 2).tolist(),
        "piles": piles,
        "waits": {
            "utilization": UTILIZATIONS,
            "by_class": np.array(waits).T.tolist(),
            "arrival_order": [wait_in_arrival_order(load) for load in UTILIZATIONS],
        },
    }


def _piles(in_order: Ints, ranks: Ints) -> list[dict[str, Any]]:
    """For every boundary of urgency that a case reaches: this order of true ranks against none."""
    piles = []
    for rank in np.unique(ranks)[1:].tolist():
        urgent = in_order >= rank
        if urgent.any():
            count = int(urgent.sum())
            piles.append({
                "rank": rank, "cases": urgent.size, "urgent": count, "worklist": asdict(read_pile(urgent)),
                "arrival": asdict(unordered_pile(urgent.size, count)),
            })  # fmt: skip
    return piles


def _reads(share: float, cases: int) -> int:
    """How many cases a share of the pile holds, rounded up: 20 % of 7 cases are 2 reads."""
    # 0.07 · 100 is a rounding above 7 and would be 8 reads
    return int(np.ceil(share * cases - 1e-9))
