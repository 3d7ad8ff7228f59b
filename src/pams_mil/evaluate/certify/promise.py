"""One promise: the smallest κ at which missed urgency, of all patients or at one boundary, is at most α."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify import confident, expected
from pams_mil.evaluate.certify.miss_losses import LossCurve
from pams_mil.evaluate.certify.spread import Spread, beta_spread, worth


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
        """How often the promise may be broken, over calibrations."""
        return 0.0 if self.confidence is None else round(1.0 - self.confidence, 12)

    @property
    def words(self) -> str:
        """For people."""
        return "on average" if self.confidence is None else f"with confidence {100 * self.confidence:g} %"

    def accepts(self, total: npt.ArrayLike, curve: LossCurve, alpha: float) -> npt.NDArray[np.bool_]:
        """Whether these summed losses certify α."""
        if self.confidence is None:
            return expected.expected_bound(total, curve) <= alpha
        return confident.is_confident(total, curve, alpha, self.delta)

    def smallest_alpha(self, curve: LossCurve) -> float:
        """The smallest α that these patients can certify."""
        if self.confidence is None:
            return expected.smallest_alpha(curve)
        return confident.smallest_alpha(curve, self.delta)

    def patients_needed(self, alpha: float, curve: LossCurve) -> int:
        """How many such patients can certify α."""
        if self.confidence is None:
            return expected.patients_needed(alpha, curve)
        return confident.patients_needed(alpha, curve, self.delta)


def check_alpha(alpha: float, name: str = "alpha") -> float:
    """α as a share strictly between 0 and 1."""
    if not (isinstance(alpha, (int, float, np.floating)) and 0 < alpha < 1):
        raise ParameterError(
            f"{name} must be a share above 0 and below 1, e.g. 0.05 for 5 % missed urgency, found {alpha!r}."
        )
    return float(alpha)


def smallest_kappa(curve: LossCurve, alpha: float, guarantee: Guarantee) -> float | None:
    """inf{κ ∈ [0, ∞] : α is certified at κ}; None when not even κ = ∞, where nothing is missed, certifies it.

    >>> curve = LossCurve.of([0.5, 2.0, 4.0], [1, 1, 1], [0, 1, 2], np.ones(19), zero_one=True)
    >>> smallest_kappa(curve, 0.1, Guarantee()), smallest_kappa(curve, 0.05, Guarantee())
    (2.0, 4.0)
    >>> smallest_kappa(curve, 0.01, Guarantee()) is None
    True
    """
    kappas = curve.candidates()
    accepted = guarantee.accepts(curve.total(kappas), curve, alpha)
    return float(kappas[np.argmax(accepted)]) if accepted.any() else None


@dataclass(frozen=True)
class Promise:
    """A bound on missed urgency that was certified.

    Attributes:
        name: The class or group whose boundary it is about; None: all patients.
        rank: The finest rank of that boundary; None: all patients.
        alpha: The most missed urgency.
        kappa: The smallest κ that keeps it.
        n: Calibration patients that count.
        mass: What they weigh: patients, or slides under the unit `rate`.
        smallest_alpha: The smallest α that so many patients can certify.
        observed: Missed urgency of the calibration patients at κ.
        spread: Of the miss rate of the one system that is shipped.
    """

    name: str | None
    rank: int | None
    alpha: float
    kappa: float
    n: int
    mass: float
    smallest_alpha: float
    observed: float
    spread: Spread

    def sentence(self, guarantee: str, unit: str, kappa: float) -> str:
        """The promise for people, where the dial is at `kappa`, as far as this promise needs it or further."""
        what = {"case": "patients", "slide": "slides of a random patient", "rate": "slides"}[unit]
        above = "" if self.name is None else f" at or above {self.name}"
        below = "their label" if self.name is None else self.name
        less = ", this one less, since another promise turns κ further" if kappa > self.kappa else ""
        return (
            f"At most {100 * self.alpha:g} % of {what}{above} are called below {below}, {guarantee}; "
            f"90 % of systems calibrated on {self.n} patients miss between {100 * self.spread.low:.2g} and "
            f"{100 * self.spread.high:.2g} %{less}."
        )


@dataclass(frozen=True)
class Shortfall:
    """A promise that these patients cannot certify, and how many could."""

    name: str | None
    alpha: float
    n: int
    smallest_alpha: float
    needed: int

    @property
    def words(self) -> str:
        """For people: how far it is."""
        who = "all patients" if self.name is None else f"patients at or above {self.name}"
        return (
            f"{who}: {self.n} in the calibration, which can certify {100 * self.smallest_alpha:.3g} % and more; "
            f"{100 * self.alpha:g} % takes {self.needed}, that is {self.needed - self.n} more"
        )


def make_promise(
    curve: LossCurve, alpha: float, guarantee: Guarantee, *, name: str | None = None, rank: int | None = None
) -> Promise | Shortfall:
    """Certify α, or say how many patients it would take."""
    kappa = smallest_kappa(curve, alpha, guarantee)
    least = guarantee.smallest_alpha(curve)
    if kappa is None:
        return Shortfall(name, alpha, curve.n, least, guarantee.patients_needed(alpha, curve))
    patients = worth(curve)
    # Losses of k whole patients, k = 0, 1, ...: the largest that still certifies α says how many may be missed.
    counts = np.arange(patients + 1) * (curve.mass / max(1, patients))
    allowed = int(guarantee.accepts(counts, curve, alpha).sum()) - 1
    # Without ties κ̂ leaves exactly as many missed as are allowed.
    tied = curve.zero_one and curve.total(kappa) < allowed
    spread = beta_spread(allowed, patients, exact=curve.zero_one, tied=bool(tied))
    return Promise(name, rank, alpha, kappa, curve.n, curve.mass, least, curve.mean(kappa), spread)
