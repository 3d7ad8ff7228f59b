"""Scores of one method at every level, with intervals over patients and, with several seeds, networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.contrast import Contrast, Interval
from pams_mil.evaluate.inference import Networks, draw, estimate
from pams_mil.evaluate.operating_points import Band, OperatingPoints, false_alarm_grid, missed_on, operating_points
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics import reduce
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.finding_sets import finding_metrics
from pams_mil.metrics.metric import METRICS, metrics_for
from pams_mil.metrics.probability import (
    OrderedProbabilities,
    calibration_error,
    expected_class_of_errors,
    expected_cost,
)
from pams_mil.metrics.resampling import RESAMPLES
from pams_mil.severity import PENALTY, metric_weight


@dataclass(frozen=True)
class LevelScores:
    """Everything an audit says about one level of one method."""

    level: int
    name: str
    classes: tuple[str, ...]
    confusion: npt.NDArray[np.int64]
    scores: dict[str, Contrast]
    """Every metric that the file allows, by key."""
    recall: Array
    missed_distance: float
    false_alarm_distance: float
    expected_class: Array | None
    calibration_error: float | None
    expected_cost: float | None
    classes_without_auc: tuple[str, ...]
    points: OperatingPoints | None
    """None where the file has no probabilities."""
    left_out: tuple[str, ...] = ()
    """Networks that are too small for a curve."""

    @cached_property
    def values(self) -> dict[str, float]:
        """The value of every metric; AUC is NaN without probabilities."""
        return {"auc": math.nan, **{key: score.estimate for key, score in self.scores.items()}}

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of every metric; empty when nothing was resampled."""
        return {key: score.interval for key, score in self.scores.items() if score.varied != "nothing"}

    @property
    def n(self) -> int:
        """Number of slides; of several seeds, each slide once per seed."""
        return int(self.confusion.sum())

    @property
    def errors(self) -> int:
        """Number of wrong slides."""
        return int(self.confusion.sum() - self.confusion.trace())

    def to_json(self) -> dict[str, Any]:
        """Every metric by its key; AsMC without errors is null beside `no_errors`."""
        severe = self.values["severe_errors"]
        return {
            **self.values,
            "severe_errors": int(severe) if severe.is_integer() else severe,  # of several seeds it is a mean
            "n": self.n,
            "errors": self.errors,
            "no_errors": self.errors == 0,
            "missed_distance": self.missed_distance,
            "false_alarm_distance": self.false_alarm_distance,
            "calibration_error": self.calibration_error,
            "expected_cost": self.expected_cost,
            "recall": dict(zip(self.classes, self.recall.tolist(), strict=True)),
            "expected_class_of_errors": None
            if self.expected_class is None
            else dict(zip(self.classes, self.expected_class.tolist(), strict=True)),
            "classes_without_auc": list(self.classes_without_auc),
            "classes": list(self.classes),
            "confusion": self.confusion.tolist(),
            "ci": {metric: list(pair) for metric, pair in self.intervals.items()},
            "too_small_for_a_curve": list(self.left_out),
            **({"curve": None} if self.points is None else self.points.to_json()),
        }


def score(
    predictions: Predictions,
    *,
    penalty: float = PENALTY,
    seed: int = 0,
    resamples: int = RESAMPLES,
    progress: Callable[[float], None] | None = None,
) -> list[LevelScores]:
    """Score every level, coarsest first; 95 % intervals over `resamples` draws of patients (0: none)."""
    levels = range(predictions.hierarchy.num_levels)
    drawn = draw(predictions, seed, resamples)
    result = []
    for level in levels:
        result.append(_score_level(Networks(predictions, level, penalty, drawn)))
        if progress is not None:
            progress((level + 1) / len(levels))
    return result


def _score_level(networks: Networks) -> LevelScores:
    slides = networks.slides
    hierarchy, level = slides.hierarchy, slides.level
    target, predicted, size = slides.true, slides.called, hierarchy.num_classes(level)
    p = None if slides.probabilities is None else OrderedProbabilities(slides.scores)
    scores, band = _scores(networks)
    confusion = count_cells(target, predicted, size)
    cells = reduce.ConfusionCells.of(confusion)
    distance, outranks = hierarchy.distance(level).astype(np.float64), hierarchy.outranks(level)
    cost = metric_weight(hierarchy, level, penalty=slides.penalty) - 1.0
    per_class = np.bincount(target, minlength=size)
    return LevelScores(
        level=level,
        name=hierarchy.level_names[level],
        classes=hierarchy.names(level),
        confusion=confusion,
        scores=scores,
        recall=cells.recalls,
        missed_distance=float(reduce.mean_where(cells, distance, outranks)),
        false_alarm_distance=float(reduce.mean_where(cells, distance, outranks.T)),
        expected_class=None if p is None else expected_class_of_errors(target, predicted, p, hierarchy, level),
        calibration_error=None if p is None else calibration_error(target, p, hierarchy, level),
        expected_cost=None if p is None else expected_cost(target, p, hierarchy, cost, level),
        classes_without_auc=()
        if p is None
        else tuple(
            label for label, count in zip(hierarchy.names(level), per_class, strict=True) if count in (0, len(target))
        ),
        points=None if p is None else operating_points(networks, scores, band),
        left_out=() if p is None else networks.too_small,
    )


def _scores(networks: Networks) -> tuple[dict[str, Contrast], Band | None]:
    """Every metric, and the band of the curve from the same resamples."""
    scored = networks.slides.probabilities is not None
    grid = false_alarm_grid(networks.slides) if scored else np.empty(0)
    curve = replace(METRICS["missed_at_5"], key="band", value=lambda view: missed_on(view, grid))
    scores, samples = networks.estimates(metrics_for(scored=scored), [curve] if scored else [])
    if "band" not in samples:
        return scores, None
    return scores, Band(grid, *np.nanpercentile(samples["band"].mean(axis=0), [2.5, 97.5], axis=0))


@dataclass(frozen=True)
class SevereError:
    """One slide that was called less urgent than it is."""

    slide_id: str
    patient_id: str
    true: str
    predicted: str
    gravity: float
    probability_of_true: float | None


def severe_errors(predictions: Predictions, *, penalty: float = PENALTY) -> list[SevereError]:
    """All missed urgencies at the finest level, gravest first; gravity is the metric's W[true, predicted]."""
    hierarchy = predictions.hierarchy
    W, names = metric_weight(hierarchy, penalty=penalty), hierarchy.names()
    severe = hierarchy.outranks()[predictions.target, predictions.predicted]
    rows = np.flatnonzero(severe)
    gravity = W[predictions.target[rows], predictions.predicted[rows]]
    errors = []
    # lexsort goes by its last key first: gravity, then the more urgent truth, then the order of the file
    for row in rows[np.lexsort((rows, -predictions.target[rows], -gravity))].tolist():
        t, r = int(predictions.target[row]), int(predictions.predicted[row])
        errors.append(
            SevereError(
                slide_id=predictions.slide_ids[row],
                patient_id=predictions.patients[row],
                true=names[t],
                predicted=names[r],
                gravity=float(W[t, r]),
                probability_of_true=None
                if predictions.probabilities is None
                else float(predictions.probabilities[row, t]),
            )
        )
    return errors


@dataclass(frozen=True)
class FindingScore:
    """One finding: how many slides have it, and how it is called at the operating point."""

    name: str
    slides: int
    sensitivity: Contrast
    specificity: Contrast
    auc: Contrast


@dataclass(frozen=True)
class FindingScores:
    """All findings of one method at one κ, beside the scores of the most urgent one, which stay the headline."""

    kappa: float
    findings: tuple[FindingScore, ...]
    weighted_recall: Contrast
    set_ascc: Contrast


def finding_scores(
    predictions: Predictions, *, kappa: float = 1.0, resamples: int = RESAMPLES, seed: int = 0
) -> FindingScores:
    """Scores of every finding and of the called sets, with intervals over patients and, with several seeds, networks.

    Models of sets and models of single labels compare by the most urgent finding (`score`); this stands beside it.
    """
    hierarchy, true = predictions.hierarchy, predictions.finding_targets
    if true is None or predictions.finding_probabilities is None:
        raise PredictionsError(f"{predictions.name} has no true sets and probabilities of findings to score.")
    scores = estimate(predictions, finding_metrics(hierarchy, kappa).values(), seed=seed, resamples=resamples)
    names = [hierarchy.classes[index] for index in hierarchy.finding_classes.tolist()]
    slides = (true.sum(axis=0) // predictions.num_seeds).tolist()  # a slide has a row per seed
    findings = [
        FindingScore(name, count, *(scores[f"{key}_{name}"] for key in ("sensitivity", "specificity", "auc")))
        for name, count in zip(names, slides, strict=True)
    ]
    return FindingScores(kappa, tuple(findings), scores["weighted_recall"], scores["set_ascc"])
