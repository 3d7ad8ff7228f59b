"""Missed urgency at most α on average: conformal risk control.

Angelopoulos, Bates, Fisch, Lei and Schuster, Conformal Risk Control, ICLR 2024. If one more patient is exchangeable
with the n calibration patients and losses ℓ ∈ [0, B] never grow with κ,

    κ̂ = inf{ κ : (Σ_p ℓ_p(κ) + B) / (n + 1) ≤ α }      gives      E[ℓ_{n+1}(κ̂)] ≤ α.

In words: even if the next patient lost all there is to lose, the average would be at most α. Two more estimands have
the same form, with another weight of that worst patient:

    rate         (Σ misses + M) / (Σ slides + M) ≤ α           one more patient with M slides, all missed
    re-weighted  (Σ_p v_p ℓ_p + v_max B) / (Σ_p v_p + v_max)   one more patient of the class that weighs most

The expectation is over the calibration too. The one system that is shipped may do better or worse: see `spread`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.evaluate.certify.miss_losses import LossCurve


def expected_bound(total: npt.ArrayLike, curve: LossCurve) -> Array:
    """(total + worst loss) / (mass + worst weight), the average with one worst patient more.

    Written as one division of whole numbers, which is exact where α is met exactly: 2 misses of 29 and α = 0.1.

    >>> curve = LossCurve.of([], [], [], np.ones(29))
    >>> bool(expected_bound(2, curve) <= 0.1)
    True
    """
    bound: Array = (np.asarray(total, dtype=np.float64) + curve.worst_loss) / (curve.mass + curve.worst_weight)
    return bound


def smallest_alpha(curve: LossCurve) -> float:
    """The smallest α that these patients can certify, even without a single miss: B / (n + 1).

    >>> smallest_alpha(LossCurve.of([], [], [], np.ones(19)))
    0.05
    """
    return min(1.0, float(expected_bound(0.0, curve)))


def patients_needed(alpha: float, curve: LossCurve) -> int:
    """The smallest number of patients that can certify α: ⌈B/α⌉ − 1, or as many as have enough slides.

    >>> [patients_needed(alpha, LossCurve.of([], [], [], np.ones(5))) for alpha in (0.1, 0.05, 0.02, 0.01)]
    [9, 19, 49, 99]
    """
    each = curve.mass / curve.n if curve.n else curve.worst_weight
    # Solved for n, and begun one too low: the loop decides by the very comparison that certifies.
    guess = max(0, math.floor((curve.worst_loss / alpha - curve.worst_weight) / each) - 1)
    while curve.worst_loss / (guess * each + curve.worst_weight) > alpha:
        guess += 1
    return guess
