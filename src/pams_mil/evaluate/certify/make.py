"""`certify`: labeled predictions of calibration patients in, a certificate out, or the reason why there is none.

**The lower end.** The certified call at κ̂ is at least the truth, up to a share α of patients. The same reasoning from
the other side gives a smaller κ whose call is at most the truth, up to a share α. Between the two calls lie the
classes that remain; where they differ a person should look. False alarms grow with κ, and a slide is one from κ = e
on, e included, so the lower call is taken just below κ_low = sup{κ : the bound on Σ 1[e_p < κ] certifies α}.

**Another prevalence.** If only the shares of the classes change, and not how each class looks (label shift), patients
of class y count v_y = π_new(y) / π_calibration(y) times, and conformal risk control holds with those weights and the
heaviest one for the next patient. π_calibration is estimated from the calibration patients themselves, which no bound
accounts for; so such a certificate has a reservation. Bounds at a boundary need no weights: they are about the patients
at or above it, however many there are, as long as the mixture of classes above it stays the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.data.exposure import MARK, Exposure
from pams_mil.digests import digest
from pams_mil.errors import CertificateError, ParameterError, listing, require_choice
from pams_mil.evaluate.certify.bounds import Bound, Guarantee, Shortfall, certified_bound, smallest_kappa
from pams_mil.evaluate.certify.certificate import BoundaryLimit, Certificate, Rates
from pams_mil.evaluate.certify.miss_losses import (
    UNITS,
    LossCurve,
    MissLoss,
    SlideReach,
    Unit,
    boundaries,
    boundary_rank,
    by_patient,
)
from pams_mil.evaluate.orders import Orders
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.predictions.sidecar import OUT_OF_FOLD

MOST_STORED = 2000
"""Calibration patients whose breakpoints a certificate keeps for later comparison."""
OUT_OF_FOLD_RESERVATION = (
    "Each calibration patient was called by the networks of the fold that had not seen them. New patients are called "
    "by the mean of all folds, which no patient here can test. The bound describes networks like these. For a "
    "guarantee, keep calibration patients out of the folds with 'pams split --calib-share 0.2' before 'pams cv'; or, "
    "where no epoch was chosen, certify the networks of one fold on its validation patients: 'pams certify CV/fold0'."
)
PREVALENCE_RESERVATION = (
    "The bound for all patients is re-weighted to another prevalence: it assumes that classes look as they did in the "
    "calibration set and that only their shares change, and takes the shares of the calibration set as exact."
)


class ShortfallError(CertificateError):
    """Too few calibration patients; `shortfalls` says how many are missing for each bound."""

    def __init__(self, shortfalls: str, guarantee: Guarantee) -> None:
        super().__init__(
            f"So little missed urgency cannot be certified {guarantee.words} with so few calibration patients, "
            f"whatever the model does: {shortfalls}. Add calibration patients, or allow more."
        )
        self.shortfalls = shortfalls


def certify(
    predictions: Predictions,
    *,
    alpha: float | None = None,
    at: Mapping[str, float] | None = None,
    findings: float | None = None,
    guarantee: str | float = "mean",
    unit: Unit = "case",
    prevalence: Mapping[str, float] | None = None,
    notes: Sequence[str] = (),
    seen_patients: bool = False,
    patients_are_slides: bool = False,
) -> Certificate:
    """The smallest κ that meets every bound on missed urgency, as a certificate.

    Args:
        predictions: Calibration patients with labels and probabilities. They must not have trained the model or chosen
            its epoch, and new patients must come from where they came from. Of classes with several orders of urgency
            the bounds hold by every order, κ being the largest that any of them needs.
        alpha: The most missed urgency among all patients; None: only the boundaries in `at` are bounded.
        at: {class or group: α}: of the patients at or above it, at most a share α is called below it.
        findings: The most missed findings: the mean share of a patient's findings that are not called.
        guarantee: "mean", or a confidence such as 0.9, for each bound on its own.
        unit: "case" or "slide"; see `pams_mil.evaluate.certify.miss_losses`.
        prevalence: {class: share} to which the bound for all patients is re-weighted; `mean` and `case` only.
        notes: What the reader must know.
        seen_patients: Go on with patients that the model has seen; the certificate then is not a guarantee.
        patients_are_slides: Each slide of a file without patients is a patient.

    >>> from pams_mil import ClassHierarchy
    >>> rng = np.random.default_rng(0)
    >>> target = rng.integers(0, 2, 200)
    >>> p = np.clip(0.3 + 0.4 * target + rng.normal(0, 0.15, 200), 0.01, 0.99)
    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> model = Predictions("model", tree, [f"s{i}" for i in range(200)], target, (p > 0.5).astype(int),
    ...                     np.stack([1 - p, p], axis=1))
    >>> certificate = certify(model, alpha=0.02, at={"malignant": 0.05})
    >>> [(bound.at, round(bound.kappa, 2)) for bound in certificate.bounds]
    [(None, 1.44), ('malignant', 1.3)]
    """
    hierarchy = predictions.hierarchy
    require_patients(predictions, patients_are_slides=patients_are_slides)
    require_one_model(predictions)
    if (predictions.target < 0).any():
        raise CertificateError(
            f"{predictions.name}: {int((predictions.target < 0).sum())} of {len(predictions)} rows have no label, so "
            "whether they are missed is not known. Label them, or leave these patients out."
        )
    _refuse_copies(predictions)
    admitted = predictions.admitted("guarantee", seen_patients=seen_patients).notes
    marks = [note for note in admitted if note.startswith(MARK)]
    alphas = _check_alphas(alpha, at or {}, findings)
    require_choice("unit", unit, UNITS)
    if prevalence is not None and (alpha is None or guarantee != "mean" or unit != "case" or findings is not None):
        raise ParameterError(
            "A prevalence re-weights the bound for all patients (alpha), on average (guarantee mean), by case. "
            "Bounds at a boundary need no re-weighting; for findings, a confidence or another unit there is none."
        )
    certainty, slides, views = Guarantee.of(guarantee), SlideReach.of(predictions), views_by_order(predictions)
    results: list[Bound | Shortfall] = []
    for order, view in views.items():
        for name, share in alphas.items():
            rank = None if name is None else boundary_rank(view.hierarchy, name)
            loss = MissLoss(at=name, rank=rank, order=order)
            curve = loss.curve(view, unit)
            if name is None and prevalence is not None:
                curve = curve.weighted(*_weighting(prevalence, view))
            results.append(certified_bound(curve, share, certainty, loss))
    if findings is not None:
        loss = MissLoss(findings=True)
        results.append(certified_bound(loss.curve(predictions, unit), findings, certainty, loss))
    short = [result.words for result in results if isinstance(result, Shortfall)]
    if short:
        raise ShortfallError("; ".join(dict.fromkeys(short)), certainty)
    bounds = tuple(bound for bound in results if isinstance(bound, Bound))
    # Every loss falls with κ, so the largest κ meets every bound.
    kappa = max(bound.kappa for bound in bounds)
    low = None
    if alpha is not None and not hierarchy.other_orders:
        weighting = None if prevalence is None else _weighting(prevalence, predictions)
        low = largest_kappa_below(slides, alpha, certainty, unit, weighting=weighting)
    # A smaller κ only raises fewer false alarms, and the lower call must not lie above the upper one.
    low = None if low is None else min(low, kappa)
    counted = slides.as_unit(unit)
    whose = counted.patient
    return Certificate(
        hierarchy=hierarchy,
        kappa=kappa,
        bounds=bounds,
        guarantee=certainty,
        unit=unit,
        kappa_low=low,
        n=predictions.num_patients,
        slides=len(predictions),
        own_call=rates(slides, 1.0, unit),
        certified_call=rates(slides, kappa, unit),
        review=None if low is None else counted.share(counted.called_before(low) < counted.called(kappa)),
        boundaries=tuple(
            BoundaryLimit(name, n, certainty.smallest_alpha(LossCurve.of([], [], [], np.ones(n))))
            for name, n in ((name, len(np.unique(whose[counted.rank >= rank]))) for name, rank in boundaries(hierarchy))
        ),
        reservations=(*marks, *_own_reservations(views, prevalence)),
        notes=(*(note for note in admitted if note not in marks), *notes, *_own_notes(bounds, certainty)),
        weights=tuple(predictions.weights),
        exposure=(predictions.exposure or Exposure()) | predictions.seen_as("certify"),
        calibration=calibration_digest(predictions),
        prevalence=prevalence,
        breakpoints=_stored_breakpoints(slides),
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def certify_subgroups(predictions: Predictions, by: Sequence[str], **options: Any) -> dict[str, Certificate]:
    """One certificate per subgroup, each of which holds for its own patients.

    Refused if any subgroup has too few patients, with how many are missing.

    Args:
        predictions: Calibration patients, as in `certify`.
        by: The subgroup of every slide, e.g. the scanner or the hospital.
        options: The other arguments of `certify`.
    """
    if len(by) != len(predictions):
        raise ParameterError(f"by must name a subgroup for each of the {len(predictions)} slides, found {len(by)}.")
    subgroup: dict[int, str] = {}
    for patient, name in zip(predictions.patient.tolist(), by, strict=True):
        if subgroup.setdefault(patient, name) != name:
            named = dict(zip(predictions.patient.tolist(), _slides(predictions), strict=True))[patient][1]
            raise ParameterError(
                f"The slides of patient {named!r} are in the subgroups {subgroup[patient]!r} and {name!r}; a "
                "guarantee counts patients, so each must be in one."
            )
    certificates, short = {}, []
    labels = np.asarray(by, dtype=object)
    for name in dict.fromkeys(by):
        note = f"Holds for patients of the subgroup {name!r}."
        try:
            certificates[name] = certify(
                predictions.where(labels == name, name=f"{predictions.name} [{name}]"),
                **{**options, "notes": (*options.get("notes", ()), note)},
            )
        except ShortfallError as error:
            short.append(f"{name!r}: {error.shortfalls}")
    if short:
        raise CertificateError(
            f"{len(short)} of {len(set(by))} subgroups have too few calibration patients: {'; '.join(short)}. Add "
            "calibration patients there, allow more, or merge subgroups."
        )
    return certificates


def views_by_order(predictions: Predictions) -> dict[str, Predictions]:
    """The predictions as every order of their classes numbers them, by its name, which is empty where there is one."""
    if not predictions.hierarchy.other_orders:
        return {"": predictions}
    orders = Orders(predictions.hierarchy)
    return {name: orders.under(number, predictions) for number, name in enumerate(orders.names)}


def rates(slides: SlideReach, kappa: float, unit: Unit) -> Rates:
    """Missed urgency and false alarms at κ."""
    counted = slides.as_unit(unit)
    called = counted.called(kappa)
    return Rates(counted.share(called < counted.rank), counted.share(called > counted.rank))


def largest_kappa_below(
    slides: SlideReach,
    alpha: float,
    guarantee: Guarantee,
    unit: Unit,
    *,
    weighting: tuple[Array, float] | None = None,
) -> float | None:
    """κ_low, or None when so few patients cannot certify α.

    `weighting` holds the weights of the patients and of the next one where the bound is re-weighted to another
    prevalence.

    >>> reach = np.array([[0.0, k] for k in np.linspace(0.1, 1.0, 10)])
    >>> slides = SlideReach(reach, np.zeros(10, dtype=np.int64), np.arange(10))  # ten patients without urgency
    >>> largest_kappa_below(slides, 0.2, Guarantee(), "case")  # one of ten may be called too high: the first, at 0.1
    0.2
    """
    counted = slides.as_unit(unit)
    # Over 1/κ false alarms are a loss that falls as missed urgency does over κ.
    with np.errstate(divide="ignore"):
        inverse = 1.0 / counted.exceed
    curve = LossCurve.of_rows(inverse, counted.patient, unit)
    chosen = smallest_kappa(curve if weighting is None else curve.weighted(*weighting), alpha, guarantee)
    # 1/(1/e) need not be e, and e itself must not be passed.
    return None if chosen is None else float(counted.exceed[inverse == chosen].min(initial=np.inf))


def calibration_digest(predictions: Predictions) -> str:
    """32 hex digits of which slides of which patients with which labels calibrated, in any order."""
    names, rows = predictions.hierarchy.names(), zip(_slides(predictions), predictions.target.tolist(), strict=True)
    return digest(sorted([*slide, names[target]] for slide, target in rows))


def _slides(predictions: Predictions) -> Iterator[tuple[str, str]]:
    """Every slide and its patient; a slide of no known patient is its own."""
    return zip(predictions.slide_ids, predictions.patients, strict=True)


def require_patients(predictions: Predictions, *, patients_are_slides: bool) -> None:
    """Refuse a table that names no patients, unless each of its slides is declared to be one."""
    if predictions.patient_ids is None and predictions.layout != "memory" and not patients_are_slides:
        raise CertificateError(
            f"{predictions.name} names no patients, and the guarantee counts patients: slides of one patient would "
            "count several times. Add a column patient_id; or, if each slide is of another patient, say so with "
            "--patients-are-slides."
        )


def _refuse_copies(predictions: Predictions) -> None:
    """Refuse equal features under several patients: one patient would count several times."""
    owner: dict[str, int] = {}
    of_rows = enumerate(zip(predictions.features or (), predictions.patient.tolist(), strict=False))
    copies = [row for row, (marks, who) in of_rows if any(owner.setdefault(mark, who) != who for mark in marks if mark)]
    if copies:
        raise CertificateError(
            "Slides have the features of one of another patient, and the guarantee counts patients: "
            f"{listing((predictions.slide_ids[row] for row in copies), most=3)}. Keep one of each, or give them the "
            "same patient; 'pams check' lists all copies."
        )


def require_one_model(predictions: Predictions) -> None:
    """Refuse several seeds: as slides of one case their calls would combine, which no single network does later."""
    if predictions.num_seeds > 1:
        raise CertificateError(
            f"{predictions.name} holds the predictions of {predictions.num_seeds} seeds, and a guarantee is about one "
            "model. Give the rows of one seed, or the mean of the seeds' probabilities."
        )


def prevalence_weights(shares: Array, label: Ints, names: Sequence[str]) -> tuple[Array, float]:
    """The weights v [n] of patients with these labels, and the heaviest weight that the next patient can have.

    >>> weights, worst = prevalence_weights(np.array([0.9, 0.1]), np.array([0, 0, 1, 1]), ["benign", "malignant"])
    >>> weights.tolist(), worst
    ([1.8, 1.8, 0.2, 0.2], 1.8)
    """
    observed = np.bincount(label, minlength=len(shares)) / len(label)
    absent = [name for name, seen, share in zip(names, observed, shares, strict=True) if share > 0 and not seen]
    if absent:
        raise ParameterError(
            f"No calibration patient is {listing(absent)}, to which the prevalence gives a share; nothing is known "
            "about them."
        )
    weight = np.divide(shares, observed, out=np.zeros_like(shares), where=observed > 0)
    return weight[label], float(weight.max())


def _check_alphas(alpha: float | None, at: Mapping[str, float], findings: float | None) -> dict[str | None, float]:
    alphas: dict[str | None, float] = {} if alpha is None else {None: _check_alpha(alpha, "alpha")}
    alphas.update({name: _check_alpha(share, f"The share at {name!r}") for name, share in at.items()})
    if findings is not None:
        _check_alpha(findings, "findings")
    elif not alphas:
        raise ParameterError("There is nothing to bound: give alpha, or a boundary with its share.")
    return alphas


def _check_alpha(alpha: float, name: str) -> float:
    if not (isinstance(alpha, (int, float, np.floating)) and 0 < alpha < 1):
        raise ParameterError(
            f"{name} must be a share above 0 and below 1, e.g. 0.05 for 5 % missed urgency, found {alpha!r}."
        )
    return float(alpha)


def _weighting(prevalence: Mapping[str, float], predictions: Predictions) -> tuple[Array, float]:
    """The weights of the patients and of the next one; the prevalence names all classes of one level."""
    hierarchy = predictions.hierarchy
    levels = [level for level in range(hierarchy.num_levels) if set(hierarchy.names(level)) == set(prevalence)]
    if not levels:
        expected = "; or ".join(listing(hierarchy.names(level), most=30) for level in range(hierarchy.num_levels))
        raise ParameterError(
            f"A prevalence names all classes of one level, {expected}; found {listing(prevalence, most=30)}."
        )
    names = hierarchy.names(levels[-1])
    shares = np.asarray([float(prevalence[name]) for name in names])
    if not np.isfinite(shares).all() or (shares < 0).any() or not math.isclose(shares.sum(), 1, abs_tol=1e-6):
        raise ParameterError(f"The prevalence must be shares that sum to 1, found {shares.tolist()}.")
    # a patient's class is its most urgent label, as for the loss
    label = by_patient(np.maximum, hierarchy.lift(predictions.target, levels[-1]), predictions.patient)
    return prevalence_weights(shares, label, names)


def _own_reservations(views: Mapping[str, Predictions], prevalence: Mapping[str, float] | None) -> list[str]:
    reservations = [] if prevalence is None else [PREVALENCE_RESERVATION]
    if any(view.table.get("split") == OUT_OF_FOLD or len(set(view.folds or ())) > 1 for view in views.values()):
        reservations.append(OUT_OF_FOLD_RESERVATION)
    for view in views.values():
        ranks = view.hierarchy.ranks()
        if not ranks[view.target].any():
            least = [name for name, rank in zip(view.hierarchy.names(), ranks, strict=True) if not rank]
            reservations.append(
                f"All calibration patients are {listing(least)}, the least urgent class, so none of them could be "
                "missed: the bound says nothing about how the model calls urgent patients."
            )
    return reservations


def _own_notes(bounds: Sequence[Bound], guarantee: Guarantee) -> list[str]:
    if guarantee.confidence is None or len(bounds) < 2:
        return []
    return [f"Each of the {len(bounds)} bounds holds {guarantee.words} on its own, not all at once."]


def _stored_breakpoints(slides: SlideReach) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    reach = slides.as_unit("case").reach[:, 1:]
    if len(reach) <= MOST_STORED:
        return reach
    # The seed is fixed, so that the same calibration set makes the same certificate.
    return reach[np.sort(np.random.default_rng(0).choice(len(reach), MOST_STORED, replace=False))]
