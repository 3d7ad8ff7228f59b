"""Missed urgency at most α with confidence 1 − δ: upper bounds on the risk of the system that is shipped.

Risk-controlling prediction sets (Bates, Angelopoulos, Lei, Malik, Jordan, JACM 2021): with an upper bound R⁺(κ) that
holds at each κ with probability 1 − δ, and losses that never grow with κ, κ̂ = inf{κ : R⁺(κ) ≤ α} has a risk of at most
α with probability 1 − δ over the calibration patients. Nothing is paid for searching over κ.

| loss | bound |
|---|---|
| 0 or 1 | Clopper and Pearson's, exact: R⁺ = Beta⁻¹(1 − δ; k + 1, n − k) for k misses of n |
| in [0, 1] | Hoeffding and Bentkus: α is certified when p ≤ δ |

    p = min( exp(−n h(min(R̂, α), α)),  e · P[Bin(n, α) ≤ ⌈n R̂⌉] ),    h(a, b) = a ln(a/b) + (1−a) ln((1−a)/(1−b))
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from pams_mil.arrays import Array
from pams_mil.evaluate.certify.miss_losses import LossCurve


def clopper_pearson(misses: npt.ArrayLike, n: int, delta: float) -> Array:
    """The exact upper bound on a probability after so many misses of n, wrong with probability at most δ.

    >>> clopper_pearson([0, 22], 22, 0.1).round(4).tolist()
    [0.0994, 1.0]
    """
    k = np.asarray(misses, dtype=np.float64)
    inside = k < n
    # n misses of n leave 1; betaincinv has no second parameter of 0, so 1 stands in for it.
    bound: Array = np.where(inside, special.betaincinv(k + 1, np.where(inside, n - k, 1.0), 1.0 - delta), 1.0)
    return bound


def hoeffding_bentkus(mean: npt.ArrayLike, n: int, alpha: float) -> Array:
    """p-value of "the risk is above α" when n losses in [0, 1] have this mean.

    >>> hoeffding_bentkus([0.0, 0.05, 0.1], 100, 0.1).round(4).tolist()
    [0.0, 0.1565, 1.0]
    """
    r = np.asarray(mean, dtype=np.float64)
    if n == 0:
        return np.ones_like(r)
    a = np.minimum(r, alpha)
    h = special.rel_entr(a, alpha) + special.rel_entr(1.0 - a, 1.0 - alpha)
    # n times a mean of n numbers may lie a rounding above the whole number that it is
    counted = np.clip(np.ceil(np.round(n * r, 9)), 0, n)
    bentkus = math.e * special.bdtr(counted, n, alpha)
    p: Array = np.minimum(1.0, np.minimum(np.exp(-n * h), bentkus))
    return p


def is_confident(total: npt.ArrayLike, curve: LossCurve, alpha: float, delta: float) -> npt.NDArray[np.bool_]:
    """Whether a summed loss certifies α with confidence 1 − δ."""
    if curve.zero_one:
        return clopper_pearson(total, curve.n, delta) <= alpha
    # The level that α becomes when losses are scaled into [0, 1]: α itself unless B and W differ.
    level = alpha * curve.worst_weight / curve.worst_loss
    return hoeffding_bentkus(_scaled_mean(total, curve, alpha), curve.n, level) <= delta


def _scaled_mean(total: npt.ArrayLike, curve: LossCurve, alpha: float) -> Array:
    """The mean of losses scaled into [0, 1] so that it is αW/B where the risk is α.

    A patient with w slides of at most W loses misses − αw ∈ [−αW, (1−α)W]; that is moved and scaled to
    (misses + α (W − w)) / W. With w = W = 1 it is the loss itself, over B.
    """
    most = curve.worst_loss
    mean: Array = (np.asarray(total) + alpha * (curve.n * curve.worst_weight - curve.mass)) / (max(1, curve.n) * most)
    return mean


def smallest_alpha(curve: LossCurve, delta: float) -> float:
    """The smallest α that these patients can certify without a single miss: 1 − δ^(1/n) where losses are 0 or 1.

    >>> round(smallest_alpha(LossCurve.of([], [], [], np.ones(22), zero_one=True), 0.1), 4)
    0.0994
    """
    low, high = 0.0, 1.0
    if not curve.n:
        return 1.0
    # By halving, since only 0/1 losses have a closed form.
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if is_confident(0.0, curve, middle, delta) else (middle, high)
    return high


def patients_needed(alpha: float, curve: LossCurve, delta: float) -> int:
    """The smallest number of patients like these that can certify α without a miss: ⌈ln δ / ln(1 − α)⌉ for 0 or 1.

    >>> curve = LossCurve.of([], [], [], np.ones(5), zero_one=True)
    >>> [patients_needed(alpha, curve, delta) for alpha, delta in ((0.1, 0.1), (0.05, 0.1), (0.05, 0.05), (0.02, 0.05))]
    [22, 45, 59, 149]
    """
    # Further patients are taken to weigh what these do on average.
    each = curve.mass / curve.n if curve.n else curve.worst_weight

    def enough(n: int) -> bool:
        same = LossCurve.of(
            [], [], [], np.full(n, each), worst_loss=curve.worst_loss, worst_weight=curve.worst_weight,
            zero_one=curve.zero_one,
        )  # fmt: skip
        return bool(is_confident(0.0, same, alpha, delta))

    # Doubled until it is enough, then halved back to the first that is.
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
