"""Several findings per slide: their columns in a table, probabilities of the most urgent one, and the called sets.

In a table, labels are sets and every finding has a column of probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pams_mil.arrays import Array, Bools
from pams_mil.data.finding_labels import labels_of_marks
from pams_mil.data.tables import Columns
from pams_mil.errors import LabelError, PredictionsError
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.predictions.probability_columns import numbers
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.finding_sets import sets_with_call
from pams_mil.metrics.probability import SUM_TOLERANCE


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


def present_findings(labels: Sequence[str], slides: Sequence[str], hierarchy: ClassHierarchy, where: str) -> Bools:
    """True sets [n, K] of labels such as `DCIS; UDH`; empty where nobody said."""
    sets = np.zeros((len(slides), len(hierarchy.finding_classes)), bool)
    for row, label in enumerate(labels):
        try:
            sets[row] = hierarchy.finding_matrix([label])[0] if label else False
        except LabelError as error:
            raise PredictionsError(f"{where}, slide {slides[row]!r}: {error}") from error
    return sets


def finding_probabilities(piece: Columns, columns: Sequence[str], slides: Sequence[str], where: str) -> Array:
    """Probabilities [n, K] of single findings, each from 0 to 1."""
    values = numbers(piece, columns, where)
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        row, place = (int(index[0]) for index in np.nonzero(bad))
        raise PredictionsError(
            f"{where}, slide {slides[row]!r}: the probability of a finding must be from 0 to 1, found "
            f"{values[row, place]:g} in column {columns[place]!r}."
        )
    return values


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


def called_sets(predictions: Predictions, kappa: float = 1.0) -> Bools:
    """The findings that are called at κ, [n, K]: the most urgent call, and those that reach κ and are not beyond it."""
    if predictions.finding_probabilities is None:
        raise PredictionsError(
            f"{predictions.name} has no probabilities of single findings; expected a column f_<class> for each, and a "
            "class file with 'findings: several'."
        )
    calls = predictions.path.calls(kappa) if predictions.probabilities is not None else predictions.predicted
    return sets_with_call(predictions.finding_probabilities, calls, kappa, predictions.hierarchy)
