"""The confusion matrix, the sufficient statistic of every label metric: rows = true, columns = predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Ints
from pams_mil.errors import ParameterError
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


def class_indices(labels: Labels, hierarchy: ClassHierarchy, level: int = -1) -> Ints:
    """Names or indices of a level as checked indices."""
    if isinstance(next(iter(labels), None), str):
        return np.asarray([hierarchy.index(str(label), level) for label in labels], dtype=np.int64)
    index = np.asarray(labels)
    if index.ndim != 1 or (index.size and not np.issubdtype(index.dtype, np.integer)):
        raise ParameterError(
            f"Labels must be a flat list of class names or indices, found {index.dtype} of shape {index.shape}."
        )
    return hierarchy.lift(index, level, from_level=level)


def count_cells(true: Ints, predicted: Ints, num_classes: int) -> Ints:
    """The confusion matrix of index arrays that are known to be in range."""
    cells = np.bincount(true * num_classes + predicted, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes).astype(np.int64)
