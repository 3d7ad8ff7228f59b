"""What the order of a worklist is worth: who is read when, against first in, first out.

Two views of one question. The static one takes a pile of n cases read from the top: how many reads until the last
urgent case, which share of the urgent ones lies in the first reads. For comparison, k urgent cases in a pile without
order lie on average at (n + 1) / 2, and the last of them at k (n + 1) / (k + 1).

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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.errors import ParameterError


@dataclass(frozen=True)
class PileReading:
    """How early the urgent cases of a pile are read; positions count from 1.

    `share_in_first` maps a part of the pile to the share of urgent cases within it.
    """

    cases: int
    urgent: int
    mean_position: float
    last_position: float
    share_in_first: dict[float, float]


def read_pile(is_urgent: npt.ArrayLike, parts: tuple[float, ...] = (0.1, 0.2, 0.5)) -> PileReading:
    """Statistics of a pile in reading order; `is_urgent` [n] from the top.

    >>> read_pile([True, True, False, True, False], parts=(0.4,))
    PileReading(cases=5, urgent=3, mean_position=2.3333333333333335, last_position=4.0, share_in_first={0.4: 0.66...})
    """
    urgent = np.asarray(is_urgent, dtype=bool)
    positions = np.flatnonzero(urgent) + 1
    if not positions.size:
        raise ParameterError("None of the cases is urgent, so there is no order to judge.")
    first = {part: float(urgent[: _reads(part, urgent.size)].sum() / positions.size) for part in parts}
    return PileReading(urgent.size, positions.size, float(positions.mean()), float(positions[-1]), first)


def unordered_pile(cases: int, urgent: int, parts: tuple[float, ...] = (0.1, 0.2, 0.5)) -> PileReading:
    """What to expect of a pile whose order says nothing about urgency.

    >>> unordered_pile(9, 4, parts=(0.5,))
    PileReading(cases=9, urgent=4, mean_position=5.0, last_position=8.0, share_in_first={0.5: 0.55...})
    """
    if not 0 < urgent <= cases:
        raise ParameterError(f"Expected 1 to {cases} urgent cases, found {urgent}.")
    first = {part: _reads(part, cases) / cases for part in parts}
    return PileReading(cases, urgent, (cases + 1) / 2, urgent * (cases + 1) / (urgent + 1), first)


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
    found: Array = np.divide(counts @ waits, totals, out=np.full(rho.size, np.nan), where=totals > 0)
    return found


def wait_in_arrival_order(utilization: float) -> float:
    """FIFO in mean reading times, ρ / (1 − ρ).

    >>> wait_in_arrival_order(0.75)
    3.0
    """
    return float(waits_by_call([1.0], utilization)[0])


def _reads(part: float, cases: int) -> int:
    """How many cases a part of the pile holds, rounded up: 20 % of 7 cases are 2 reads."""
    # 0.07 · 100 is a rounding above 7 and would be 8 reads
    return int(np.ceil(part * cases - 1e-9))
