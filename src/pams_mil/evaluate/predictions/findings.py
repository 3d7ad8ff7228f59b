"""Several findings per slide: their columns in a table, and the scores of each finding and of the sets.

In a table, labels are sets and every finding has a column of probabilities.

The headline of the scores stays that of one finding per slide, the most urgent one: the same two rates, the same curve,
so that models of sets and models of single labels compare on the same slides. Beside it: sensitivity, specificity and
AUC of every finding, the urgency-weighted recall 1 − ℓ₁ and AsCC of sets (`pams_mil.metrics.finding_sets`), with
intervals over patients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pams_mil.arrays import AnyArray, Array, Bools, Ints
from pams_mil.data.finding_labels import labels_of_marks
from pams_mil.data.tables import Columns, parse_number
from pams_mil.errors import LabelError, PredictionsError
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.finding_sets import missed_share, set_ascc, sets_with_call
from pams_mil.metrics.probability import SUM_TOLERANCE
from pams_mil.metrics.resampling import RESAMPLES, Sums, Units, Weights, percentile_interval


def with_target(piece: Columns, slide: str, hierarchy: ClassHierarchy, where: str) -> Columns:
    """A piece of a table with one true label, `DCIS; UDH`, in place of a column of 0 and 1 per class."""
    try:
        labels, marks = labels_of_marks(piece, piece.get(slide, next(iter(piece.values()))), hierarchy)
    except LabelError as error:
        raise PredictionsError(f"{where}: {error}") from error
    return {**{name: cells for name, cells in piece.items() if name not in marks}, "target": labels}


def finding_columns(header: Sequence[str], scores: tuple[str, ...], hierarchy: ClassHierarchy) -> tuple[str, ...]:
    """The columns of findings: f_<class>, or the probabilities where there is one per finding."""
    names = [hierarchy.classes[index] for index in hierarchy.finding_classes.tolist()]
    own = tuple(f"f_{name}" for name in names)
    if all(column in header for column in own):
        return own
    return scores if len(scores) == len(names) else ()


class FindingColumns:
    """Collects sets and probabilities of findings while a table passes by; nothing where slides have one finding."""

    def __init__(self, hierarchy: ClassHierarchy, true: str, columns: Sequence[str], where: str) -> None:
        self.hierarchy, self.true, self.columns, self.where = hierarchy, true, tuple(columns), where
        self._sets: list[Bools] = []
        self._probabilities: list[Array] = []

    def add(self, piece: Columns, slides: Sequence[str]) -> None:
        """A piece of the table."""
        if self.hierarchy.findings == "one":
            return
        self._sets.append(self._present(piece, slides))
        if self.columns:
            self._probabilities.append(self._numbers(piece, slides))

    def finish(self) -> tuple[Bools | None, Array | None]:
        """True sets and probabilities, [n, K] each, as far as the table has them."""
        sets = np.concatenate(self._sets) if self._sets else None
        return sets, np.concatenate(self._probabilities) if self._probabilities else None

    def _present(self, piece: Columns, slides: Sequence[str]) -> Bools:
        sets = np.zeros((len(slides), len(self.hierarchy.finding_classes)), bool)
        for row, label in enumerate(piece.get(self.true, ())):
            try:
                sets[row] = self.hierarchy.finding_matrix([label])[0] if label else False
            except LabelError as error:
                raise PredictionsError(f"{self.where}, slide {slides[row]!r}: {error}") from error
        return sets

    def _numbers(self, piece: Columns, slides: Sequence[str]) -> Array:
        numbers = np.empty((len(slides), len(self.columns)))
        for place, column in enumerate(self.columns):
            try:
                numbers[:, place] = np.fromiter(map(parse_number, piece[column]), np.float64, len(slides))
            except ValueError as error:
                raise PredictionsError(f"{self.where}: column {column!r} must hold numbers: {error}.") from error
        bad = ~((numbers >= 0) & (numbers <= 1))
        if bad.any():
            row, place = (int(index[0]) for index in np.nonzero(bad))
            raise PredictionsError(
                f"{self.where}, slide {slides[row]!r}: the probability of a finding must be from 0 to 1, found "
                f"{numbers[row, place]:g} in column {self.columns[place]!r}."
            )
        return numbers


def split_scores(probabilities: Array, hierarchy: ClassHierarchy) -> tuple[Array, Array | None]:
    """Probabilities [n, C] of the most urgent finding and [n, K] of single ones, from a column for each finding.

    Where no class means "nothing" there are as many findings as classes; rows that all sum to 1 are then probabilities
    of classes, and there are none of single findings.

    >>> tree = ClassHierarchy.flat(["UDH", "DCIS"], findings="several")
    >>> split_scores(np.array([[0.7, 0.3], [0.2, 0.8]]), tree)[1], split_scores(np.array([[0.7, 0.2]]), tree)[1]
    (None, array([[0.7, 0.2]]))
    """
    if not hierarchy.nothing and (np.abs(probabilities.sum(axis=1) - 1.0) <= SUM_TOLERANCE).all():
        return probabilities, None
    return headline_probabilities(probabilities, hierarchy), probabilities


def headline_probabilities(findings: Array, hierarchy: ClassHierarchy) -> Array:
    """Probabilities [n, C] of the most urgent finding from those of single ones, for models that have no head for it.

    With q_ρ the probability of rank ρ and w_k the weights,

        q_ρ / q_(ρ−1) = max_{k: rank_k ≥ ρ} w_k p_k / (1 − p_k)

    At κ, rank ρ is preferred to ρ − 1 where κ times this is at least 1, so that the call at κ is the most urgent
    finding of {k : p_k ≥ 1 / (1 + κ w_k)}. A rank's probability goes to its likeliest class; with one finding it is p.

    >>> tree = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N")
    >>> headline_probabilities(np.array([[0.75, 0.25]]), tree).round(2).tolist()  # 1 : 3 : 3 · 1/3
    [[0.2, 0.6, 0.2]]
    """
    ranks = hierarchy.ranks()
    p = np.clip(findings, _LEAST, 1.0 - _LEAST)
    odds = np.zeros((len(p), len(ranks)))  # of every class, in logarithms; "nothing" is as likely as not
    odds[:, hierarchy.finding_classes] = np.log(p * hierarchy.finding_weights) - np.log1p(-p)
    steps = [odds[:, ranks >= rank].max(axis=1) for rank in np.unique(ranks)[1:]]
    logs = np.cumsum(np.stack([np.zeros(len(p)), *steps], axis=1), axis=1)
    by_rank = np.exp(logs - logs.max(axis=1, keepdims=True))
    by_rank /= by_rank.sum(axis=1, keepdims=True)
    scores, rows = np.zeros((len(p), len(ranks))), np.arange(len(p))
    for place, rank in enumerate(np.unique(ranks)):
        classes = np.flatnonzero(ranks == rank)
        scores[rows, classes[odds[:, classes].argmax(axis=1)]] = by_rank[:, place]
    return scores


_LEAST = 1e-12
"""Probabilities of findings stay this far from 0 and 1, whose odds are not numbers."""

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
    if predictions.finding_probabilities is None:
        raise PredictionsError(
            f"{predictions.name} has no probabilities of single findings; expected a column f_<class> for each, and a "
            "class file with 'findings: several'."
        )
    calls = predictions.path.calls(kappa) if predictions.probabilities is not None else predictions.predicted
    return sets_with_call(predictions.finding_probabilities, calls, kappa, predictions.hierarchy)


def finding_scores(
    predictions: Predictions, *, kappa: float = 1.0, resamples: int = RESAMPLES, seed: int = 0
) -> FindingScores:
    """Scores of every finding and of the called sets, with intervals over patients."""
    called = called_sets(predictions, kappa)
    true, p = predictions.finding_targets, predictions.finding_probabilities
    if true is None or p is None:
        raise PredictionsError(f"{predictions.name} has no true sets of findings to score against.")
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
    missed = missed_share(true, called, predictions.hierarchy.finding_weights)
    recall = ratio((1.0 - missed) * some, some.astype(np.float64))
    ascc = ratio(set_ascc(true, called, predictions.hierarchy), np.ones(len(true)))
    return FindingScores(kappa, tuple(scores), *recall, *ascc)


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
