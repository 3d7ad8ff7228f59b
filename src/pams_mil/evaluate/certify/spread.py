"""How far the one system that is shipped may be from the average that was promised.

κ̂ depends on which patients happened to calibrate it, and so does the miss rate of the shipped system. For a 0/1 loss
with continuous scores it is known exactly: if m misses of n are allowed, κ̂ is the (m + 1)-th largest of n independent
values, and the miss rate beyond it is distributed as

    Beta(m + 1, n − m),      mean (m + 1)/(n + 1).

With ties, or where fewer could be missed than were allowed, it is smaller, by how much is not known: where the
calibration itself misses fewer than m, the lower end is 0. Patients who can lose a part (some of their slides) vary
less than patients who lose all or nothing, so the same distribution is used as an upper end for them, with

    n = (Σ w)² / Σ w²       patients' worth of evidence where patients weigh w (slides under `rate`, or a prevalence).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy import special

from pams_mil.evaluate.certify.miss_losses import LossCurve

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


def beta_spread(allowed: int, n: int, *, exact: bool = True, tied: bool = False) -> Spread:
    """The spread of the miss rate when `allowed` misses of n patients are allowed, and not as many occur where `tied`.

    >>> spread = beta_spread(1, 19)  # α = 10 %
    >>> round(spread.low, 3), round(spread.high, 3), spread.mean
    (0.019, 0.226, 0.1)
    """
    # Beta needs n − m above 0, and a promise that all may break promises nothing.
    if allowed >= n:
        return Spread(0.0, 1.0, 1.0, "nothing was asked of the system")
    a, b = allowed + 1, n - allowed
    low, high = special.betaincinv(a, b, _TAILS).tolist()
    how = (
        "exact for scores without ties, an upper end with them" if exact else "an upper end: no patient loses by halves"
    )
    return Spread(0.0 if tied else low, high, a / (a + b), f"Beta({a}, {b}), {how}")


def worth(curve: LossCurve) -> int:
    """Patients' worth of evidence, (Σ w)² / Σ w² rounded down: all of them where they weigh the same.

    >>> worth(LossCurve.of([], [], [], [1, 1, 1])), worth(LossCurve.of([], [], [], [4, 1, 1]))
    (3, 2)
    """
    squares = float((curve.weight**2).sum())
    # Rounded down: fewer patients mean a wider spread. The small number saves whole ones from rounding.
    return math.floor(curve.mass**2 / squares + 1e-9) if squares else 0
