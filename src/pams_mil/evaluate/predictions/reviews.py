"""A reader's verdicts as predictions: `reviews.csv`, written by the viewer, read by audits as a second reader.

With a column `target` the reader is scored against the truth, like any model. Without one the reader is the reference
and the model's calls are scored against it. Deferred cases have no class and are left out, but counted.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection

from pams_mil.data.tables import Columns
from pams_mil.errors import LabelError
from pams_mil.hierarchy import ClassHierarchy

LAYOUT = "PAMS reviews"
HEADER = (
    "slide_id", "patient_id", "target", "model_call", "kappa", "cannot_exclude", "reader_class", "verdict", "seconds",
    "blind", "note", "reviewer", "time", "run",
)  # fmt: skip
COLUMNS = {"slide_id", "model_call", "reader_class", "verdict"}
"""By these columns the file is recognized."""


def compared(header: Collection[str]) -> tuple[str, str]:
    """The columns of the true and of the predicted class.

    >>> compared(["slide_id", "target", "reader_class"]), compared(["slide_id", "reader_class"])
    (('target', 'reader_class'), ('reader_class', 'model_call'))
    """
    return ("target", "reader_class") if "target" in header else ("reader_class", "model_call")


class Tally:
    """Counts what the reader did while the table passes by."""

    def __init__(self, hierarchy: ClassHierarchy) -> None:
        self.hierarchy = hierarchy
        self.directions: Counter[str] = Counter()
        self.deferred = 0
        self.seconds: list[float] = []

    def decided(self, piece: Columns) -> Columns:
        """The rows that have a class."""
        rows = [row for row, label in enumerate(piece["reader_class"]) if label]
        self.deferred += len(piece["reader_class"]) - len(rows)
        for row in rows:
            self.directions[direction(self.hierarchy, piece["model_call"][row], piece["reader_class"][row])] += 1
        self.seconds += [value for text in piece.get("seconds", ()) if (value := _number(text)) is not None]
        return {name: [cells[row] for row in rows] for name, cells in piece.items()}

    def notes(self) -> tuple[str, ...]:
        """What the reader did, in one sentence each."""
        count = self.directions
        read, same = sum(count.values()), count["same"]
        sentences = [
            f"The reader kept {same} of {read} calls and overturned {read - same}: {count['up']} to a more urgent "
            f"class (urgency the model missed), {count['down']} to a less urgent one (false alarms), "
            f"{count['across']} to an equally urgent one."
        ]
        if self.deferred:
            sentences.append(f"{self.deferred} cases were deferred and are not scored.")
        if self.seconds:
            middle, total = statistics.median(self.seconds), sum(self.seconds)
            sentences.append(f"Median time per case {middle:.0f} s, {total / 60:.0f} min in all.")
        return tuple(sentences)


def direction(hierarchy: ClassHierarchy, call: str, reading: str) -> str:
    """Where the reader moved a call: same, up (more urgent), down, or across (equally urgent).

    >>> bracs = ClassHierarchy.load("bracs")
    >>> [direction(bracs, "FEA", reading) for reading in ("FEA", "IC", "N", "ADH")]
    ['same', 'up', 'down', 'across']
    """
    try:
        before, after = hierarchy.index(call), hierarchy.index(reading)
    except LabelError:
        return "across"  # the labels themselves are refused with their slide's name by whoever encodes them
    if before == after:
        return "same"
    step = hierarchy.ranks()[after] - hierarchy.ranks()[before]
    return "up" if step > 0 else "down" if step < 0 else "across"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
