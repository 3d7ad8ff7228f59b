"""Sets of findings as tables write them: one cell, `DCIS; UDH`, or one column of 0 and 1 per class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pams_mil.class_checks import SEPARATOR
from pams_mil.errors import LabelError, listing
from pams_mil.hierarchy import ClassHierarchy

_MARKS = {"0": False, "1": True, "0.0": False, "1.0": True}
"""Whole numbers, also as a spreadsheet with empty cells elsewhere writes them."""


def set_label(present: npt.ArrayLike, hierarchy: ClassHierarchy, otherwise: str) -> str:
    """A set of findings [K] as a table writes it, least urgent first; `otherwise` for the empty one.

    >>> tree = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N")
    >>> set_label([True, True], tree, "N"), set_label([False, False], tree, "N")
    ('UDH; DCIS', 'N')
    """
    return joined_names(hierarchy.finding_classes[np.asarray(present, dtype=bool)].tolist(), hierarchy) or otherwise


def joined_names(members: Iterable[int], hierarchy: ClassHierarchy) -> str:
    """Class indices as one label."""
    return f"{SEPARATOR} ".join(hierarchy.classes[index] for index in members)


def united_label(label: str, hierarchy: ClassHierarchy) -> str:
    """A label of several slides together: "nothing" is left out where another slide has a finding.

    >>> united_label("N; DCIS; UDH", ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N"))
    'UDH; DCIS'
    """
    members = sorted({hierarchy.index(name.strip()) for name in label.split(SEPARATOR) if name.strip()})
    findings = [index for index in members if hierarchy.classes[index] != hierarchy.nothing]
    return joined_names(findings or members, hierarchy)


def has_class_columns(header: Iterable[str], hierarchy: ClassHierarchy, *, label: str = "label") -> bool:
    """Whether labels are sets with a column per class: no column is the label, and one has a finding's name."""
    names = set(header)
    if hierarchy.findings == "one" or label in {name.casefold() for name in names}:
        return False
    return any(names & _spellings(hierarchy, index) for index in hierarchy.finding_classes.tolist())


def labels_of_marks(
    table: Mapping[str, Sequence[str]], slides: Sequence[str], hierarchy: ClassHierarchy
) -> tuple[list[str], set[str]]:
    """The label of every row of a table with a column of 0 and 1 per class, and the columns that were read.

    >>> tree = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N")
    >>> labels_of_marks({"UDH": ["1", "0"], "DCIS": ["1", "0"]}, ["s1", "s2"], tree)[0]
    ['UDH; DCIS', 'N']
    """
    spelled = {
        name: [column for column in table if column in _spellings(hierarchy, index)]
        for index, name in enumerate(hierarchy.classes)
    }
    nothing = hierarchy.nothing
    lacking = [name for name, columns in spelled.items() if not columns and name != nothing]
    twice = [columns for columns in spelled.values() if len(columns) > 1]
    if lacking or twice:
        what = f"no column {listing(lacking)}" if lacking else f"more than one, {listing(twice[0])} for one class"
        raise LabelError(
            f"labels have one column of 0 and 1 per class, but there is {what}; expected one for each of "
            f"{listing(hierarchy.classes, most=30)}" + (f", {nothing!r} optional." if nothing else ".")
        )
    marks = {name: columns[0] for name, columns in spelled.items() if columns}
    labels = []
    for row, slide in enumerate(slides):
        cells = {name: table[column][row].strip() for name, column in marks.items()}
        if not slide and not any(cells.values()):  # spreadsheets leave empty rows behind
            labels.append("")
            continue
        if odd := [name for name, cell in cells.items() if cell not in _MARKS]:
            raise LabelError(
                f"slide {slide!r}: expected 0 or 1 in the column {marks[odd[0]]!r}, found {cells[odd[0]]!r}. A finding "
                "that nobody looked for is not 0: leave such slides out."
            )
        present = [name for name, cell in cells.items() if _MARKS[cell]]
        if not present and (not nothing or nothing in marks):
            do = f"mark {nothing!r}" if nothing else "name the class that means so under 'nothing:' in the class file"
            raise LabelError(f"slide {slide!r}: no column is 1. If nothing was found, {do}.")
        labels.append(f"{SEPARATOR} ".join(present) or nothing)
    return labels, set(marks.values())


def _spellings(hierarchy: ClassHierarchy, index: int) -> set[str]:
    name = hierarchy.classes[index]
    return {name, *hierarchy.aliases.get(name, ())}
