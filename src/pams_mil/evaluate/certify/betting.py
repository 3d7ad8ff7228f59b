"""Is the promise still kept? A test that may be looked at after every patient.

Patients come one after another with losses ℓ_1, ℓ_2, ... in [0, 1]. Somebody who doubts that their mean is at most m
bets a fixed share c of the wealth on every patient. If the mean is at most m, that wealth cannot be expected to grow:

    K_t(m) = mean over c of  Π_{i ≤ t} (1 − c + c ℓ_i / m),        P[ K_t(m) ever reaches 1/δ ] ≤ δ     (Ville)

so "the mean is above m" may be declared at any time, however often one looks. K falls in m, so all m that were ever
rejected form an interval from 0: its end is a lower bound on the mean that holds at all times at once. (Waudby-Smith
and Ramdas, Estimating means of bounded random variables by betting, JRSS B 2024; Podkopaev and Ramdas, ICLR 2022.)

Where patients count w_i ∈ [0, 1] (their slides over the most slides), 1 − c w_i + c ℓ_i / m takes the place of the
factor: it cannot be expected to grow the wealth where E[ℓ] ≤ m E[w], so m is then the rate E[ℓ] / E[w].
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

from pams_mil.arrays import Array
from pams_mil.errors import ParameterError

STAKES = tuple(0.5**power for power in range(1, 11))
"""The shares c: from one half, for a promise broken badly, to a thousandth, for one broken slightly."""


def log_wealth(losses: npt.ArrayLike, mean: float, weights: npt.ArrayLike = 1.0) -> Array:
    """The logarithm of K_t(m) after every patient, [n].

    >>> log_wealth([1.0, 0.0], 0.5).round(3).tolist()
    [0.095, -0.034]
    """
    values = np.asarray(losses, dtype=np.float64)
    if not np.isfinite(values).all() or (values < 0).any() or (values > 1).any():
        raise ParameterError("Losses must be numbers from 0 to 1.")
    if not 0 < mean <= 1:
        raise ParameterError(f"The mean to test must be above 0 and at most 1, found {mean!r}.")
    stakes = np.asarray(STAKES)[:, None]
    # Logarithms: the products leave the range of floats after some hundred patients. Stakes are at most 1/2, so no
    # factor is below 1/2 and the logarithm exists.
    wealth = np.cumsum(np.log1p(stakes * (values / mean - np.asarray(weights))), axis=1)
    found: Array = special.logsumexp(wealth, axis=0) - np.log(len(stakes))
    return found


def first_alarm(losses: npt.ArrayLike, mean: float, level: float, weights: npt.ArrayLike = 1.0) -> int | None:
    """After how many patients "at most `mean`" is rejected with an error probability of `level`; None: not yet.

    >>> first_alarm([1.0] * 4, 0.1, 0.05)
    3
    """
    beyond = np.flatnonzero(log_wealth(losses, mean, weights) >= -np.log(level))
    return int(beyond[0]) + 1 if beyond.size else None


def lower_bound(losses: npt.ArrayLike, level: float, weights: npt.ArrayLike = 1.0) -> float:
    """The largest mean that was ever rejected; the true mean is above it, at all times, with probability 1 − level.

    >>> lower_bound([0.0] * 50, 0.05)
    0.0
    """
    values = np.asarray(losses, dtype=np.float64)
    if not values.any():
        return 0.0
    # Wealth falls in m, so whether m was ever rejected changes once, and halving finds where.
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        rejected = first_alarm(values, middle, level, weights) is not None
        low, high = (middle, high) if rejected else (low, middle)
    return low
