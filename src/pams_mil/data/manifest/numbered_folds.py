"""Folds written as numbers, as in nnMIL's tables: each slide belongs to one part, and fold k holds part k out.

A column `fold` has the number of every slide's part, or columns `fold_0`, `fold_1`, ... have 1 for the slides of that
part and 0 for the others. Fold k tests on part k, validates on the next part and trains on the rest, as `pams split
--folds` does. A table that names test slides in its column `split` keeps them: there part k validates.

Some tables repeat every slide once per fold, with its split in that fold: then the rows of fold k are fold k.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pams_mil import tables
from pams_mil.data.manifest.manifest import FOLD_COLUMN
from pams_mil.errors import ManifestError, counted, listing

COLUMN = "fold"
"""The column, in any case, that may hold the numbers."""

Parts = tuple[int | None, ...]
_HELD = ("test", "calib")
_SPLIT_NAMES = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test",
                "calibration": "calib"}  # fmt: skip


@dataclass(frozen=True)
class TakenFold:
    """The rows of a fold, their splits, and how the numbers were read."""

    rows: Sequence[int]
    splits: Sequence[str]
    note: str


def split_name(cell: str) -> str:
    """A split as PAMS calls it, from however a table spells it.

    >>> split_name("Testing "), split_name("dev"), split_name("held-out")
    ('test', 'val', 'held-out')
    """
    name = cell.strip().casefold()
    return _SPLIT_NAMES.get(name, name)


def parts_of(columns: Mapping[str, Sequence[str]], where: str) -> Parts | None:
    """The part of every row, None for rows in no part; None where the columns hold no numbered folds.

    >>> parts_of({"fold": ["0", "1", "", "2.0"]}, "here")
    (0, 1, None, 2)
    >>> parts_of({"fold_0": ["1", "0"], "fold_1": ["0", "1"]}, "here")
    (0, 1)
    >>> parts_of({"fold_0": ["train", "test"]}, "here") is None
    True
    """
    marked = {int(match[1]): name for name in columns if (match := FOLD_COLUMN.fullmatch(name))}
    if marked:
        return _marked_parts({number: columns[name] for number, name in sorted(marked.items())}, where)
    cells = next((columns[name] for name in columns if name.casefold() == COLUMN), ())
    numbers = [_number(cell) for cell in cells]
    stated = [cell for cell in cells if cell.strip()]
    if not stated or any(number is None for cell, number in zip(cells, numbers, strict=True) if cell.strip()):
        return None
    return tuple(numbers)


def splits_of(parts: Parts, fold: int, where: str) -> tuple[str, ...]:
    """Fold k tests on part k, validates on the next part and trains on the others.

    >>> splits_of((0, 1, 2, 2, None), 2, "here")
    ('val', 'train', 'test', 'test', '')
    """
    numbers = numbers_of(parts)
    if len(numbers) < 3:
        raise ManifestError(
            f"{where} has {counted(len(numbers), 'numbered fold')} ({listing(numbers)}); expected at least 3, since "
            "train, val and test differ. Make folds with 'pams split --folds'."
        )
    following = numbers[(numbers.index(fold) + 1) % len(numbers)]
    names = dict.fromkeys(numbers, "train") | {fold: "test", following: "val"}
    return tuple("" if part is None else names[part] for part in parts)


def numbers_of(parts: Parts) -> list[int]:
    """The numbers of the parts, in order."""
    return sorted({part for part in parts if part is not None})


def take_fold(table: tables.Columns, fold: int, slide: str, split: str | None, path: Path) -> TakenFold | None:
    """The splits of one fold of a table with numbered folds; None where it has none.

    Args:
        table: The cohort table.
        fold: Which part to hold out.
        slide: The column of slide ids.
        split: The column of splits, if there is one.
        path: The table's name for messages.
    """
    parts = parts_of(table, str(path))
    if parts is None:
        return None
    numbers = numbers_of(parts)
    if fold not in numbers:
        raise ManifestError(f"{path} has no fold {fold}; folds found: {listing(numbers)}.")
    stated = [split_name(cell) for cell in table[split]] if split is not None else [""] * len(parts)
    rows: Sequence[int] = range(len(parts))
    # All slides repeat: every fold has rows of its own, and its own splits. A few that repeat are a mistake in the
    # table, to be named by whoever examines it.
    if split is not None and min(Counter(table[slide]).values()) > 1:
        rows = [row for row in rows if parts[row] == fold]
        note = (
            f"Slides appear once per fold: the {len(rows)} rows of fold {fold} were read, with the splits they state."
        )
        return TakenFold(rows, [table[split][row] for row in rows], note)
    # The table has a test split apart from its folds: it must never be trained on.
    if any(name in _HELD for name in stated):
        splits = [
            name if name in _HELD else "" if part is None else "val" if part == fold else "train"
            for part, name in zip(parts, stated, strict=True)
        ]
        held = splits.count("val")
        note = f"Fold {fold} of the table validates ({held} slides); its test slides stay test, the others train."
        return TakenFold(rows, splits, note)
    following = numbers[(numbers.index(fold) + 1) % len(numbers)]
    held = parts.count(fold)
    note = f"Fold {fold} of the table tests ({held} slides), fold {following} validates, the others train."
    return TakenFold(rows, splits_of(parts, fold, str(path)), note)


def _marked_parts(columns: Mapping[int, Sequence[str]], where: str) -> Parts | None:
    marks = {number: [_number(cell) for cell in cells] for number, cells in columns.items()}
    if any(mark not in (0, 1) for column in marks.values() for mark in column):
        return None  # words: every column holds the splits of one fold
    parts: list[int | None] = []
    for row in range(len(next(iter(marks.values())))):
        own = [number for number, column in marks.items() if column[row] == 1]
        if len(own) > 1:
            raise ManifestError(
                f"{where}, row {row + 1}: the slide is in the folds {listing(own)}; expected 1 in one column fold_<k> "
                "alone, that of the fold that holds the slide out."
            )
        parts.append(own[0] if own else None)
    return tuple(parts)


def _number(cell: str) -> int | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return int(number) if number.is_integer() and number >= 0 else None
