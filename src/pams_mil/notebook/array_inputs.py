"""Labels, probabilities and patients as people hold them, lists, arrays or frames, to checked `Predictions`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pams_mil.arrays import Ints
from pams_mil.errors import LabelError, ParameterError, listing
from pams_mil.evaluate.predictions.predictions import Predictions, check_probabilities
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.columns import class_columns, column_names, require_urgency_order


def predictions_from_arrays(
    y_true: Any,
    models: Any,
    hierarchy: ClassHierarchy,
    *,
    labels: Sequence[Any] | None = None,
    patients: Any = None,
    slides: Any = None,
    by: Any = None,
) -> list[Predictions]:
    """One `Predictions` per model; see `pams_mil.audit` for what each argument may be.

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> models = {"a": [[0.9, 0.1], [0.8, 0.2]], "b": ["benign", "malignant"]}
    >>> first, second = predictions_from_arrays([0, 1], models, tree)
    >>> first.predicted.tolist(), second.predicted.tolist(), second.probabilities
    ([0, 0], [0, 1], None)
    """
    true = values(y_true)
    if not true:
        raise ParameterError("y_true is empty; an audit needs at least one labelled slide.")
    target = label_indices(true, hierarchy, "y_true")
    named = any(isinstance(label, str) for label in true)
    models = models if isinstance(models, Mapping) else {"model": models}
    if not models:
        raise ParameterError('No model was given; expected {"name": probabilities or calls}.')
    ids = [f"slide {row}" for row in range(len(true))] if slides is None else _column(slides, len(true), "slides")
    if len(set(ids)) < len(ids):
        raise ParameterError("slides must all differ; give patients= for several slides of one patient.")
    shared: dict[str, Any] = {
        "patient_ids": None if patients is None else _column(patients, len(true), "patients"),
        "tags": tags(by, len(true)),
        "layout": "arrays",
    }
    return [
        _model(str(name), prediction, target, ids, hierarchy, labels, named, shared)
        for name, prediction in models.items()
    ]


def label_indices(labels: Sequence[Any], hierarchy: ClassHierarchy, what: str) -> Ints:
    """Class names or numbers as class indices, [n]; what is neither is refused with its row.

    >>> label_indices(["high", "low"], ClassHierarchy.flat(["low", "high"]), "y").tolist()
    [1, 0]
    """
    names = hierarchy.names()
    # Grades such as 1 to 5 are names that look like numbers.
    spelled = all(name.lstrip("-").isdigit() for name in names)
    index = np.empty(len(labels), dtype=np.int64)
    for row, label in enumerate(labels):
        if isinstance(label, str):
            try:
                index[row] = hierarchy.index(label)
            except LabelError as error:
                raise ParameterError(f"{what}, row {row}: {error}") from error
        elif isinstance(label, (bool, int, float, np.generic)) and math.isfinite(label) and int(label) == label:
            number = int(label)
            if spelled:
                index[row] = label_indices([str(number)], hierarchy, f"{what}, row {row}")[0]
            elif 0 <= number < len(names):
                index[row] = number
            else:
                raise ParameterError(
                    f"{what}, row {row}: {number} is not a class; expected 0 to {len(names) - 1}, least urgent first."
                )
        else:
            raise ParameterError(
                f"{what}, row {row}: {label!r} is not a class; expected {listing(names, most=12)}, or a class number."
            )
    return index


def values(column: Any) -> list[Any]:
    """A list, array or series as a list."""
    if hasattr(column, "to_list"):
        return list(column.to_list())
    return list(np.asarray(column).tolist() if isinstance(column, np.ndarray) else column)


def tags(by: Any, rows: int) -> dict[str, list[str]]:
    """Subgroups by name: {"site": [...]}, a frame with named columns, or one list.

    >>> tags(["a", "b"], 2)
    {'group': ['a', 'b']}
    """
    if by is None:
        return {}
    if isinstance(by, Mapping):
        columns = {str(name): column for name, column in by.items()}
    elif column_names(by) is not None:
        columns = {str(name): by[name] for name in by.columns}
    else:
        columns = {str(getattr(by, "name", None) or "group"): by}
    return {name: _column(column, rows, f"by[{name!r}]") for name, column in columns.items()}


def _model(
    name: str, prediction: Any, target: Ints, ids: list[str], hierarchy: ClassHierarchy, labels: Sequence[Any] | None,
    named: bool, shared: Mapping[str, Any],
) -> Predictions:  # fmt: skip
    if column_names(prediction) is None and np.ndim(prediction) == 1:
        column = values(prediction)
        whole = all(
            isinstance(value, str) or (isinstance(value, (int, float)) and float(value).is_integer())
            for value in column
        )
        if whole or len(hierarchy) != 2:
            calls = label_indices(column, hierarchy, name)
            _require_rows(name, len(calls), len(target))
            return Predictions(name, hierarchy, ids, target, calls, **shared)
        # Of two classes one column says all: the probability of the more urgent one.
        prediction = np.stack([1.0 - np.asarray(column, float), np.asarray(column, float)], axis=1)
        labels = hierarchy.names()
    p, known = class_columns(prediction, hierarchy, labels=labels)
    _require_rows(name, len(p), len(target))
    if p.ndim != 2 or p.shape[1] != len(hierarchy):
        raise ParameterError(
            f"{name}: expected probabilities with {len(hierarchy)} columns, one per class, or one call per slide; "
            f"found shape {p.shape}."
        )
    check_probabilities(p, ids, name)
    if not known:
        require_urgency_order(target, p, hierarchy, doubt=named)
    return Predictions(name, hierarchy, ids, target, p.argmax(1), p, decided_by="argmax", **shared)


def _column(column: Any, rows: int, what: str) -> list[str]:
    cells = values(column)
    _require_rows(what, len(cells), rows)
    missing = [row for row, cell in enumerate(cells) if cell is None or cell != cell or str(cell) == ""]
    if missing and what in ("patients", "slides"):
        raise ParameterError(f"{what} has no value in {len(missing)} rows, the first is row {missing[0]}.")
    empty = set(missing)
    return ["" if row in empty else str(cell) for row, cell in enumerate(cells)]


def _require_rows(what: str, rows: int, expected: int) -> None:
    if rows != expected:
        raise ParameterError(f"{what} has {rows} rows, but y_true has {expected}; expected one for each label.")
