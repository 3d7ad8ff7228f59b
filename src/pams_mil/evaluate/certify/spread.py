"""How far the one system that is shipped may be from the average that was promised.

κ̂ depends on which patients happened to calibrate it, and so does the miss rate of the shipped system. For a 0/1 loss
with continuous scores it is known exactly: if m misses of n are allowed, κ̂ is the (m + 1)-th largest of n independent
values, and the miss rate beyond it is distributed as

    Beta(m + 1, n − m),      mean (m + 1)/(n + 1).

With ties, or where fewer could be missed than were allowed, it is smaller. Other losses are resampled by patient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from pams_mil.evaluate.certify.losses import LossCurve

RESAMPLES = 500
_TAILS = (0.05, 0.95)


@dataclass(frozen=True)
class Spread:
    """Between `low` and `high` lie 90 % of the systems that could have been shipped; `how` says how that is known."""

    low: float
    high: float
    mean: float
    how: str

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {"p5": self.low, "p95": self.high, "mean": self.mean, "how": self.how}


def beta_spread(allowed: int, n: int) -> Spread:
    """The spread of the miss rate when `allowed` misses of n patients are allowed.

    >>> spread = beta_spread(1, 19)  # α = 10 %
    >>> round(spread.low, 3), round(spread.high, 3), spread.mean
    (0.019, 0.226, 0.1)
    """
    if allowed >= n:
        return Spread(0.0, 1.0, 1.0, "nothing was asked of the system")
    a, b = allowed + 1, n - allowed
    low, high = special.betaincinv(a, b, _TAILS).tolist()
    return Spread(low, high, a / (a + b), f"Beta({a}, {b}), exact for scores without ties and an upper end with them")


def resampled_spread(
    curve: LossCurve, choose: Callable[[LossCurve], float | None], *, seed: int = 0, resamples: int = RESAMPLES
) -> Spread:
    """The miss rate, among the calibration patients, of systems calibrated on resampled patients."""
    rng = np.random.default_rng(seed)
    found = np.empty(resamples)
    for draw in range(resamples):
        times = np.bincount(rng.integers(0, curve.n, curve.n), minlength=curve.n).astype(np.float64)
        kept = times[curve.patient] > 0
        drawn = replace(
            curve, kappa=curve.kappa[kept], drop=(curve.drop * times[curve.patient])[kept],
            patient=curve.patient[kept], weight=curve.weight * times,
        )  # fmt: skip
        kappa = choose(drawn)
        found[draw] = curve.mean(np.inf if kappa is None else kappa)
    low, high = np.quantile(found, _TAILS).tolist()
    return Spread(low, high, float(found.mean()), f"{resamples} resamples of patients")
