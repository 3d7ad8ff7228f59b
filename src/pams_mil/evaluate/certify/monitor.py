"""Does a guarantee still hold? New patients against a certificate, with labels and without.

**With labels.** Patients come one after another with losses ℓ_1, ℓ_2, ... in [0, 1]. Somebody who doubts that their
mean is at most m bets a fixed share c of the wealth on every patient. If the mean is at most m, that wealth cannot be
expected to grow:

    K_t(m) = mean over c of  Π_{i ≤ t} (1 − c + c ℓ_i / m),        P[ K_t(m) ever reaches 1/δ ] ≤ δ     (Ville)

so "the mean is above m" may be declared at any time, however often one looks. K falls in m, so all m that were ever
rejected form an interval from 0: its end is a lower bound on the mean that holds at all times at once. (Waudby-Smith
and Ramdas, Estimating means of bounded random variables by betting, JRSS B 2024; Podkopaev and Ramdas, ICLR 2022.)

With a confidence the guarantee is about the one system in use, and m = α. On average it is about all systems that could
have been calibrated, and the miss rate θ of the one in use may well be above α although patients are as they were. So
the error probability is divided: with probability 1 − δ/2 over the calibration set θ is at most a limit r, and
m = r is tested at δ/2. Then the chance that a guarantee that holds is ever called violated is at most δ. For r: if θ
exceeds r, the calibration set missed no more than was allowed at an operating point whose risk is above r, so r is
the upper confidence bound of a risk after as many misses as were allowed.

**Without labels.** The call of a patient depends on its probabilities only through the κ at which each rank is reached.
If new patients are exchangeable with the calibration patients, so are those values, and shuffling who is new must not
matter:

    D = max over ranks of the largest distance between the two empirical distributions (Kolmogorov and Smirnov)
    p = share of shuffles of the patients with a D at least as large, the observed one counted in

Only the order of the values matters, so ∞ (never reached) is one more value. Patients are shuffled, not slides.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from pams_mil.arrays import Array, Bools, Ints
from pams_mil.errors import ParameterError, PredictionsError
from pams_mil.evaluate.certify.bounds import Bound, Guarantee, clopper_pearson, hoeffding_bentkus
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.make import require_one_model, require_patients, views_by_order
from pams_mil.evaluate.certify.miss_losses import FindingReach, SlideReach, Unit
from pams_mil.evaluate.predictions.findings import called_sets
from pams_mil.evaluate.predictions.predictions import Predictions

LEVEL = 0.05
DRIFT_LEVEL = 0.01
SHUFFLES = 2000
STAKES = tuple(0.5**power for power in range(1, 11))
"""The shares c: from one half, for a bound exceeded by far, to a thousandth, for one exceeded slightly."""
State = Literal["no patients", "no evidence against it", "above α, within calibration sampling error", "violated"]


@dataclass(frozen=True)
class BoundCheck:
    """One bound against new labeled patients.

    Attributes:
        bound: What was certified.
        n: New patients that it is about.
        observed: Their missed urgency.
        at_least: The miss rate is above this, at all times at once, with probability 1 - level.
        limit: The miss rate up to which calibration sampling error explains it; α with a confidence.
        alarm: After how many patients the bound was found to be violated; None: it was not.
        level: How probable it is that a bound that holds is ever called violated.
    """

    bound: Bound
    n: int
    observed: float
    at_least: float
    limit: float
    alarm: int | None
    level: float

    @property
    def state(self) -> State:
        """The verdict."""
        if not self.n:
            return "no patients"
        if self.alarm is not None:
            return "violated"
        above = self.at_least > self.bound.alpha
        return "above α, within calibration sampling error" if above else "no evidence against it"

    @property
    def words(self) -> str:
        """For people."""
        bound, who = self.bound, self.bound.who
        by = f"By {bound.order}: " if bound.order else ""
        if not self.n:
            return f"{by}Of {who} none is new: nothing can be said about the bound of {100 * bound.alpha:g} %."
        missed = f"{100 * self.observed:.3g} % missed of {self.n} new ones, at most {100 * bound.alpha:g} % certified"
        seen = f"{by}{who[0].upper()}{who[1:]}: {missed}."
        if self.state == "no evidence against it":
            return f"{seen} No evidence against the guarantee."
        at_least = f"is above {100 * self.at_least:.3g} % (error probability {100 * self.level:.3g} %, at any time)"
        explains = f"calibration sampling error explains up to {100 * self.limit:.3g} %"
        if self.alarm is None:
            return f"{seen} The miss rate {at_least}: more than the certified average, but {explains}."
        more = f" and {explains}" if self.limit > bound.alpha else ""
        return (
            f"{seen} The guarantee is violated: the miss rate {at_least}{more}, first seen after {self.alarm} patients."
        )

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "at": self.bound.at, "findings": self.bound.findings, "order": self.bound.order,
            "alpha": self.bound.alpha, "n": self.n, "observed": self.observed, "at_least": self.at_least,
            "limit": self.limit, "alarm_after": self.alarm, "level": self.level, "state": self.state,
        }  # fmt: skip


@dataclass(frozen=True)
class Drift:
    """`n` new patients against the calibration set without labels: the largest distance and the rank it was found at.

    At a p-value of all distances up to `level` patients are said to differ.
    """

    distance: float
    rank: int
    p_value: float
    n: int
    level: float = DRIFT_LEVEL

    @property
    def differs(self) -> bool:
        """Whether the patients differ at the level."""
        return self.p_value <= self.level

    @property
    def words(self) -> str:
        """For people."""
        verdict = "they differ from" if self.differs else "no sign that they differ from"
        return (
            f"Without labels, {self.n} new patients: {verdict} the calibration patients at the level {self.level:g} "
            f"(p = {self.p_value:.2g}, largest distance {self.distance:.2f} at rank {self.rank})."
        )


@dataclass(frozen=True)
class Monitoring:
    """What new patients say about a certificate."""

    checks: tuple[BoundCheck, ...]
    drift: Drift
    notes: tuple[str, ...] = ()

    @property
    def is_violated(self) -> bool:
        """Whether any bound is."""
        return any(check.state == "violated" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "bounds": [check.to_json() for check in self.checks],
            "violated": self.is_violated,
            "drift": {**asdict(self.drift), "differs": self.drift.differs},
            "notes": list(self.notes),
        }


def monitor(
    certificate: Certificate,
    predictions: Predictions,
    *,
    level: float = LEVEL,
    drift_level: float = DRIFT_LEVEL,
    seed: int = 0,
    seen_patients: bool = False,
    patients_are_slides: bool = False,
) -> Monitoring:
    """Test every bound on new labeled patients, in the order in which they came.

    Without labels (every target is -1) patients are only compared with the calibration patients. Of several orders each
    one's bounds are tested on its own call at the common κ, which the answer holds; patients are compared by the first.

    Args:
        certificate: What was certified, under one order or several.
        predictions: New patients, by the certified weights.
        level: How probable it may be that any bound is ever called violated although the guarantee holds.
        drift_level: The p-value from which on, downward, patients are said to differ from the calibration patients.
        seed: Of the shuffles behind the comparison without labels.
        seen_patients: Go on with patients that the weights or the certificate have seen; the result says so.
        patients_are_slides: Each slide of a file without patients is a patient.
    """
    certificate.refuse_other_classes(predictions.hierarchy, predictions.name)
    if predictions.weights:
        certificate.refuse_other_weights(predictions.weights)
    require_patients(predictions, patients_are_slides=patients_are_slides)
    require_one_model(predictions)
    if not 0 < level < 1:
        raise ParameterError(f"level must be a probability above 0 and below 1, found {level!r}.")
    known = certificate.exposure.roles(predictions.slide_ids, predictions.patients)
    stated = predictions.roles or [frozenset()] * len(predictions)
    roles = [one | two for one, two in zip(known, stated, strict=True)]
    exposed = replace(predictions, roles=roles, exposure_known=True)
    notes = list(exposed.admitted("monitoring", seen_patients=seen_patients).notes[len(predictions.notes) :])
    if not predictions.weights and predictions.layout != "memory":
        notes.append("Whether the certified weights made these predictions is not known from the file.")
    unlabeled = predictions.target < 0
    if unlabeled.any() and not unlabeled.all():
        raise PredictionsError(
            f"{predictions.name}: {int(unlabeled.sum())} of {len(unlabeled)} rows have no label. Monitor the labeled "
            "rows and the others in two files."
        )
    reach = SlideReach.of(predictions).as_unit("case").reach[:, 1:]
    drift = breakpoint_drift(certificate.breakpoints, reach, level=drift_level, seed=seed)
    if unlabeled.all():
        return Monitoring((), drift, (*notes, "Without labels, the guarantee itself is not tested."))
    views = views_by_order(predictions.with_orders(certificate.hierarchy))
    # Bonferroni: the level is for any of the bounds.
    share = level / len(certificate.bounds)
    checks = [_check(certificate, bound, views[bound.order], share) for bound in certificate.bounds]
    return Monitoring(tuple(checks), drift, tuple(notes))


def find_violation(
    losses: npt.ArrayLike, bound: Bound, guarantee: Guarantee, unit: Unit, level: float
) -> tuple[int | None, float, float]:
    """After how many patients a bound is found to be violated (None: not yet), the mean tested, and at which level."""
    limit, share = bound.alpha, level
    if guarantee.confidence is None:
        limit, share = risk_limit(bound, unit, level / 2), level / 2
    return first_alarm(losses, limit, share), limit, share


def risk_limit(bound: Bound, unit: Unit, delta: float) -> float:
    """The miss rate that at most a share δ of systems exceeds, over the calibration sets of a bound on average.

    >>> from pams_mil.evaluate.certify.bounds import beta_spread
    >>> spread, n = beta_spread(1, 19), 19
    >>> bound = Bound(alpha=0.1, kappa=2.0, n=n, mass=19.0, smallest_alpha=0.05, observed=0.05, spread=spread)
    >>> round(risk_limit(bound, "case", 0.05), 3) == round(bound.spread.high, 3)
    True
    """
    if unit == "case" and not bound.findings:
        return float(clopper_pearson(bound.spread.allowed, bound.spread.patients, delta))
    # Losses in parts: the largest sum that certifies α on average, (Σ + 1) / (n + 1) ≤ α.
    mean = max(0.0, bound.alpha * (bound.n + 1) - 1) / bound.n
    low, high = mean, 1.0
    # The p-value falls in the risk beyond the mean.
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if hoeffding_bentkus(mean, bound.n, middle) <= delta else (middle, high)
    return high


def log_wealth(losses: npt.ArrayLike, mean: float) -> Array:
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
    wealth = np.cumsum(np.log1p(stakes * (values / mean - 1.0)), axis=1)
    logs: Array = special.logsumexp(wealth, axis=0) - np.log(len(stakes))
    return logs


def first_alarm(losses: npt.ArrayLike, mean: float, level: float) -> int | None:
    """After how many patients "at most `mean`" is rejected with an error probability of `level`; None: not yet.

    >>> first_alarm([1.0] * 4, 0.1, 0.05)
    3
    """
    beyond = np.flatnonzero(log_wealth(losses, mean) >= -np.log(level))
    return int(beyond[0]) + 1 if beyond.size else None


def lower_bound(losses: npt.ArrayLike, level: float) -> float:
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
        low, high = (middle, high) if first_alarm(values, middle, level) is not None else (low, middle)
    return low


def breakpoint_drift(
    before: npt.ArrayLike, now: npt.ArrayLike, *, level: float = DRIFT_LEVEL, seed: int = 0, shuffles: int = SHUFFLES
) -> Drift:
    """Compare two groups of patients by where they reach each rank: [p, r] and [q, r], one row per patient.

    >>> rng = np.random.default_rng(0)
    >>> breakpoint_drift(rng.random((40, 2)), rng.random((30, 2)) + 0.5).p_value < 0.01
    True
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(now, dtype=np.float64)
    if first.ndim != 2 or first.shape[1:] != second.shape[1:] or not first.size or not second.size:
        raise ParameterError(
            "Expected two tables [patients, ranks above the lowest] with at least one of each, found shapes "
            f"{first.shape} and {second.shape}."
        )
    if np.isnan(first).any() or np.isnan(second).any():
        raise ParameterError("The κ at which a rank is reached must be a number or ∞, found none.")
    if not 1 / (shuffles + 1) <= level < 1:
        raise ParameterError(f"The drift level must be from {1 / (shuffles + 1):.2g} to below 1, found {level!r}.")
    pooled = np.concatenate([first, second])
    is_new = np.arange(len(pooled)) >= len(first)
    # Shuffling who is new leaves the values in place, so each column is sorted once for all shuffles, [r, p + q].
    orders = np.argsort(pooled.T, axis=1, kind="stable")
    ordered = np.take_along_axis(pooled.T, orders, axis=1)
    # A distance counts only after the last of equal values.
    ends = np.append(ordered[:, 1:] != ordered[:, :-1], np.ones((len(ordered), 1), dtype=bool), axis=1)

    def distances(is_new: Bools) -> Ints:
        """How far the two shares of every column lie apart at most, times p q: whole numbers, so that ties are ties."""
        ahead = np.cumsum(np.where(is_new, len(first), -len(second))[orders], axis=1)
        largest: Ints = np.max(np.abs(ahead, out=ahead), axis=1, where=ends, initial=0)
        return largest

    observed, rng = distances(is_new), np.random.default_rng(seed)
    extreme = sum(int(distances(rng.permutation(is_new)).max() >= observed.max()) for _ in range(shuffles))
    p_value = (extreme + 1) / (shuffles + 1)
    distance = float(observed.max()) / (len(first) * len(second))
    return Drift(distance, int(observed.argmax()) + 1, p_value, len(second), level)


def _check(certificate: Certificate, bound: Bound, predictions: Predictions, level: float) -> BoundCheck:
    if bound.findings:
        # What the sets that people see miss: at most what the bound counts, as the most urgent call is always in them.
        called = called_sets(predictions, certificate.kappa)
        reach = replace(FindingReach.of(predictions), reach=np.where(called, 0.0, np.inf))
        curve = reach.miss_losses(certificate.unit)
    else:
        curve = bound.curve(predictions, certificate.unit)
    losses = curve.losses(certificate.kappa)
    alarm, limit, share = find_violation(losses, bound, certificate.guarantee, certificate.unit, level)
    observed, at_least = curve.mean(certificate.kappa), lower_bound(losses, share)
    return BoundCheck(bound, curve.n, observed, at_least, limit, alarm, level)
