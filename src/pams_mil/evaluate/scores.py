"""Scores of one model at every level, with intervals from resampled patients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics import reduce
from pams_mil.metrics.bootstrap import RESAMPLES, AucResampler, Patterns, auc_samples, interval, label_samples
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.metric import LabelMetrics
from pams_mil.metrics.probability import calibration_error, expected_class_of_errors, expected_cost, macro_auc
from pams_mil.severity import PENALTY, metric_weight

Interval = tuple[float, float]


@dataclass(frozen=True)
class LevelScores:
    """Everything an audit says about one level of one model."""

    level: int
    name: str
    classes: tuple[str, ...]
    confusion: npt.NDArray[np.int64]
    values: dict[str, float]
    intervals: dict[str, Interval]
    recall: Array
    missed_distance: float
    false_alarm_distance: float
    expected_class: Array | None
    calibration_error: float | None
    expected_cost: float | None
    classes_without_auc: tuple[str, ...]

    @property
    def n(self) -> int:
        """Number of slides."""
        return int(self.confusion.sum())

    @property
    def errors(self) -> int:
        """Number of wrong slides."""
        return int(reduce.errors(self.confusion))

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form; AsMC without errors is null beside `no_errors`."""
        values = {key: value for key, value in self.values.items() if key != "severe_errors"}
        return {
            **values,
            "severe_errors": int(self.values["severe_errors"]),
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
    lifted = [predictions.at(level) for level in levels]
    aucs: Array | None = None
    if predictions.probabilities is not None and resamples:
        resamplers = [AucResampler(target, scores) for target, _, scores in lifted if scores is not None]
        aucs = auc_samples(resamplers, predictions.patient, seed=seed, resamples=resamples, progress=progress)
    return [
        _score_level(predictions, level, penalty, seed, resamples, None if aucs is None else aucs[level])
        for level in levels
    ]


def _score_level(
    predictions: Predictions, level: int, penalty: float, seed: int, resamples: int, auc_draws: Array | None
) -> LevelScores:
    hierarchy = predictions.hierarchy
    target, predicted, scores = predictions.at(level)
    size = hierarchy.num_classes(level)
    confusion = count_cells(target, predicted, size)
    metrics = LabelMetrics(hierarchy, level, penalty)
    values = {key: float(value) for key, value in metrics(confusion).items()}
    intervals: dict[str, Interval] = {}
    if resamples:
        patterns = Patterns.of(predictions.patient, target * size + predicted, size=size**2)
        draws = label_samples(metrics, patterns, seed=seed, resamples=resamples)
        intervals = {key: interval(samples) for key, samples in draws.items()}
    if auc_draws is not None:
        intervals["auc"] = interval(auc_draws)
    distance, outranks = hierarchy.distance(level).astype(np.float64), hierarchy.outranks(level)
    cost = metric_weight(hierarchy, level, penalty=penalty) - 1.0
    per_class = np.bincount(target, minlength=size)
    values["auc"] = math.nan if scores is None else macro_auc(target, scores)
    return LevelScores(
        level=level,
        name=hierarchy.level_names[level],
        classes=hierarchy.names(level),
        confusion=confusion,
        values=values,
        intervals=intervals,
        recall=reduce.recalls(confusion),
        missed_distance=float(reduce.mean_where(confusion, distance, outranks)),
        false_alarm_distance=float(reduce.mean_where(confusion, distance, outranks.T)),
        expected_class=None if scores is None else expected_class_of_errors(target, predicted, scores),
        calibration_error=None if scores is None else calibration_error(target, scores),
        expected_cost=None if scores is None else expected_cost(target, scores, cost),
        classes_without_auc=()
        if scores is None
        else tuple(
            label for label, count in zip(hierarchy.names(level), per_class, strict=True) if count in (0, len(target))
        ),
    )


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
    found = []
    # lexsort goes by its last key first: gravity, then the more urgent truth, then the order of the file
    for row in rows[np.lexsort((rows, -predictions.target[rows], -gravity))].tolist():
        t, r = int(predictions.target[row]), int(predictions.predicted[row])
        slide = predictions.slide_ids[row]
        found.append(
            SevereError(
                slide_id=slide,
                patient_id=slide if predictions.patient_ids is None else predictions.patient_ids[row],
                true=names[t],
                predicted=names[r],
                gravity=float(W[t, r]),
                probability_of_true=None
                if predictions.probabilities is None
                else float(predictions.probabilities[row, t]),
            )
        )
    return found
