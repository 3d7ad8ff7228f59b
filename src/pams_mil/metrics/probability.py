"""Metrics that need class probabilities: AUC, calibration, and where errors put their probability.

Which column is which class is taken from names, and never silently the wrong way round. scikit-learn sorts its columns
by name (`classes_`), we sort ours by urgency. A frame names its columns, `labels` names those of an array; both are
then put into the order of the hierarchy. Numbers, of labels and of columns, are positions in the order of urgency. What
has no names is compared with the other reading, s:

    d_i = p_i[t_i] − p_i[s(t_i)],   mean(d) against 3 standard errors

| labels | columns | s | refused |
|---|---|---|---|
| names | no names | the columns sorted by name | unless d is clearly above 0 |
| numbers | no names | the columns sorted by name | where d is clearly below 0 |
| numbers | names | labels numbered as the columns are sorted | where d is clearly below 0 |
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.errors import LabelError, ParameterError, listing
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import Labels, class_indices, named_by_numbers
from pams_mil.metrics.reduce import divide, mean_of_defined

SUM_TOLERANCE = 1e-3
"""How far a row of probabilities may be from 1 before it is refused."""


def check_probabilities(values: npt.ArrayLike, num_classes: int | None = None) -> Array:
    """Probabilities [n, C] as numbers, or an error that names the first row that holds none.

    Columns with names are refused: who knows the hierarchy puts them into its order with `class_columns`.
    """
    if column_names(values) is not None:
        raise ParameterError(
            f"The columns are named ({listing(column_names(values) or [], most=12)}); expected an array in the order "
            "of urgency: frame[classes].to_numpy()."
        )
    p = np.asarray(values, dtype=np.float64)
    if p.ndim != 2:
        raise ParameterError(f"probabilities must be a table [samples, classes], found shape {p.shape}.")
    if num_classes is not None and p.shape[1] != num_classes:
        raise ParameterError(f"probabilities must have {num_classes} columns, one per class, found {p.shape[1]}.")
    rows, _ = improper_rows(p)
    if len(rows):
        row = int(rows[0])
        raise ParameterError(f"probabilities must be at least 0 and sum to 1; row {row} is {p[row].tolist()}.")
    return p


def improper_rows(p: Array) -> tuple[Ints, str]:
    """The rows of [n, C] that are no probabilities by the first rule that any row breaks, and that rule in words."""
    rules = {
        "are not finite numbers": ~np.isfinite(p).all(axis=1),
        "are negative": (p < 0).any(axis=1),
        f"do not sum to 1 within {SUM_TOLERANCE}": np.abs(p.sum(axis=1) - 1.0) > SUM_TOLERANCE,
    }
    return next(
        ((np.flatnonzero(bad), words) for words, bad in rules.items() if bad.any()), (np.zeros(0, np.int64), "")
    )


@dataclass(frozen=True)
class OrderedProbabilities:
    """Probabilities [n, C] of our own: columns, and labels beside them, are known to be in the order of urgency."""

    values: Array


Scores = npt.ArrayLike | OrderedProbabilities
Names = Sequence[Any] | None
"""Names of the columns of scores."""


def labels_and_probabilities(
    y_true: Labels, probabilities: Scores, hierarchy: ClassHierarchy, level: int, labels: Names = None
) -> tuple[Ints, Array]:
    """Class indices [n] and probabilities [n, C] of a level, at least one row and as many of each.

    `labels` names the columns, as a frame does; without names see above.
    """
    size = hierarchy.num_classes(level)
    if isinstance(probabilities, OrderedProbabilities):
        true, p = hierarchy.lift(np.asarray(y_true), level, from_level=level), check_probabilities(probabilities.values)
        require_pairs(true, p)
        return true, p
    table, order = class_columns(probabilities, hierarchy, level, labels)
    true, p = class_indices(y_true, hierarchy, level), check_probabilities(table, size)
    require_pairs(true, p)
    require_urgency_order(true, p, hierarchy, level, order=order, named=isinstance(next(iter(y_true)), str))
    return true, p


def require_pairs(labels: Sized, rows: Sized) -> None:
    """Refuse labels that are not as many as rows, or none at all."""
    if not len(labels) == len(rows) > 0:
        raise ParameterError(f"Expected as many labels as rows and at least one, found {len(labels)} and {len(rows)}.")


def macro_auc(
    y_true: Labels, probabilities: Scores, hierarchy: ClassHierarchy, level: int = -1, *, labels: Names = None
) -> float:
    """One-vs-rest AUC averaged over the classes that have both positives and negatives; NaN if none has.

    >>> tree = ClassHierarchy.flat(["a", "b", "c"])
    >>> macro_auc([0, 0, 1], [[0.9, 0.1, 0], [0.2, 0.8, 0], [0.3, 0.7, 0]], tree)  # class c is absent
    0.5
    """
    per_class = class_aucs(*labels_and_probabilities(y_true, probabilities, hierarchy, level, labels))
    return float(mean_of_defined(per_class))


def class_aucs(true: Ints, scores: Array) -> Array:
    """One-vs-rest AUC of each class, [C]; NaN where a class is absent or is the only one.

    AUC_c = #{pairs i, j: y_i = c ≠ y_j, s_ic > s_jc} / (m (n − m)),   m = #{i: y_i = c}, ties counted half
    """
    own = [true == c for c in range(scores.shape[1])]
    won = [pairs_won(scores[of, c], scores[~of, c]) for c, of in enumerate(own)]
    return divide(won, [of.sum() * (~of).sum() for of in own])


def pairs_won(scores: Array, others: Array) -> float:
    """How many pairs have the larger score on the side of `scores`; ties count half."""
    ordered = np.sort(others)
    # Strictly smaller scores are counted by both searches, equal ones by one: twice the won comparisons.
    return 0.5 * float(sum(np.searchsorted(ordered, scores, side=side).sum() for side in ("left", "right")))


def expected_class_of_errors(
    y_true: Labels,
    y_pred: Labels,
    probabilities: Scores,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    labels: Names = None,
) -> Array:
    """For each true class, the mean expected class number (1-based) of its misclassified samples, [C].

        E_c = mean over errors with t = c of Σ_k (k + 1) p_k

    Above c + 1 the model errs towards urgency, below it misses urgency; NaN for a class without errors.

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> expected_class_of_errors([1, 1], [0, 1], [[0.75, 0.25], [0.1, 0.9]], tree).tolist()
    [nan, 1.25]
    """
    true, scores = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    ours = isinstance(probabilities, OrderedProbabilities)
    calls = np.asarray(y_pred) if ours else class_indices(y_pred, hierarchy, level, "y_pred")
    require_pairs(calls, true)
    expected = scores @ np.arange(1, scores.shape[1] + 1)
    wrong = true != calls
    sums = np.bincount(true[wrong], weights=expected[wrong], minlength=scores.shape[1])
    return divide(sums, np.bincount(true[wrong], minlength=scores.shape[1]).astype(np.float64))


def calibration_error(
    y_true: Labels,
    probabilities: Scores,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    bins: int = 15,
    labels: Names = None,
) -> float:
    """Expected calibration error of the top class over equal-width confidence bins.

    ECE = Σ_b (n_b / n) |accuracy_b − confidence_b|
    """
    true, scores = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    confidence = scores.max(1)
    hit = scores.argmax(1) == true
    # Bins include their upper edge, so that a confidence of 1 needs no bin of its own.
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    # Σ (hit − confidence) of a bin is n_b (accuracy_b − confidence_b).
    gap = np.bincount(bin_of, weights=hit - confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(true))


def expected_cost(
    y_true: Labels,
    probabilities: Scores,
    hierarchy: ClassHierarchy,
    cost: Array,
    level: int = -1,
    *,
    labels: Names = None,
) -> float:
    """Mean cost under the model's own probabilities: (1/N) Σ_i Σ_r p_ir C[t_i, r], C as [true, predicted].

    >>> expected_cost([1], [[0.25, 0.75]], ClassHierarchy.flat(["low", "urgent"]), np.array([[0.0, 1.0], [3.0, 0.0]]))
    0.75
    """
    true, scores = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    if cost.shape != (scores.shape[1],) * 2:
        raise ParameterError(f"cost must be {scores.shape[1]} x {scores.shape[1]}, found {cost.shape}.")
    return float((scores * cost[true]).sum(1).mean())


PREFIXES = ("", "p_", "prob_", "proba_")
"""What may stand before the class in a column's name."""
STANDARD_ERRORS = 3.0
"""So far the evidence for one order of the columns must exceed that for the other."""


def class_columns(
    probabilities: Any, hierarchy: ClassHierarchy, level: int = -1, labels: Names = None
) -> tuple[Array, list[int] | None]:
    """Probabilities [n, C] in the order of the hierarchy, and where each class stood; None: columns had no names.

    >>> tree = ClassHierarchy.flat(["normal", "cancer"])
    >>> class_columns([[0.9, 0.1]], tree, labels=["cancer", "normal"])
    (array([[0.1, 0.9]]), [1, 0])
    """
    names = column_names(probabilities) if labels is None else list(labels)
    if hasattr(probabilities, "detach"):  # a tensor, maybe with gradients or on another device
        probabilities = probabilities.detach().cpu()
    table = np.asarray(probabilities.to_numpy() if hasattr(probabilities, "to_numpy") else probabilities, np.float64)
    if names is None:
        return table, None
    if table.ndim != 2 or table.shape[1] != len(names):
        raise ParameterError(f"{len(names)} columns are named, but the probabilities have shape {table.shape}.")
    order = class_order(names, hierarchy, range(hierarchy.num_classes(level)), level)
    return table[:, order], order


def column_names(table: Any) -> list[str] | None:
    """The names of a frame's columns; None for an array, or for a frame whose columns are only numbered."""
    columns = getattr(table, "columns", None)
    if columns is None or isinstance(table, np.ndarray):
        return None
    names = [str(name) for name in columns]
    numbered = [str(number) for number in range(len(names))]
    return None if names in (numbered, [f"column_{number}" for number in numbered]) else names


def require_urgency_order(
    true: Ints, p: Array, hierarchy: ClassHierarchy, level: int = -1, *, order: Sequence[int] | None, named: bool
) -> None:
    """Refuse columns, or numbers as labels, that may be sorted by name instead of by urgency; see above.

    `p` [n, C] is in the order of the hierarchy as far as it is known; `order` says where each class stood among the
    columns (None: they had no names), `named` whether the labels were names.
    """
    names = hierarchy.names(level)
    if (named and order is not None) or p.ndim != 2 or p.shape[1] != len(names) or len(p) != len(true):
        return
    # Where the column of a class is read if columns, or labels, are sorted by name: s.
    other = np.argsort(np.argsort(np.array(names)) if order is None else np.asarray(order))
    if np.array_equal(other, np.arange(len(names))):
        return
    rows = np.arange(len(true))
    gain = p[rows, true] - p[rows, other[true]]
    error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else np.inf
    mean = float(gain.mean())
    if mean > STANDARD_ERRORS * error or (not named and mean >= -STANDARD_ERRORS * error):
        return
    if order is not None:
        raise ParameterError(
            f"y_true holds numbers, which are positions in the order of urgency ({listing(names, most=12)}), but as "
            "positions among the columns, as a LabelEncoder numbers classes, the true class has a higher mean "
            "probability. Give y_true as names, e.g. encoder.inverse_transform(y_true)."
        )
    raise ParameterError(
        "It is not certain which column of the probabilities is which class. Expected the order of urgency "
        f"({listing(names, most=12)}); as scikit-learn sorts them ({listing(sorted(names), most=12)}), the true "
        f"class has {'a higher' if mean < 0 else 'nearly the same'} mean probability. Say which it is: "
        f"labels=classifier.classes_, or labels={list(names)!r}, or give a frame with named columns."
    )


def class_order(names: Sequence[Any], hierarchy: ClassHierarchy, classes: Sequence[int], level: int = -1) -> list[int]:
    """Where each of some classes of the hierarchy stands among the names; numbers are positions by urgency."""
    numbers = all(isinstance(name, (int, np.integer)) for name in names) and not named_by_numbers(hierarchy, level)
    if numbers and sorted(names) == list(classes):
        return [list(names).index(number) for number in classes]
    for prefix in PREFIXES:
        if not all(str(name).startswith(prefix) for name in names):
            continue
        try:
            index = [hierarchy.index(str(name).removeprefix(prefix), level) for name in names]
        except LabelError:
            continue
        if sorted(index) == list(classes):
            return [index.index(number) for number in classes]
    raise ParameterError(
        f"The columns of the probabilities are named {listing(names, most=12)}; expected one for each class of "
        f"{hierarchy.name!r}: {listing((hierarchy.names(level)[number] for number in classes), most=12)}."
    )
