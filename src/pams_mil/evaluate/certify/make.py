"""`certify`: labelled predictions of calibration patients in, a certificate out, or the reason why there is none."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import numpy as np

from pams_mil.arrays import Array
from pams_mil.digests import text_digest
from pams_mil.errors import CertificateError, ParameterError
from pams_mil.evaluate.certify.calls import Dial, boundaries, boundary_rank, dial_of
from pams_mil.evaluate.certify.certificate import Certificate, Rates, Scarcity
from pams_mil.evaluate.certify.interval import largest_kappa_below
from pams_mil.evaluate.certify.miss_losses import UNITS, Unit, miss_losses
from pams_mil.evaluate.certify.prevalence import check_prevalence, prevalence_weights
from pams_mil.evaluate.certify.promise import Guarantee, Promise, Shortfall, check_alpha, make_promise
from pams_mil.evaluate.predictions import Predictions
from pams_mil.parameters import require_choice

MOST_REMEMBERED = 2000
"""Calibration patients whose breakpoints a certificate keeps for later comparison."""


def certify(
    predictions: Predictions,
    *,
    alpha: float | None = None,
    at: Mapping[str, float] | None = None,
    guarantee: str | float = "mean",
    unit: Unit = "case",
    prevalence: Mapping[str, float] | None = None,
    most_slides: int | None = None,
    weights: Sequence[str] = (),
    reservations: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Certificate:
    """The smallest κ that keeps every promise.

    Args:
        predictions: Calibration patients with labels and probabilities. They must not have trained the model or chosen
            its epoch, and new patients must come from where they came from.
        alpha: The most missed urgency among all patients; None: only the boundaries in `at` are promised.
        at: {class or group: α}: of the patients at or above it, at most a share α is called below it.
        guarantee: "mean", or a confidence such as 0.9, for each promise on its own.
        unit: "case", "slide" or "rate"; see `pams_mil.evaluate.certify.miss_losses`.
        prevalence: {class: share} to which the promise for all patients is re-weighted; `mean` and `case` only.
        most_slides: For `rate`, the most slides of a patient; None: the most in the calibration.
        weights: Digests of the weights that predicted.
        reservations: Reasons why it is not a guarantee.
        notes: What the reader must know.

    >>> from pams_mil import ClassHierarchy
    >>> rng = np.random.default_rng(0)
    >>> target = rng.integers(0, 2, 200)
    >>> p = np.clip(0.3 + 0.4 * target + rng.normal(0, 0.15, 200), 0.01, 0.99)
    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> model = Predictions("model", tree, [f"s{i}" for i in range(200)], target, (p > 0.5).astype(int),
    ...                     np.stack([1 - p, p], axis=1))
    >>> found = certify(model, alpha=0.02, at={"malignant": 0.05})
    >>> [(promise.name, round(promise.kappa, 2)) for promise in found.promises]
    [(None, 1.44), ('malignant', 1.3)]
    """
    hierarchy = predictions.hierarchy
    chosen = _promised(alpha, at or {})
    require_choice("unit", unit, UNITS)
    _check_prevalence(unit, guarantee, prevalence, alpha)
    certainty, dial = Guarantee.of(guarantee), dial_of(predictions)
    ranks = {name: None if name is None else boundary_rank(hierarchy, name) for name in chosen}
    # M counts all slides of a patient, also for promises at a boundary, where only some of them count.
    most = int(most_slides or np.bincount(dial.patient).max()) if unit == "rate" else None
    curves = {
        name: miss_losses(dial.reach, dial.rank, dial.patient, unit=unit, boundary=rank, most_slides=most)
        for name, rank in ranks.items()
    }
    weighting = None if prevalence is None else _weighting(prevalence, predictions)
    if weighting is not None:
        curves[None] = curves[None].weighted(*weighting)
    made = [make_promise(curves[name], share, certainty, name=name, rank=ranks[name]) for name, share in chosen.items()]
    _refuse_shortfalls(made, certainty)
    promises = tuple(promise for promise in made if isinstance(promise, Promise))
    # Every loss falls with κ, so the largest κ keeps every promise.
    kappa = max(promise.kappa for promise in promises)
    low = None
    if alpha is not None:
        low = largest_kappa_below(dial, alpha, certainty, unit, most_slides=most, weighting=weighting)
    # Turned back further the lower call only raises fewer false alarms, and must not lie above the upper one.
    low = None if low is None else min(low, kappa)
    return Certificate(
        hierarchy=hierarchy,
        kappa=kappa,
        promises=promises,
        guarantee=certainty,
        unit=unit,
        kappa_low=low,
        n=predictions.num_patients,
        slides=len(predictions),
        most_slides=most,
        own=rates(dial, 1.0, unit),
        certified=rates(dial, kappa, unit),
        review=None if low is None else _review(dial, low, kappa, unit),
        scarcity=_scarcity(dial, certainty, unit, predictions, most),
        reservations=tuple(reservations),
        notes=(*predictions.notes, *notes, *_own_notes(promises, certainty, unit, most, most_slides, prevalence)),
        weights=tuple(weights),
        calibration=calibration_digest(predictions),
        prevalence=prevalence,
        breakpoints=_remembered(dial),
        made=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def rates(dial: Dial, kappa: float, unit: Unit) -> Rates:
    """Missed urgency and false alarms of the calibration patients at κ."""
    counted = dial.as_unit(unit)
    called = counted.called(kappa)
    return Rates(counted.share(called < counted.rank, unit), counted.share(called > counted.rank, unit))


def calibration_digest(predictions: Predictions) -> str:
    """32 hex digits of which slides of which patients with which labels calibrated, in any order."""
    patients = predictions.patient_ids if predictions.patient_ids is not None else predictions.slide_ids
    names = predictions.hierarchy.names()
    rows = sorted(
        [slide, patient, names[target]]
        for slide, patient, target in zip(predictions.slide_ids, patients, predictions.target.tolist(), strict=True)
    )
    return text_digest(json.dumps(rows))


def _promised(alpha: float | None, at: Mapping[str, float]) -> dict[str | None, float]:
    chosen: dict[str | None, float] = {} if alpha is None else {None: check_alpha(alpha)}
    chosen.update({name: check_alpha(share, f"The share at {name!r}") for name, share in at.items()})
    if not chosen:
        raise ParameterError("There is nothing to promise: give alpha, or a boundary with its share.")
    return chosen


def _check_prevalence(
    unit: Unit, guarantee: str | float, prevalence: Mapping[str, float] | None, alpha: float | None
) -> None:
    if prevalence is not None and (alpha is None or guarantee != "mean" or unit != "case"):
        raise ParameterError(
            "A prevalence re-weights the promise for all patients (alpha), on average (guarantee mean), by case. "
            "Promises at a boundary need no re-weighting; with a confidence or another unit there is none."
        )


def _weighting(prevalence: Mapping[str, float], predictions: Predictions) -> tuple[Array, float]:
    level, shares = check_prevalence(prevalence, predictions.hierarchy)
    label = np.zeros(predictions.num_patients, dtype=np.int64)
    # a patient's class is its most urgent label, as for the loss
    np.maximum.at(label, predictions.patient, predictions.hierarchy.lift(predictions.target, level))
    return prevalence_weights(shares, label, predictions.hierarchy.names(level))


def _refuse_shortfalls(made: Sequence[Promise | Shortfall], guarantee: Guarantee) -> None:
    short = [promise for promise in made if isinstance(promise, Shortfall)]
    if short:
        lines = "; ".join(promise.words for promise in short)
        raise CertificateError(
            f"So little missed urgency cannot be certified {guarantee.words} with so few calibration patients, "
            f"whatever the model does: {lines}. Add calibration patients, or allow more."
        )


def _review(dial: Dial, low: float, kappa: float, unit: Unit) -> float:
    counted = dial.as_unit(unit)
    return counted.share(counted.called_before(low) < counted.called(kappa), unit)


def _scarcity(
    dial: Dial, guarantee: Guarantee, unit: Unit, predictions: Predictions, most: int | None
) -> tuple[Scarcity, ...]:
    found = []
    for name, rank in boundaries(predictions.hierarchy):
        curve = miss_losses(dial.reach, dial.rank, dial.patient, unit=unit, boundary=rank, most_slides=most)
        found.append(Scarcity(name, curve.n, guarantee.smallest_alpha(curve)))
    return tuple(found)


def _own_notes(
    promises: tuple[Promise, ...],
    guarantee: Guarantee,
    unit: Unit,
    most: int | None,
    stated: int | None,
    prevalence: Mapping[str, float] | None,
) -> list[str]:
    notes = []
    if guarantee.confidence is not None and len(promises) > 1:
        notes.append(f"Each of the {len(promises)} promises holds {guarantee.words} on its own, not all at once.")
    if unit == "rate" and stated is None:
        notes.append(f"The most slides of a patient, {most}, was taken from the calibration; state it beforehand.")
    if prevalence is not None:
        notes.append(
            "The promise for all patients is re-weighted to the given prevalence; it assumes that classes look as they "
            "did in calibration and only their shares change."
        )
    return notes


def _remembered(dial: Dial) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    reach = dial.as_unit("case").reach[:, 1:]
    if len(reach) <= MOST_REMEMBERED:
        return reach
    # The seed is fixed, so that the same calibration makes the same certificate.
    return reach[np.sort(np.random.default_rng(0).choice(len(reach), MOST_REMEMBERED, replace=False))]
