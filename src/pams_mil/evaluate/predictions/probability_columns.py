"""Which columns of a foreign table hold the probabilities: by pattern, or by name.

A pattern has one of two placeholders: `{class}` stands for a class as the class file spells it (its name, an alias or
its display name), `{index}` for its number in the order that `--index-order` gives. `{pred}` stands for the
prediction's column, so that one pattern serves several models of one file. Without a placeholder the columns are
listed, one per class, least urgent first.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

import numpy as np

from pams_mil.arrays import Array
from pams_mil.data.tables import Columns, parse_number
from pams_mil.errors import PredictionsError, listing, nearest
from pams_mil.hierarchy import ClassHierarchy

CLASS, INDEX, PREDICTION = "{class}", "{index}", "{pred}"


def probability_columns(
    pattern: str,
    header: Sequence[str],
    hierarchy: ClassHierarchy,
    *,
    predicted: str | None = None,
    index_order: Sequence[str] = (),
    where: str = "the table",
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns, and the class of each; `predicted` is the prediction's column, `index_order` names numbered classes.

    >>> classes = ClassHierarchy.flat(["Benign", "Malignant"])
    >>> probability_columns("prob ({class})", ["id", "prob (Malignant)", "prob (Benign)"], classes)
    (('prob (Benign)', 'prob (Malignant)'), ('Benign', 'Malignant'))
    >>> probability_columns("low,high", ["id", "low", "high"], classes)
    (('low', 'high'), ('Benign', 'Malignant'))
    """
    if PREDICTION in pattern:
        if predicted is None:
            raise PredictionsError(f"--proba {pattern!r} names {PREDICTION}, but there is no --pred to put there.")
        pattern = pattern.replace(PREDICTION, predicted)
    names = hierarchy.names()
    findings = tuple(name for name in names if name != hierarchy.nothing)  # "nothing" need not have a probability
    if CLASS in pattern:
        if not any(column in header for column in _tried(hierarchy.nothing, pattern, hierarchy)):
            names = findings
        return tuple(_column_of(label, pattern, header, hierarchy, where) for label in names), names
    if INDEX in pattern:
        if not index_order:
            raise PredictionsError(
                f"--proba {pattern!r} numbers the classes. Whose order? Name them with --index-order, e.g. "
                f"--index-order {','.join(hierarchy.names())}."
            )
        return tuple(pattern.replace(INDEX, str(i)) for i in range(len(index_order))), tuple(index_order)
    listed = tuple(name.strip() for name in next(csv.reader([pattern])))
    names = findings if len(listed) == len(findings) else names
    if len(listed) != len(names):
        raise PredictionsError(
            f"--proba lists {len(listed)} columns for {hierarchy.num_classes()} classes. Expected one per class, least "
            f"urgent first ({listing(hierarchy.names(), most=30)}), or a pattern such as 'p_{CLASS}'."
        )
    return listed, names


def _tried(label: str, pattern: str, hierarchy: ClassHierarchy) -> list[str]:
    spellings = dict.fromkeys([label, hierarchy.display(label), *hierarchy.aliases.get(label, ())])
    return [pattern.replace(CLASS, spelling) for spelling in spellings]


def _column_of(label: str, pattern: str, header: Sequence[str], hierarchy: ClassHierarchy, where: str) -> str:
    tried = _tried(label, pattern, hierarchy)
    candidates = [column for column in tried if column in header]
    if len(candidates) > 1:
        raise PredictionsError(f"{where} has several columns for the class {label!r}: {listing(candidates)}.")
    if not candidates:
        raise PredictionsError(
            f"{where} has no column {tried[0]!r} for the class {label!r}.{nearest(tried[0], header)} "
            f"Columns: {listing(header, most=12)}."
        )
    return candidates[0]


def numbers(piece: Columns, columns: Sequence[str], where: str) -> Array:
    """Columns of a table as numbers [n, k]."""
    values = np.empty((len(piece[columns[0]]), len(columns)))
    for place, column in enumerate(columns):
        try:
            values[:, place] = np.fromiter(map(parse_number, piece[column]), np.float64, len(values))
        except ValueError as error:
            raise PredictionsError(f"{where}: column {column!r} must hold numbers: {error}.") from error
    return values
