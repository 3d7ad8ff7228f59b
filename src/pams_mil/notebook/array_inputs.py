"""Labels, probabilities and patients as people hold them, lists, arrays or frames, to checked `Predictions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from pams_mil.arrays import Array
from pams_mil.class_checks import SEPARATOR
from pams_mil.data.finding_labels import labels_of_marks
from pams_mil.errors import LabelError, ParameterError, first_line, listing
from pams_mil.evaluate.predictions.findings import headline_probabilities, split_scores
from pams_mil.evaluate.predictions.predictions import Predictions, require_probabilities
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import as_list, class_indices
from pams_mil.metrics.finding_sets import check_finding_probabilities
from pams_mil.metrics.probability import class_columns, class_order, column_names, require_urgency_order


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
    if not isinstance(y_true, Iterable):
        raise ParameterError(f"y_true must be a list of classes, one per slide, found {y_true!r}.")
    true = set_labels(y_true, hierarchy, labels, "y_true") if hierarchy.findings == "several" else as_list(y_true)
    if not true:
        raise ParameterError("y_true is empty; an audit needs at least one labelled slide.")
    target = class_indices(true, hierarchy, what="y_true")
    named = any(isinstance(label, str) for label in true)
    models = models if isinstance(models, Mapping) else {"model": models}
    if not models:
        raise ParameterError('No model was given; expected {"name": probabilities or calls}.')
    require_same_rows({"y_true": y_true, **models, "patients": patients, "slides": slides})
    ids = [f"slide {row}" for row in range(len(true))] if slides is None else _column(slides, len(true), "slides")
    if len(set(ids)) < len(ids):
        raise ParameterError("slides must all differ; give patients= for several slides of one patient.")
    rows = Predictions(
        "", hierarchy, ids, target, predicted=target, tags=tags(by, len(true)), layout="arrays",
        patient_ids=None if patients is None else _column(patients, len(true), "patients"),
        finding_targets=hierarchy.finding_matrix(true) if hierarchy.findings == "several" else None,
    )  # fmt: skip
    return [_model(replace(rows, name=str(name)), one, labels, named=named) for name, one in models.items()]


def require_same_rows(columns: Mapping[str, Any]) -> None:
    """Refuse frames and series that name the same rows in another order: rows are taken as they come.

    A numbered index (0, 1, 2, ...) names nothing, since frames made of an array have one.
    """
    first: tuple[str, list[Any]] | None = None
    for name, column in columns.items():
        index = getattr(column, "index", None)
        rows = None if index is None or callable(index) else list(index)
        if rows is None or rows == list(range(len(rows))):
            continue
        if first is None:
            first = (name, rows)
        elif rows != first[1] and len(rows) == len(first[1]) and set(rows) == set(first[1]):
            raise ParameterError(
                f"{name} has the rows of {first[0]} in another order, and rows are taken as they come. "
                f"Sort one by the other first: {name}.loc[{first[0]}.index]."
            )


def set_labels(sets: Any, hierarchy: ClassHierarchy, labels: Sequence[Any] | None, what: str) -> list[str]:
    """Sets of findings as labels, `DCIS; UDH`: from names, lists of names, or 0 and 1 in a column per finding.

    >>> tree = ClassHierarchy.flat(["N", "DCIS", "IC"], findings="several", nothing="N")
    >>> set_labels([["DCIS", "IC"], []], tree, None, "y"), set_labels([[1, 1], [0, 0]], tree, None, "y")
    (['DCIS; IC', 'N'], ['DCIS; IC', 'N'])
    """
    rows = as_list(sets.to_numpy() if hasattr(sets, "columns") else sets)
    lists = [list(row) for row in rows if _is_list(row)]
    numbers = any(not isinstance(cell, str) for row in lists for cell in row)
    if numbers and len(lists) == len(rows):
        return _marked_labels(lists, finding_order(sets, len(lists[0]), hierarchy, labels, what), hierarchy, what)
    return [_set_label(cell, hierarchy, f"{what}, row {row}") for row, cell in enumerate(rows)]


def _marked_labels(rows: list[list[Any]], names: list[str], hierarchy: ClassHierarchy, what: str) -> list[str]:
    ragged = [row for row, cells in enumerate(rows) if len(cells) != len(names)]
    if ragged:
        raise ParameterError(f"{what}, row {ragged[0]}: expected 0 or 1 for each of {listing(names, most=12)}.")
    whole = [[str(int(cell)) if cell in (0, 1) else str(cell) for cell in cells] for cells in rows]
    table = {name: [cells[place] for cells in whole] for place, name in enumerate(names)}
    try:
        return labels_of_marks(table, [f"row {row}" for row in range(len(rows))], hierarchy)[0]
    except LabelError as error:
        raise ParameterError(f"{what}: {error}") from error


def _set_label(cell: Any, hierarchy: ClassHierarchy, where: str) -> str:
    if _is_list(cell) and not cell and not hierarchy.nothing:
        raise ParameterError(f"{where}: the set is empty, and no class means that; name it under 'nothing:'.")
    if not isinstance(cell, str) and not _is_list(cell):
        return hierarchy.classes[int(class_indices([cell], hierarchy, what=where)[0])]
    label = cell if isinstance(cell, str) else f"{SEPARATOR} ".join(map(str, cell)) or hierarchy.nothing
    try:
        hierarchy.set_of(label)
    except LabelError as error:
        raise ParameterError(f"{where}: {error}") from error
    return label


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset))


def finding_order(
    table: Any, width: int, hierarchy: ClassHierarchy, labels: Sequence[Any] | None, what: str
) -> list[str]:
    """The names of the columns of a table about findings, which are all findings or all classes."""
    names = column_names(table) if labels is None else [str(label) for label in labels]
    findings = [hierarchy.classes[index] for index in hierarchy.finding_classes.tolist()]
    expected = findings if width == len(findings) else list(hierarchy.classes)
    if names is None and sorted(expected) != expected:  # as scikit-learn's MultiLabelBinarizer sorts them
        raise ParameterError(
            f"It is not certain which column of {what} is which finding: {listing(expected, most=12)} by urgency, or "
            f"{listing(sorted(expected), most=12)} by name? Say which it is: labels=binarizer.classes_, or "
            f"labels={expected!r}, or give a frame with named columns."
        )
    if width != len(names or expected):
        raise ParameterError(
            f"{what} has {width} columns; expected one for each of {listing(names or findings, most=12)}."
        )
    return names or expected


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


def _model(rows: Predictions, prediction: Any, labels: Sequence[Any] | None, *, named: bool) -> Predictions:
    """The rows with the calls or probabilities of one model."""
    name, hierarchy = rows.name, rows.hierarchy
    if _is_calls(prediction):
        column = as_list(prediction)
        if hierarchy.findings == "several":
            column = set_labels(column, hierarchy, labels, name)
        numbers = [float(value) for value in column if isinstance(value, Real)]
        if len(hierarchy) != 2 or len(numbers) < len(column) or all(value.is_integer() for value in numbers):
            calls = class_indices(column, hierarchy, what=name)
            _require_rows(name, len(calls), len(rows))
            return replace(rows, predicted=calls)
        # Of two classes one column says all: the probability of the more urgent one.
        prediction = np.stack([1.0 - np.asarray(numbers), numbers], axis=1)
        labels = hierarchy.names()
    shape = _table(prediction, name).shape
    if len(shape) != 2:
        raise ParameterError(f"{name}: expected probabilities [n, C] or one call per slide, found shape {shape}.")
    findings = None
    if hierarchy.findings == "several":
        p, findings = _set_scores(prediction, hierarchy, labels, name)
    if findings is None:
        p, order = class_columns(prediction, hierarchy, labels=labels)
    _require_rows(name, len(p), len(rows))
    if p.shape[1] != len(hierarchy):
        raise ParameterError(
            f"{name}: expected probabilities with {len(hierarchy)} columns, one per class, or one call per slide; "
            f"found shape {p.shape}."
        )
    require_probabilities(p, rows.slide_ids, name)
    if findings is None:
        require_urgency_order(rows.target, p, hierarchy, order=order, named=named)
    return replace(rows, predicted=p.argmax(1), probabilities=p, finding_probabilities=findings, decided_by="argmax")


def _is_calls(prediction: Any) -> bool:
    """Whether it is one call per slide: a column, or a list of sets of names."""
    if column_names(prediction) is not None:
        return False
    if isinstance(prediction, (list, tuple)) and any(_is_list(members) for members in prediction):
        return all(_is_list(members) and all(isinstance(name, str) for name in members) for members in prediction)
    return np.ndim(prediction) == 1


def _table(prediction: Any, name: str) -> Array:
    """A frame, array or list of rows as an array of numbers."""
    try:
        return np.asarray(prediction.to_numpy() if hasattr(prediction, "to_numpy") else prediction, np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"{name}: expected a table of probabilities, numbers in rows of one length; {first_line(error)}."
        ) from error


def _set_scores(
    prediction: Any, hierarchy: ClassHierarchy, labels: Sequence[Any] | None, name: str
) -> tuple[Array, Array | None]:
    """Probabilities [n, C] of the most urgent finding and [n, K] of single ones; None where they are of classes."""
    table, names = _table(prediction, name), column_names(prediction) or []
    own = [f"f_{hierarchy.classes[index]}" for index in hierarchy.finding_classes.tolist()]
    if set(own) <= set(names):
        findings = check_finding_probabilities(table[:, [names.index(column) for column in own]], len(own))
        classes = [f"p_{label}" for label in hierarchy.classes]
        if set(classes) <= set(names):
            return table[:, [names.index(column) for column in classes]], findings
        return headline_probabilities(findings, hierarchy), findings
    if table.shape[1] != len(own):
        return table, None
    order = finding_order(prediction, len(own), hierarchy, labels, name)
    columns = class_order(order, hierarchy, hierarchy.finding_classes.tolist())
    return split_scores(check_finding_probabilities(table[:, columns], len(own)), hierarchy)


def _column(column: Any, rows: int, what: str) -> list[str]:
    cells = as_list(column)
    _require_rows(what, len(cells), rows)
    missing = [row for row, cell in enumerate(cells) if _is_missing(cell)]
    if missing and what in ("patients", "slides"):
        raise ParameterError(f"{what} has no value in {len(missing)} rows, the first is row {missing[0]}.")
    empty = set(missing)
    return ["" if row in empty else str(cell) for row, cell in enumerate(cells)]


def _is_missing(cell: Any) -> bool:
    try:
        return cell is None or bool(cell != cell) or str(cell) == ""
    except TypeError:  # pandas' NA is neither equal to itself nor different
        return True


def _require_rows(what: str, rows: int, expected: int) -> None:
    if rows != expected:
        raise ParameterError(f"{what} has {rows} rows, but y_true has {expected}; expected one for each label.")
