"""Have the slides changed? A check without labels: do patients still reach each rank at the same κ?

The call of a patient depends on its probabilities only through the κ at which each rank is reached. If new patients
are exchangeable with the calibration patients, so are those values, and shuffling who is new must not matter:

    D = max over ranks of the largest distance between the two empirical distributions (Kolmogorov and Smirnov)
    p = share of shuffles of the patients with a D at least as large, the observed one counted in

Only the order of the values matters, so ∞ (never reached) is one more value. Patients are shuffled, not slides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.errors import ParameterError

SHUFFLES = 2000


@dataclass(frozen=True)
class Drift:
    """The largest distance, the rank it was found at, its p-value, and how many new patients were compared."""

    distance: float
    rank: int
    p_value: float
    n: int


def breakpoint_drift(before: npt.ArrayLike, now: npt.ArrayLike, *, seed: int = 0, shuffles: int = SHUFFLES) -> Drift:
    """Compare two groups of patients by where they reach each rank: [p, r] and [q, r], one row per patient.

    >>> rng = np.random.default_rng(0)
    >>> breakpoint_drift(rng.random((40, 2)), rng.random((30, 2)) + 0.5).p_value < 0.01
    True
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(now, dtype=np.float64)
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1] or not len(first) or not len(second):
        raise ParameterError(f"Expected two tables [patients, ranks], found shapes {first.shape} and {second.shape}.")
    if np.isnan(first).any() or np.isnan(second).any():
        raise ParameterError("The κ at which a rank is reached must be a number or ∞, found none.")
    pooled = np.concatenate([first, second])
    is_new = np.arange(len(pooled)) >= len(first)
    # Shuffling who is new leaves the values in place, so each column is sorted once for all shuffles.
    orders = [np.argsort(column, kind="stable") for column in pooled.T]
    # A distance counts only after the last of equal values.
    ordered = [column[order] for column, order in zip(pooled.T, orders, strict=True)]
    ends = [np.append(column[1:] != column[:-1], True) for column in ordered]
    observed = np.asarray([_distance(is_new, order, end) for order, end in zip(orders, ends, strict=True)])
    rng = np.random.default_rng(seed)
    extreme = 0
    for _ in range(shuffles):
        shuffled = rng.permutation(is_new)
        largest = max(_distance(shuffled, order, end) for order, end in zip(orders, ends, strict=True))
        # equal distances may differ in the last bits, as they were summed in another order
        extreme += int(largest >= observed.max() - 1e-12)
    return Drift(float(observed.max()), int(observed.argmax()) + 1, (extreme + 1) / (shuffles + 1), len(second))


def _distance(is_new: npt.NDArray[np.bool_], order: npt.NDArray[np.int64], ends: npt.NDArray[np.bool_]) -> float:
    new = is_new[order]
    ahead = np.cumsum(np.where(new, 1.0 / new.sum(), -1.0 / (~new).sum()))
    return float(np.abs(ahead[ends]).max())
