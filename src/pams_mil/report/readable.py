"""What people can take in at once of hundreds of classes: a coarser level, and counts."""

from __future__ import annotations

from pams_mil.hierarchy import ClassHierarchy

READABLE = 40
"""Most classes of a matrix or an order that is shown at once; pages fold out more."""


def readable_level(hierarchy: ClassHierarchy, level: int = -1) -> int | None:
    """The finest level at or above `level` with at most `READABLE` classes; None where there is none."""
    levels = range(hierarchy.level(level), -1, -1)
    return next((one for one in levels if hierarchy.num_classes(one) <= READABLE), None)


def short_order(hierarchy: ClassHierarchy, level: int = -1) -> str:
    """The order of a level; of too many classes their count, and the order of their groups.

    >>> short_order(ClassHierarchy.load("isup"))
    '0 ≺ 1 ≺ 2 ≺ 3 ≺ 4 ≺ 5'
    >>> short_order(ClassHierarchy.flat([f"c{i}" for i in range(419)]))
    '419 classes, c0 to c418'
    """
    readable, names = readable_level(hierarchy, level), hierarchy.names(level)
    if readable == hierarchy.level(level):
        return hierarchy.order(level)
    span = f"{names[0]} to {names[-1]}" if readable is None else f"in groups {hierarchy.order(readable)}"
    return f"{len(names)} classes, {span}"
