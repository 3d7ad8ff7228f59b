"""Is the promise still kept? New patients against a certificate, with labels and without.

With labels, every promise is tested in a way that may be looked at after every patient (see `betting`). A promise on
average is about all systems that could have been calibrated, so two questions are asked of the one that is used: is
its miss rate above α, and is it above what the luck of calibration explains (the upper end of the spread)?
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.evaluate.certify.betting import first_alarm, lower_bound
from pams_mil.evaluate.certify.breakpoint_drift import Drift, breakpoint_drift
from pams_mil.evaluate.certify.calls import Dial, path_of, rank_index, rank_reach
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.miss_losses import LossCurve, miss_losses
from pams_mil.evaluate.certify.promise import Promise
from pams_mil.evaluate.predictions import Predictions, numbered

LEVEL = 0.05
State = Literal["no patients", "no evidence against it", "above α, within the luck of calibration", "broken"]


@dataclass(frozen=True)
class PromiseCheck:
    """One promise against new labelled patients.

    Attributes:
        promise: What was promised.
        n: New patients that it is about.
        observed: Their missed urgency.
        at_least: The miss rate is above this, at all times at once, with probability 1 - level.
        alarm: After how many patients "at most α" was rejected; None: it was not.
        level: How probable a false alarm is, ever.
        state: The verdict.
    """

    promise: Promise
    n: int
    observed: float
    at_least: float
    alarm: int | None
    level: float
    state: State

    @property
    def words(self) -> str:
        """For people."""
        promise = self.promise
        who = "all patients" if promise.name is None else f"patients at or above {promise.name}"
        if not self.n:
            return f"Of {who} none is new: nothing can be said about the promised {100 * promise.alpha:g} %."
        missed = f"{100 * self.observed:.3g} % missed of {self.n} new ones, {100 * promise.alpha:g} % promised"
        seen = f"{who[0].upper()}{who[1:]}: {missed}."
        if self.alarm is None:
            return f"{seen} No evidence against the promise."
        bound = f"is above {100 * self.at_least:.3g} % (error probability {100 * self.level:.3g} %, at any time)"
        if self.state == "broken":
            return f"{seen} The promise is broken: it {bound}, first seen after {self.alarm} patients."
        return (
            f"{seen} It {bound}: more than promised on average, but the luck of calibration explains up to "
            f"{100 * promise.spread.high:.3g} %."
        )

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "at": self.promise.name, "alpha": self.promise.alpha, "n": self.n, "observed": self.observed,
            "at_least": self.at_least, "alarm_after": self.alarm, "level": self.level, "state": self.state,
        }  # fmt: skip


@dataclass(frozen=True)
class Monitoring:
    """What new patients say about a certificate."""

    checks: tuple[PromiseCheck, ...]
    drift: Drift
    notes: tuple[str, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Whether any promise is."""
        return any(check.state == "broken" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "promises": [check.to_json() for check in self.checks],
            "broken": self.is_broken,
            "drift": asdict(self.drift),
            "notes": list(self.notes),
        }


def monitor(certificate: Certificate, predictions: Predictions, *, level: float = LEVEL, seed: int = 0) -> Monitoring:
    """Check every promise on new labelled patients, given in the order in which they came.

    Args:
        certificate: What was promised.
        predictions: New patients, not those of the calibration.
        level: How probable it may be that any promise is ever called broken although all are kept.
        seed: Of the shuffles behind the comparison without labels.
    """
    certificate.refuse_other_classes(predictions.hierarchy, predictions.name)
    path = path_of(predictions.probabilities, predictions.hierarchy, predictions.name)
    rank = rank_index(predictions.hierarchy)[predictions.target]
    dial, notes = _covered(certificate, Dial(rank_reach(path), rank, predictions.patient))
    # Bonferroni: the level is for any of the promises.
    share = level / len(certificate.promises)
    checks = tuple(_check(certificate, promise, dial, share) for promise in certificate.promises)
    return Monitoring(checks, _drift(certificate, dial, seed), notes)


def monitor_unlabelled(
    certificate: Certificate, probabilities: npt.NDArray[np.float64], patient_ids: list[str], *, seed: int = 0
) -> Monitoring:
    """Only compare where new patients reach each rank: needs no labels, and says nothing about the promises."""
    path = path_of(probabilities, certificate.hierarchy, "The table")
    dial = Dial(rank_reach(path), np.zeros(len(path), dtype=np.int64), numbered(patient_ids))
    return Monitoring((), _drift(certificate, dial, seed), ("Without labels, nothing is said about the promises.",))


def patient_losses(curve: LossCurve, kappa: float) -> tuple[Array, Array]:
    """Losses and weights [n] of the patients in order, both in [0, 1], at κ."""
    loss: Array = np.zeros(curve.n)
    # Strictly: at its κ a step has already been taken.
    beyond = curve.kappa > kappa
    np.add.at(loss, curve.patient[beyond], curve.drop[beyond])
    return np.minimum(loss / curve.worst_loss, 1.0), curve.weight / curve.worst_weight


def _covered(certificate: Certificate, dial: Dial) -> tuple[Dial, tuple[str, ...]]:
    """The patients that the certificate is about: under `rate`, those with not too many slides."""
    if certificate.most_slides is None:
        return dial, ()
    slides = np.bincount(dial.patient)
    kept = np.flatnonzero(slides[dial.patient] <= certificate.most_slides)
    left = int((slides > certificate.most_slides).sum())
    if not left:
        return dial, ()
    # without gaps, in the order they came: cases are made by number
    number = np.unique(dial.patient[kept], return_inverse=True)[1].astype(np.int64)
    note = f"{left} patients with more than {certificate.most_slides} slides are left out: the promise excludes them."
    return Dial(dial.reach[kept], dial.rank[kept], number), (note,)


def _check(certificate: Certificate, promise: Promise, dial: Dial, level: float) -> PromiseCheck:
    curve = miss_losses(
        dial.reach, dial.rank, dial.patient, unit=certificate.unit, boundary=promise.rank,
        most_slides=certificate.most_slides,
    )  # fmt: skip
    if not curve.n:
        return PromiseCheck(promise, 0, float("nan"), 0.0, None, level, "no patients")
    losses, weights = patient_losses(curve, certificate.kappa)
    alarm, at_least = first_alarm(losses, promise.alpha, level, weights), lower_bound(losses, level, weights)
    # With a confidence the promise is about this very system, and the luck of its calibration is no excuse.
    lucky = certificate.guarantee.confidence is None and at_least <= promise.spread.high
    state: State = (
        "no evidence against it" if alarm is None
        else "above α, within the luck of calibration" if lucky else "broken"
    )  # fmt: skip
    return PromiseCheck(promise, curve.n, curve.mean(certificate.kappa), at_least, alarm, level, state)


def _drift(certificate: Certificate, dial: Dial, seed: int) -> Drift:
    reach = dial.as_unit("case").reach[:, 1:]
    return breakpoint_drift(certificate.breakpoints, reach, seed=seed)
