"""Which column of a table of probabilities is which class: taken from names, and never silently the wrong way round.

scikit-learn sorts its columns by name (`classes_`), we sort ours by urgency. A frame names its columns, `labels` names
those of an array; both are then put into the order of the hierarchy. An array without names beside labels that are
names is taken only where it is beyond doubt in the order of urgency:

    d_i = p_i[t_i] − p_i[s(t_i)],   s: the same columns read as sorted by name;   mean(d) > 3 standard errors
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.errors import LabelError, ParameterError, listing
from pams_mil.hierarchy import ClassHierarchy

PREFIXES = ("", "p_", "prob_", "proba_")
"""What may stand before the class in a column's name."""
STANDARD_ERRORS = 3.0
"""So far the evidence for one order of the columns must exceed that for the other."""


def class_columns(
    probabilities: Any, hierarchy: ClassHierarchy, level: int = -1, labels: Sequence[Any] | None = None
) -> tuple[Array, bool]:
    """Probabilities [n, C] in the order of the hierarchy, and whether their columns had names.

    >>> tree = ClassHierarchy.flat(["normal", "cancer"])
    >>> class_columns([[0.9, 0.1]], tree, labels=["cancer", "normal"])
    (array([[0.1, 0.9]]), True)
    """
    names = column_names(probabilities) if labels is None else list(labels)
    table = np.asarray(probabilities.to_numpy() if hasattr(probabilities, "to_numpy") else probabilities, np.float64)
    if names is None:
        return table, False
    if table.ndim != 2 or table.shape[1] != len(names):
        raise ParameterError(f"{len(names)} columns are named, but the probabilities have shape {table.shape}.")
    return table[:, class_order(names, hierarchy, range(hierarchy.num_classes(level)), level)], True


def column_names(table: Any) -> list[str] | None:
    """The names of a frame's columns; None for an array, or for a frame whose columns are only numbered."""
    columns = getattr(table, "columns", None)
    if columns is None or isinstance(table, np.ndarray):
        return None
    names = [str(name) for name in columns]
    numbered = [str(number) for number in range(len(names))]
    return None if names in (numbered, [f"column_{number}" for number in numbered]) else names


def require_urgency_order(true: Ints, p: Array, hierarchy: ClassHierarchy, level: int = -1, *, doubt: bool) -> None:
    """Refuse unnamed columns that may be sorted by name instead of by urgency.

    Args:
        true: Class indices [n].
        p: Probabilities [n, C] as they came.
        hierarchy: Order of the classes.
        level: The level of both.
        doubt: Refuse unless the order of urgency fits clearly better; else only if the sorted one clearly does.
    """
    names = hierarchy.names(level)
    by_name = np.argsort(np.argsort(np.array(names)))  # where each class stands when sorted
    if np.array_equal(by_name, np.arange(len(names))) or p.ndim != 2 or p.shape[1] != len(names) or len(p) != len(true):
        return
    rows = np.arange(len(true))
    gain = p[rows, true] - p[rows, by_name[true]]
    error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else np.inf
    mean = float(gain.mean())
    if mean > STANDARD_ERRORS * error or (not doubt and mean >= -STANDARD_ERRORS * error):
        return
    raise ParameterError(
        "It is not certain which column of the probabilities is which class. Expected the order of urgency "
        f"({listing(names, most=12)}); as scikit-learn sorts them ({listing(sorted(names), most=12)}), the true "
        f"class has {'a higher' if mean < 0 else 'nearly the same'} mean probability. Say which it is: "
        f"labels=classifier.classes_, or labels={list(names)!r}, or give a frame with named columns."
    )


def class_order(names: Sequence[Any], hierarchy: ClassHierarchy, classes: Sequence[int], level: int = -1) -> list[int]:
    """Where each of some classes of the hierarchy stands among the names."""
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
