"""Upper bounds on missed urgency: the smallest κ at which at most α is missed, on average or with a confidence.

**On average**: conformal risk control (Angelopoulos, Bates, Fisch, Lei and Schuster, ICLR 2024). If one more patient is
exchangeable with the n calibration patients and losses ℓ ∈ [0, 1] never grow with κ,

    κ̂ = inf{ κ : (Σ_p ℓ_p(κ) + 1) / (n + 1) ≤ α }      gives      E[ℓ_{n+1}(κ̂)] ≤ α:

even if the next patient were missed, the average would be at most α. Re-weighted to another prevalence it is
(Σ_p v_p ℓ_p + v_max) / (Σ_p v_p + v_max). The expectation is over the calibration set too; how far the one system that
is shipped may be from it is its `Spread`.

**With confidence 1 − δ**: risk-controlling prediction sets (Bates, Angelopoulos, Lei, Malik, Jordan, JACM 2021). With
an upper bound R⁺(κ) that holds at each κ with probability 1 − δ, κ̂ = inf{κ : R⁺(κ) ≤ α} has a risk of at most α with
probability 1 − δ over the calibration patients. Nothing is paid for searching over κ.

| loss | bound |
|---|---|
| 0 or 1 | Clopper and Pearson's, exact: R⁺ = Beta⁻¹(1 − δ; k + 1, n − k) for k misses of n |
| in [0, 1] | Hoeffding and Bentkus: α is certified when p ≤ δ |

    p = min( exp(−n h(min(R̂, α), α)),  e · P[Bin(n, α) ≤ ⌈n R̂⌉] ),    h(a, b) = a ln(a/b) + (1−a) ln((1−a)/(1−b))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from pams_mil.arrays import Array
from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify.miss_losses import ALL_PATIENTS, LossCurve, MissLoss

_TAILS = (0.05, 0.95)


def expected_bound(total: npt.ArrayLike, curve: LossCurve) -> Array:
    """(total + worst) / (mass + worst), the average with one missed patient more.

    Written as one division of whole numbers, which is exact where α is met exactly: 2 misses of 29 and α = 0.1.

    >>> curve = LossCurve.of([], [], [], np.ones(29))
    >>> bool(expected_bound(2, curve) <= 0.1)
    True
    """
    bound: Array = (np.asarray(total, dtype=np.float64) + curve.worst) / (curve.mass + curve.worst)
    return bound


def clopper_pearson(misses: npt.ArrayLike, n: int, delta: float) -> Array:
    """The exact upper bound on a probability after k misses of n, wrong with probability at most δ.

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


@dataclass(frozen=True)
class Guarantee:
    """What "at most α" means: on average (`confidence` None) or with this confidence.

    >>> Guarantee.of("mean").words, Guarantee.of("0.9").words
    ('on average', 'with confidence 90 %')
    """

    confidence: float | None = None

    @classmethod
    def of(cls, value: str | float) -> Guarantee:
        """The word "mean", or a confidence between 0 and 1."""
        if value == "mean":
            return cls()
        try:
            confidence = float(value)
        except (TypeError, ValueError):
            confidence = float("nan")
        if not 0 < confidence < 1:
            raise ParameterError(f"The guarantee must be 'mean' or a confidence such as 0.9, found {value!r}.")
        return cls(confidence)

    @property
    def delta(self) -> float:
        """How often the bound may be exceeded, over calibration sets."""
        return 0.0 if self.confidence is None else round(1.0 - self.confidence, 12)

    @property
    def words(self) -> str:
        """For people."""
        return "on average" if self.confidence is None else f"with confidence {100 * self.confidence:g} %"

    def accepts(self, total: npt.ArrayLike, curve: LossCurve, alpha: float) -> npt.NDArray[np.bool_]:
        """Whether these summed losses certify α."""
        if self.confidence is None:
            return expected_bound(total, curve) <= alpha
        if curve.zero_one:
            return clopper_pearson(total, curve.n, self.delta) <= alpha
        return hoeffding_bentkus(np.asarray(total) / max(1, curve.n), curve.n, alpha) <= self.delta

    def smallest_alpha(self, curve: LossCurve) -> float:
        """The smallest α that these patients can certify, even without a single miss.

        >>> curve = LossCurve.of([], [], [], np.ones(19), zero_one=True)
        >>> Guarantee().smallest_alpha(curve), round(Guarantee(0.9).smallest_alpha(curve), 4)
        (0.05, 0.1141)
        """
        if self.confidence is None:
            return min(1.0, float(expected_bound(0.0, curve)))
        # Without a miss, Hoeffding and Bentkus give (1 − α)^n as Clopper and Pearson do.
        return 1.0 - self.delta ** (1.0 / curve.n) if curve.n else 1.0

    def patients_needed(self, alpha: float, curve: LossCurve) -> int:
        """The smallest number of patients like these that can certify α: ⌈1/α⌉ − 1, or ⌈ln δ / ln(1 − α)⌉.

        >>> curve = LossCurve.of([], [], [], np.ones(5), zero_one=True)
        >>> [Guarantee().patients_needed(alpha, curve) for alpha in (0.1, 0.05, 0.02, 0.01)]
        [9, 19, 49, 99]
        >>> [Guarantee(0.9).patients_needed(alpha, curve) for alpha in (0.1, 0.05, 0.02, 0.01)]
        [22, 45, 114, 230]
        """
        # Further patients are taken to weigh what these do on average.
        each = curve.mass / curve.n if curve.n else curve.worst
        if self.confidence is None:
            guess = curve.worst * (1.0 / alpha - 1.0) / each
        else:
            guess = math.log(self.delta) / math.log1p(-alpha)

        def enough(n: int) -> bool:
            more = LossCurve.of([], [], [], np.full(n, each), worst=curve.worst, zero_one=curve.zero_one)
            return bool(self.accepts(0.0, more, alpha))

        # Begun one too low: the comparison that certifies decides, not the rounding of a logarithm.
        needed = max(0, math.floor(guess) - 1)
        while not enough(needed):
            needed += 1
        return needed


def smallest_kappa(curve: LossCurve, alpha: float, guarantee: Guarantee) -> float | None:
    """inf{κ ∈ [0, ∞] : α is certified at κ}; None when not even κ = ∞, where nothing is missed, certifies it.

    >>> curve = LossCurve.of([0.5, 2.0, 4.0], [1, 1, 1], [0, 1, 2], np.ones(19), zero_one=True)
    >>> smallest_kappa(curve, 0.1, Guarantee()), smallest_kappa(curve, 0.05, Guarantee())
    (2.0, 4.0)
    >>> smallest_kappa(curve, 0.01, Guarantee()) is None
    True
    """
    kappas = np.unique(np.concatenate(([0.0], curve.kappa, [np.inf])))  # between them nothing changes
    accepted = guarantee.accepts(curve.total(kappas), curve, alpha)
    return float(kappas[np.argmax(accepted)]) if accepted.any() else None


@dataclass(frozen=True)
class Spread:
    """How far the one system that is shipped may be from the average: 90 % of systems lie between `low` and `high`.

    κ̂ depends on which patients happened to calibrate it, and so does the miss rate of the shipped system. For a 0/1
    loss with continuous scores it is known exactly: if m misses of n are allowed, κ̂ is the (m + 1)-th largest of n
    independent values, and the miss rate beyond it is distributed as Beta(m + 1, n − m), mean (m + 1)/(n + 1).

    With ties, or where fewer could be missed than were allowed, it is smaller, by how much is not known: where the
    calibration set itself misses fewer than m, the lower end is 0. Patients who can lose a part (some of their slides)
    vary less than patients who lose all or nothing, so the same distribution is an upper end for them.

    Attributes:
        low, high: The 5 % and the 95 % quantile.
        mean: The expected miss rate.
        allowed: Misses that the calibration set allows, m.
        patients: Patients' worth of evidence, n.
        exact: Whether losses are 0 or 1.
    """

    low: float
    high: float
    mean: float
    allowed: int
    patients: int
    exact: bool = True

    @property
    def how(self) -> str:
        """How it is known, in words."""
        if self.allowed >= self.patients:
            return "the bound is vacuous"
        how = "exact for scores without ties, an upper end with them"
        beta = f"Beta({self.allowed + 1}, {self.patients - self.allowed})"
        return f"{beta}, {how if self.exact else 'an upper end: treats losses as 0/1'}"


def beta_spread(allowed: int, n: int, *, exact: bool = True, tied: bool = False) -> Spread:
    """The spread of the miss rate when `allowed` misses of n patients are allowed, and not as many occur where `tied`.

    >>> spread = beta_spread(1, 19)  # α = 10 %
    >>> round(spread.low, 3), round(spread.high, 3), spread.mean
    (0.019, 0.226, 0.1)
    """
    # Beta needs n − m above 0, and a bound that all may exceed says nothing.
    if allowed >= n:
        return Spread(0.0, 1.0, 1.0, allowed, n, exact)
    a, b = allowed + 1, n - allowed
    low, high = special.betaincinv(a, b, _TAILS).tolist()
    return Spread(0.0 if tied else low, high, a / (a + b), allowed, n, exact)


def effective_patients(curve: LossCurve) -> int:
    """Patients' worth of evidence, (Σ w)² / Σ w² rounded down: all of them where they weigh the same.

    >>> effective_patients(LossCurve.of([], [], [], [1, 1, 1])), effective_patients(LossCurve.of([], [], [], [4, 1, 1]))
    (3, 2)
    """
    squares = float((curve.weight**2).sum())
    # Rounded down: fewer patients mean a wider spread. The small number saves whole ones from rounding.
    return math.floor(curve.mass**2 / squares + 1e-9) if squares else 0


@dataclass(frozen=True, kw_only=True)
class Bound(MissLoss):
    """A certified upper bound on missed urgency.

    Attributes:
        alpha: The most missed urgency.
        kappa: The smallest κ that meets it.
        n: Calibration patients that count.
        mass: Their weight: n, unless a prevalence re-weights them.
        smallest_alpha: The smallest α that n patients can certify.
        observed: Missed urgency of the calibration patients at κ.
        spread: Of the miss rate of the one system that is shipped.
    """

    alpha: float
    kappa: float
    n: int
    mass: float
    smallest_alpha: float
    observed: float
    spread: Spread

    def sentence(self, guarantee: str, unit: str, kappa: float, *, weighted: bool = False) -> str:
        """The bound for people, where the operating point is `kappa`, as large as this bound needs it or larger.

        `weighted`: findings count by the weights of the class file.
        """
        what = {"case": "patients", "slide": "slides of a random patient"}[unit]
        above = "" if self.at is None else f" at or above {self.at}"
        missed = f"{what}{above} are called below {'their label' if self.at is None else self.at}"
        if self.findings:
            whose = "a patient" if unit == "case" else "a random slide of a patient"
            missed = f"the findings of {whose}{', counted by weight,' if weighted else ''} are missed"
        alone = f"By {self.order} (κ = {self.kappa:.4g} alone): " if self.order else ""
        less = ", this one less, since another bound needs a larger κ" if kappa > self.kappa else ""
        return (
            f"{alone}At most {100 * self.alpha:g} % of {missed}, {guarantee}; "
            f"90 % of systems calibrated on {self.n} patients miss between {100 * self.spread.low:.2g} and "
            f"{100 * self.spread.high:.2g} %{less}."
        )


@dataclass(frozen=True, kw_only=True)
class Shortfall(MissLoss):
    """A bound that these patients cannot certify, and how many could."""

    alpha: float
    n: int
    smallest_alpha: float
    needed: int

    @property
    def words(self) -> str:
        """For people: how many patients are missing."""
        return (
            f"{self.who}: {self.n} in the calibration set, which can certify {100 * self.smallest_alpha:.3g} % and "
            f"more; {100 * self.alpha:g} % takes {self.needed}, that is {self.needed - self.n} more"
        )


def certified_bound(
    curve: LossCurve, alpha: float, guarantee: Guarantee, loss: MissLoss = ALL_PATIENTS
) -> Bound | Shortfall:
    """Certify α, or say how many patients it would take; `curve` is that of the loss."""
    kappa = smallest_kappa(curve, alpha, guarantee)
    known = {**vars(loss), "alpha": alpha, "n": curve.n, "smallest_alpha": guarantee.smallest_alpha(curve)}
    if kappa is None:
        return Shortfall(**known, needed=guarantee.patients_needed(alpha, curve))
    patients = effective_patients(curve)
    # Losses of k whole patients, k = 0, 1, ...: the largest that still certifies α says how many may be missed.
    counts = np.arange(patients + 1) * (curve.mass / max(1, patients))
    allowed = int(guarantee.accepts(counts, curve, alpha).sum()) - 1
    # Without ties κ̂ leaves exactly as many missed as are allowed.
    tied = curve.zero_one and curve.total(kappa) < allowed
    spread = beta_spread(allowed, patients, exact=curve.zero_one, tied=bool(tied))
    return Bound(**known, kappa=kappa, mass=curve.mass, observed=curve.mean(kappa), spread=spread)
