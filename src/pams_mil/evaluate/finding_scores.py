"""Scores of several findings per slide: each finding by itself, and how much of what was found is called.

The headline stays that of one finding per slide, the most urgent one: the same two rates, the same curve, so that
models of sets and models of single labels compare on the same slides. Beside it: sensitivity, specificity and AUC of
every finding, the urgency-weighted recall 1 − ℓ₁ and AsCC of sets (`pams_mil.metrics.finding_sets`), with intervals
over patients.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pams_mil.arrays import AnyArray, Array, Bools, Ints
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics.finding_sets import FindingPath, finding_path, missed_share, set_ascc, sets_with_call
from pams_mil.metrics.resampling import RESAMPLES, Sums, Units, Weights, percentile_interval

Interval = tuple[float, float]


@dataclass(frozen=True)
class FindingScore:
    """One finding: how many slides have it, and how it is called at the operating point."""

    name: str
    slides: int
    sensitivity: float
    specificity: float
    auc: float
    sensitivity_interval: Interval
    specificity_interval: Interval
    auc_interval: Interval


@dataclass(frozen=True)
class FindingScores:
    """All findings of one model at one κ."""

    kappa: float
    findings: tuple[FindingScore, ...]
    weighted_recall: float
    weighted_recall_interval: Interval
    set_ascc: float
    set_ascc_interval: Interval

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def called_sets(predictions: Predictions, kappa: float = 1.0) -> Bools:
    """The findings that are called at κ, [n, K]: the most urgent call, and those that reach κ and are not beyond it."""
    calls = predictions.path.calls(kappa) if predictions.probabilities is not None else predictions.predicted
    return sets_with_call(_path(predictions), calls, kappa, predictions.hierarchy)


def finding_scores(
    predictions: Predictions, *, kappa: float = 1.0, resamples: int = RESAMPLES, seed: int = 0
) -> FindingScores:
    """Scores of every finding and of the called sets, with intervals over patients."""
    true, p = predictions.finding_targets, predictions.finding_probabilities
    if true is None or p is None:
        raise PredictionsError(
            f"{predictions.name} has no probabilities of single findings; expected a column f_<class> for each, and a "
            "class file with 'findings: several'."
        )
    called = called_sets(predictions, kappa)
    units = Units.of(predictions.num_patients, seed=seed)
    unit = units.of_patient[predictions.patient]
    draws = units.draws(seed, resamples) if resamples else np.zeros((0, len(units)), np.float32)

    def ratio(top: AnyArray, bottom: AnyArray) -> tuple[float, Interval]:
        n = len(top)
        sums = Sums(np.tile(np.arange(n), 2), np.repeat([0, 1], n), 2, np.concatenate([top, bottom]).astype(np.float64))
        drawn = sums.by_unit(unit, len(units))(draws)
        with np.errstate(invalid="ignore", divide="ignore"):
            samples = drawn[:, 0] / drawn[:, 1]
            value = float(top.sum() / bottom.sum()) if bottom.sum() else float("nan")
        return value, percentile_interval(samples)

    scores = []
    for k, index in enumerate(predictions.hierarchy.finding_classes.tolist()):
        y, s = true[:, k], called[:, k]
        sensitivity, specificity = ratio(y & s, y), ratio(~y & ~s, ~y)
        auc, auc_interval = _auc(y, p[:, k], unit, draws)
        count = int(y.sum()) // predictions.num_seeds  # a slide has a row per seed
        scores.append(
            FindingScore(
                predictions.hierarchy.classes[index], count, sensitivity[0], specificity[0], auc,
                sensitivity[1], specificity[1], auc_interval,
            )
        )  # fmt: skip
    some: Bools = np.asarray(true.any(axis=1))
    recall = ratio((1.0 - missed_share(true, called)) * some, some.astype(np.float64))
    ascc = ratio(set_ascc(true, called, predictions.hierarchy), np.ones(len(true)))
    return FindingScores(kappa, tuple(scores), *recall, *ascc)


def _path(predictions: Predictions) -> FindingPath:
    if predictions.finding_probabilities is None:
        raise PredictionsError(f"{predictions.name} has no probabilities of single findings.")
    return finding_path(predictions.finding_probabilities, predictions.hierarchy)


def _auc(y: Bools, p: Array, unit: Ints, draws: Weights) -> tuple[float, Interval]:
    """AUC of one finding, ties counted half, and its interval; NaN where all slides have it, or none."""
    order = np.argsort(p, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(p[order]) > 0))
    weights = np.concatenate([np.ones((1, len(y))), draws[:, unit]])[:, order]
    positive, negative = (np.add.reduceat(weights * of[order], starts, axis=1) for of in (y, ~y))
    below = np.cumsum(negative, axis=1) - negative
    pairs = positive.sum(axis=1) * negative.sum(axis=1)
    won = (positive * (below + negative / 2)).sum(axis=1)
    values = np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return float(values[0]), percentile_interval(values[1:])
