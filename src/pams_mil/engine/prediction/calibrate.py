"""Probability calibration of a run on its validation slides: the test split is never read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.digests import text_digest
from pams_mil.engine.config.complete_config import complete, make_method
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.learner import Learner
from pams_mil.engine.prediction.predict import load, predict_own
from pams_mil.engine.prediction.run_calibration import CalibratedLevel, RunCalibration
from pams_mil.engine.prediction.slide_predictions import SlidePredictions
from pams_mil.engine.run.folder import RunFolder, open_run
from pams_mil.engine.run.spec import DATA_PARTS, differences, refuse_changes, with_slides
from pams_mil.engine.training.run_cohort import Cohort, open_cohort
from pams_mil.errors import ParameterError, RunError, listing
from pams_mil.evaluate.decisions.debias import SMALLEST, TrainingBias, msce_posterior
from pams_mil.evaluate.decisions.probability_calibration import cross_calibrated, fit_probability_calibration
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.objective import LevelLoss, LevelTerm
from pams_mil.methods.severity_aware import msce_loss
from pams_mil.metrics.proper import brier, nll, rps
from pams_mil.models.core.devices import choose_device
from pams_mil.remix.drift import coarser_drift, prior_drift
from pams_mil.remix.pairing import Pairing, rule_for
from pams_mil.remix.strategy import create_remix

Progress = Callable[[float], None]


def calibrate(
    run: Path | str | RunFolder,
    *,
    trusted: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> RunCalibration:
    """Fit the probability calibration of a run on its validation slides and store it in the run as `calibration.json`.

    Args:
        run: A run folder.
        trusted: As in `load`.
        device: "auto", "cpu", "cuda", ...
        progress: Called with the share done.
    """
    folder = run if isinstance(run, RunFolder) else open_run(run)
    config, loaded = folder.config(), load(folder.path, trusted=trusted, device=str(choose_device(device)))
    hierarchy = loaded.spec.hierarchy
    cohort = open_cohort(config.data, hierarchy)
    # Validation slides may have become training slides where the table has changed.
    stored = with_slides(loaded.spec, loaded.path)
    refuse_changes(differences(stored, cohort.spec(complete(config)), parts=DATA_PARTS), loaded.path)
    slides = predict_own([loaded], config.data, split="val", progress=progress)
    drift, notes = _drift(config, cohort)
    notes += [f"The validation slide {name!r} was left out: {reason}" for name, reason in slides.failures.items()]
    levels = []
    for position, level in enumerate(loaded.learner.levels):
        bias, more = _bias(loaded.learner, position, drift, cohort)
        fitted, further = _fit_level(slides, level, bias)
        levels.append(fitted)
        notes += more + further
    if config.training.select != "last":
        notes.append(
            f"The same slides chose the epoch (training.select is {config.training.select}), so the probabilities may "
            "still be a little too sure; with training.select=last they are untouched."
        )
    sample, names = slides.sample, hierarchy.names()
    rows = list(zip(sample.slide_ids, sample.patients, strict=True))
    labels = sorted((*row, names[target]) for row, target in zip(rows, sample.target, strict=True))
    counts = {"slides": len(slides), "patients": sample.num_patients}
    result = RunCalibration(
        levels=tuple(levels),
        weights=loaded.weights,
        hierarchy=hierarchy.digest,
        validation={"digest": text_digest(json.dumps(labels)), **counts},
        exposure=sample.seen_as("calibrate"),
        notes=tuple(dict.fromkeys(notes)),
    )
    result.write(folder.path)
    return result


def run_bias(run: Path | str | RunFolder, *, trusted: bool = False) -> TrainingBias:
    """What is known about how a run's training moved its probabilities at the finest level, e.g. for `redecide`."""
    folder = run if isinstance(run, RunFolder) else open_run(run)
    loaded = load(folder.path, trusted=trusted)
    cohort = open_cohort(folder.config().data, loaded.spec.hierarchy)
    drift, _ = _drift(folder.config(), cohort)
    return _bias(loaded.learner, len(loaded.learner.levels) - 1, drift, cohort)[0]


def _fit_level(slides: SlidePredictions, level: int, bias: TrainingBias) -> tuple[CalibratedLevel, list[str]]:
    hierarchy, p = slides.hierarchy, slides.probabilities[level]
    name, names = hierarchy.level_names[level], hierarchy.names(level)
    true = hierarchy.lift(slides.sample.target, level)
    try:
        fitted = fit_probability_calibration(p, true, hierarchy, level, bias=bias)
    except ParameterError as error:
        raise RunError(f"Level {name!r} of the validation slides: {error}") from error
    after = cross_calibrated(p, true, slides.sample.patient, hierarchy, level, bias=bias)
    per_class = dict(zip(names, np.bincount(true, minlength=len(names)).tolist(), strict=True))
    calibrated = CalibratedLevel(
        name=name,
        calibration=fitted,
        slides=per_class,
        before=_scores(true, p, hierarchy, level),
        after=None if after is None else _scores(true, after, hierarchy, level),
    )
    return calibrated, list(_remarks(calibrated, p, true, bias))


def _remarks(level: CalibratedLevel, p: Array, true: Ints, bias: TrainingBias) -> Iterator[str]:
    missing = [label for label, count in level.slides.items() if not count]
    if missing:
        yield (
            f"{level.name}: no validation slide is {listing(missing)}; there the probability calibration rests on "
            "other classes."
        )
    impossible = int((p[np.arange(len(true)), true] < SMALLEST).sum())
    if impossible:
        yield f"{level.name}: for {impossible} slides the model said that the true class is impossible."
    if bias.severity is not None:
        restored = msce_posterior(p, bias.severity, detach_weight=bias.detach_weight)
        if restored.fell_back.any():
            yield f"{level.name}: MSCE's inverse does not exist for {int(restored.fell_back.sum())} slides; simplified."
    if level.after is None:
        yield f"{level.name}: too few patients to score the probability calibration on others than it was fitted on."
    elif level.after["nll"] >= level.before["nll"]:
        yield (
            f"{level.name}: on patients that the fit did not see, the calibrated probabilities are no better (NLL "
            f"{level.before['nll']:.3f} before, {level.after['nll']:.3f} after)."
        )


def _scores(true: Ints, p: Array, hierarchy: ClassHierarchy, level: int) -> dict[str, float]:
    return {score.__name__: score(true, p, hierarchy, level) for score in (nll, brier, rps)}


def _drift(config: RunConfig, cohort: Cohort) -> tuple[Array | None, list[str]]:
    """The drift g of the run's remix at the finest level, None without one, and what to say about it."""
    method = make_method(config.method)
    if method.remix in (None, "none"):
        return None, []
    partner = create_remix(method.remix, **method.remix_options).partner
    counts = np.bincount(cohort.train.targets, minlength=cohort.hierarchy.num_classes())
    options = {"probability": Pairing.probability, "mode": Pairing.mode, **config.pairing}
    options["rule"] = rule_for(partner, config.pairing.get("rule"))
    try:
        drift = prior_drift(counts, cohort.hierarchy.ranks(), **options)
    except (ParameterError, TypeError) as error:
        return None, [f"The drift of the remix was left out: {error}"]
    if not (drift > 0).all():
        never = [label for label, g in zip(cohort.hierarchy.names(), drift, strict=True) if not g > 0]
        return None, [f"The remix left no bag of {listing(never)} to train on, so its drift cannot be undone."]
    return (drift, []) if np.abs(drift - 1).max() > 1e-9 else (None, [])


def _bias(learner: Learner, position: int, drift: Array | None, cohort: Cohort) -> tuple[TrainingBias, list[str]]:
    """What is known about how training moved the probabilities of one trained level."""
    hierarchy, level, notes = cohort.hierarchy, learner.levels[position], []
    severity, detach_weight = None, False
    loss = _msce(learner, position)
    if loss is not None:
        severity = loss.get_buffer("severity").cpu().double().numpy()
        detach_weight = bool(loss.options.get("detach_weight", False))
        if (severity == 1).all():
            severity = None
        elif (severity <= 0).any():
            severity = None
            notes.append(f"{hierarchy.level_names[level]}: the cost has entries of 0, so what MSCE did was left alone.")
    if drift is not None:
        counts = np.bincount(cohort.train.targets, minlength=hierarchy.num_classes())
        drift = coarser_drift(drift, counts, hierarchy.groups(level))
    return TrainingBias(severity=severity, detach_weight=detach_weight, drift=drift), notes


def _msce(learner: Learner, position: int) -> LevelLoss | None:
    """The MSCE of a trained level, if it has one."""
    for term in learner.objective.terms.values():
        if isinstance(term, LevelTerm) and str(position) in term.losses:
            loss = term.losses[str(position)]
            if isinstance(loss, LevelLoss) and loss.function is msce_loss:
                return loss
    return None
