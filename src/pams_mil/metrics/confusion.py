"""The confusion matrix, the sufficient statistic of every label metric: rows = true, columns = predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Ints
from pams_mil.errors import LabelError, ParameterError, listing
from pams_mil.hierarchy import ClassHierarchy

Labels = Sequence[str] | Sequence[int] | npt.NDArray[np.int64]


def confusion_matrix(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> Ints:
    """S[t, r], how many samples of class t were predicted as r.

    Labels are class names or class indices of `level`.

    >>> hierarchy = ClassHierarchy.flat(["benign", "malignant"])
    >>> confusion_matrix(["benign", "malignant", "malignant"], ["benign", "benign", "malignant"], hierarchy).tolist()
    [[1, 0], [1, 1]]
    """
    true, predicted = class_indices(y_true, hierarchy, level), class_indices(y_pred, hierarchy, level)
    if true.shape != predicted.shape:
        raise ParameterError(f"y_true and y_pred must be equally long, found {true.size} and {predicted.size}.")
    if not true.size:
        raise ParameterError("y_true and y_pred are empty; a metric needs at least one sample.")
    return count_cells(true, predicted, hierarchy.num_classes(level))


def class_indices(labels: Labels, hierarchy: ClassHierarchy, level: int = -1, what: str = "labels") -> Ints:
    """Class names or numbers as class indices [n]; what is neither is refused with its row.

    Numbers are positions in the order of urgency, 0 the least urgent, not those of a `LabelEncoder`, which sorts by
    name. Where all classes are named by numbers, such as grades 1 to 5, they are names.

    >>> class_indices(["high", "low"], ClassHierarchy.flat(["low", "high"])).tolist()
    [1, 0]
    >>> class_indices([1, 3], ClassHierarchy.flat(["1", "2", "3"])).tolist()
    [0, 2]
    """
    column = as_list(labels)
    try:
        distinct = dict.fromkeys(column)
    except TypeError as error:  # lists and arrays have no hash
        raise ParameterError(f"{what} must be a flat list of class names or numbers, one per sample.") from error
    index = {label: _class_index(label, hierarchy, level, what, column) for label in distinct}
    return np.asarray([index[label] for label in column], dtype=np.int64)


def _class_index(label: Any, hierarchy: ClassHierarchy, level: int, what: str, column: list[Any]) -> int:
    names = hierarchy.names(level)
    number = isinstance(label, (int, float, np.integer, np.floating, np.bool_)) and math.isfinite(label)
    number = number and int(label) == label
    if isinstance(label, str) or (number and named_by_numbers(hierarchy, level)):
        try:
            return hierarchy.index(label if isinstance(label, str) else str(int(label)), level)
        except LabelError as error:
            raise ParameterError(f"{what}, row {column.index(label)}: {error}") from error
    if number and 0 <= int(label) < len(names):
        return int(label)
    expected = (
        f"0 to {len(names) - 1}, least urgent first" if number else f"{listing(names, most=12)}, or their numbers"
    )
    row = next(place for place, one in enumerate(column) if one is label)  # pandas' NA equals nothing, not even itself
    raise ParameterError(f"{what}, row {row}: {label!r} is not a class; expected {expected}.")


def named_by_numbers(hierarchy: ClassHierarchy, level: int = -1) -> bool:
    """Whether all classes have numbers as names."""
    return all(name.lstrip("-").isdigit() for name in hierarchy.names(level))


def as_list(column: Any) -> list[Any]:
    """A list, array or series as a list of plain values."""
    convert = getattr(column, "tolist", None) or getattr(column, "to_list", None)
    return list(column if convert is None else convert())


def count_cells(true: Ints, predicted: Ints, num_classes: int) -> Ints:
    """The confusion matrix of index arrays that are known to be in range."""
    cells = np.bincount(true * num_classes + predicted, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes).astype(np.int64)
