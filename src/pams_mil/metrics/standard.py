"""The usual label metrics, from the same confusion matrix as the severity metrics."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import reduce
from pams_mil.metrics.confusion import Labels, class_indices, confusion_matrix


def accuracy(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Share of samples that are right."""
    return float(reduce.accuracy(confusion_matrix(y_true, y_pred, hierarchy, level)))


def balanced_accuracy(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Mean recall over the classes that occur in `y_true`."""
    return float(reduce.balanced_accuracy(confusion_matrix(y_true, y_pred, hierarchy, level)))


def quadratic_kappa(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1) -> float:
    """Cohen's kappa with quadratic weights on the class index; NaN when all samples share one class."""
    return float(reduce.quadratic_kappa(confusion_matrix(y_true, y_pred, hierarchy, level)))


def per_class_recall(
    y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, level: int = -1
) -> npt.NDArray[np.float64]:
    """Recall of each class, [C]; NaN for a class that does not occur."""
    return reduce.recalls(confusion_matrix(y_true, y_pred, hierarchy, level))


def group_recall(y_true: Labels, y_pred: Labels, hierarchy: ClassHierarchy, group: str, level: int = 0) -> float:
    """Share of a group's samples that were predicted as any class of that group.

    Labels are of the finest level, `group` is a class of `level`; for example, all Adenoma classes positive.

    >>> hierarchy = ClassHierarchy.load("bracs")
    >>> group_recall(["DCIS", "IC", "IC", "N"], ["IC", "IC", "N", "N"], hierarchy, "Malignant")
    0.6666666666666666
    """
    wanted = hierarchy.index(group, level)
    true = hierarchy.lift(class_indices(y_true, hierarchy), level)
    predicted = hierarchy.lift(class_indices(y_pred, hierarchy), level)
    if true.shape != predicted.shape:
        raise ParameterError(f"y_true and y_pred must be equally long, found {true.size} and {predicted.size}.")
    positive = true == wanted
    return float(reduce.divide(np.sum(positive & (predicted == wanted)), np.sum(positive)))
