"""Metrics that need class probabilities: AUC, calibration, and where errors put their probability."""

from __future__ import annotations

from collections.abc import Sequence, Sized

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.columns import class_columns, require_urgency_order
from pams_mil.metrics.confusion import Labels, class_indices
from pams_mil.metrics.reduce import divide

SUM_TOLERANCE = 1e-3
"""How far a row of probabilities may be from 1 before it is refused."""


def check_probabilities(values: npt.ArrayLike, num_classes: int | None = None) -> Array:
    """Probabilities [n, C] as numbers, or an error that names the first row that holds none."""
    p = np.asarray(values, dtype=np.float64)
    if p.ndim != 2:
        raise ParameterError(f"probabilities must be a table [samples, classes], found shape {p.shape}.")
    if num_classes is not None and p.shape[1] != num_classes:
        raise ParameterError(f"probabilities must have {num_classes} columns, one per class, found {p.shape[1]}.")
    wrong = ~np.isfinite(p).all(axis=1) | (p < 0).any(axis=1) | (np.abs(p.sum(axis=1) - 1) > SUM_TOLERANCE)
    if wrong.any():
        row = int(wrong.argmax())
        raise ParameterError(f"probabilities must be at least 0 and sum to 1; row {row} is {p[row].tolist()}.")
    return p


def labels_and_probabilities(
    y_true: Labels,
    probabilities: npt.ArrayLike,
    hierarchy: ClassHierarchy,
    level: int,
    labels: Sequence[str] | None = None,
) -> tuple[Ints, Array]:
    """Class indices [n] and probabilities [n, C] of a level, at least one row and as many of each.

    `labels` names the columns, as a frame does; without names see `pams_mil.metrics.columns`.
    """
    table, named = class_columns(probabilities, hierarchy, level, labels)
    true, p = class_indices(y_true, hierarchy, level), check_probabilities(table, hierarchy.num_classes(level))
    require_pairs(true, p)
    if not named and isinstance(next(iter(y_true)), str):
        require_urgency_order(true, p, hierarchy, level, doubt=True)
    return true, p


def require_pairs(labels: Sized, rows: Sized) -> None:
    """Refuse labels that are not as many as rows, or none at all."""
    if not len(labels) == len(rows) > 0:
        raise ParameterError(f"Expected as many labels as rows and at least one, found {len(labels)} and {len(rows)}.")


def macro_auc(y_true: Ints, probabilities: Array) -> float:
    """One-vs-rest AUC averaged over the classes that have both positives and negatives; NaN if none has.

    >>> macro_auc(np.array([0, 0, 1]), np.array([[.9, .1, 0], [.2, .8, 0], [.3, .7, 0]]))  # class 2 is absent
    0.5
    """
    per_class = class_aucs(y_true, probabilities)
    defined = ~np.isnan(per_class)
    return float(per_class[defined].mean()) if defined.any() else float("nan")


def class_aucs(y_true: Ints, probabilities: Array) -> Array:
    """One-vs-rest AUC of each class, [C]; NaN where a class is absent or is the only one.

    AUC_c = (Σ_{i: y_i=c} midrank_i − m(m+1)/2) / (m (n − m)),   m = #{i: y_i = c}
    """
    true, scores = _checked(y_true, probabilities)
    n, num_classes = scores.shape
    result = np.full(num_classes, np.nan)
    for c in range(num_classes):
        positive = true == c
        m = int(positive.sum())
        if 0 < m < n:
            ranks = midranks(scores[:, c])
            result[c] = (ranks[positive].sum() - m * (m + 1) / 2) / (m * (n - m))
    return result


def midranks(values: Array) -> Array:
    """Ranks from 1 on, equal values sharing the mean of theirs, [n].

    >>> midranks(np.array([0.3, 0.1, 0.3])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def expected_class_of_errors(y_true: Ints, y_pred: Ints, probabilities: Array) -> Array:
    """For each true class, the mean expected class number (1-based) of its misclassified samples, [C].

        E_c = mean over errors with t = c of Σ_k (k + 1) p_k

    Above c + 1 the model errs towards urgency, below it misses urgency; NaN for a class without errors.

    >>> expected_class_of_errors(np.array([1, 1]), np.array([0, 1]), np.array([[.75, .25], [.1, .9]])).tolist()
    [nan, 1.25]
    """
    true, scores = _checked(y_true, probabilities)
    expected = scores @ np.arange(1, scores.shape[1] + 1)
    wrong = true != np.asarray(y_pred)
    sums = np.bincount(true[wrong], weights=expected[wrong], minlength=scores.shape[1])
    return divide(sums, np.bincount(true[wrong], minlength=scores.shape[1]).astype(np.float64))


def calibration_error(y_true: Ints, probabilities: Array, *, bins: int = 15) -> float:
    """Expected calibration error of the top class over equal-width confidence bins.

    ECE = Σ_b (n_b / n) |accuracy_b − confidence_b|
    """
    true, scores = _checked(y_true, probabilities)
    confidence = scores.max(1)
    hit = scores.argmax(1) == true
    # Bins include their upper edge, so that a confidence of 1 needs no bin of its own.
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    # Σ (hit − confidence) of a bin is n_b (accuracy_b − confidence_b).
    gap = np.bincount(bin_of, weights=hit - confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(true))


def expected_cost(y_true: Ints, probabilities: Array, cost: Array) -> float:
    """Mean cost under the model's own probabilities: (1/N) Σ_i Σ_r p_ir C[t_i, r], C as [true, predicted].

    >>> expected_cost(np.array([1]), np.array([[.25, .75]]), np.array([[0., 1.], [3., 0.]]))
    0.75
    """
    true, scores = _checked(y_true, probabilities)
    if cost.shape != (scores.shape[1],) * 2:
        raise ParameterError(f"cost must be {scores.shape[1]} x {scores.shape[1]}, found {cost.shape}.")
    return float((scores * cost[true]).sum(1).mean())


def _checked(y_true: Ints, probabilities: Array) -> tuple[Ints, Array]:
    true, scores = np.asarray(y_true, dtype=np.int64), np.asarray(probabilities, dtype=np.float64)
    if scores.ndim != 2 or true.shape != scores.shape[:1] or not true.size:
        raise ParameterError(
            f"Expected y_true [n] and probabilities [n, C] with n of at least 1, found {true.shape} and {scores.shape}."
        )
    if true.min() < 0 or true.max() >= scores.shape[1]:
        raise ParameterError(f"y_true must be from 0 to {scores.shape[1] - 1}, found {true.min()} to {true.max()}.")
    return true, scores
