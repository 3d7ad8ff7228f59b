"""Cohort tables and split files of other tools: nnMIL, Patho-Bench, CLAM.

Folds written as numbers: a column `fold` has the number of every slide's fold, or columns `fold_0`, `fold_1`, ... have
1 for the slides of that fold and 0 for the others. Fold k tests on the slides of number k, validates on the next number
and trains on the rest, as `pams split --folds` does. A table that names test slides in its column `split` keeps them:
there the slides of number k validate. Some tables repeat every slide once per fold, with its split in that fold: then
the rows of fold k are fold k.

Labels written as numbers get their names from the file beside the table: `config.yaml` in a Patho-Bench task,
`dataset.json` in nnMIL's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import yaml

from pams_mil import atomic
from pams_mil.data import tables
from pams_mil.data.manifest.manifest import FOLD_COLUMN, PARTS, SPLITS, Manifest
from pams_mil.errors import ManifestError, counted, listing
from pams_mil.yaml_guard import load_yaml, read_text

COLUMN = "fold"
"""The column, in any case, that may hold the numbers."""

Parts = tuple[int | None, ...]
_HELD = ("test", "calib")
_TRUE = {"true", "1", "1.0"}
_MOST_BYTES = 1 << 20
_SPLIT_NAMES = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test",
                "calibration": "calib"}  # fmt: skip


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
    marked = {
        int(match[1]): list(map(_number, columns[name])) for name in columns if (match := FOLD_COLUMN.fullmatch(name))
    }
    if marked:
        if any(mark not in (0, 1) for marks in marked.values() for mark in marks):
            return None  # words: every column holds the splits of one fold
        parts: list[int | None] = []
        for row, marks in enumerate(zip(*marked.values(), strict=True), 1):
            own = sorted(number for number, mark in zip(marked, marks, strict=True) if mark)
            if len(own) > 1:
                raise ManifestError(
                    f"{where}, row {row}: the slide is in the folds {listing(own)}; expected 1 in one column fold_<k> "
                    "alone, that of the fold that holds the slide out."
                )
            parts.append(own[0] if own else None)
        return tuple(parts)
    cells = next((columns[name] for name in columns if name.casefold() == COLUMN), ())
    numbers = tuple(map(_number, cells))
    stated = [number for cell, number in zip(cells, numbers, strict=True) if cell.strip()]
    return numbers if stated and None not in stated else None


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
    return tuple("" if subset is None else names[subset] for subset in parts)


def numbers_of(parts: Parts) -> list[int]:
    """The numbers of the parts, in order."""
    return sorted({number for number in parts if number is not None})


def take_fold(
    table: tables.Columns, fold: int, slide: str, split: str | None, path: Path
) -> tuple[Sequence[int], Sequence[str], str] | None:
    """The rows of one of a table's numbered folds, their splits, and how the numbers were read; None: it has none.

    `fold` is the part to hold out, `slide` and `split` name the columns of slide ids and of splits.
    """
    parts = parts_of(table, str(path))
    if parts is None:
        return None
    numbers, rows = numbers_of(parts), range(len(parts))
    if fold not in numbers:
        raise ManifestError(f"{path} has no fold {fold}; folds found: {listing(numbers) or 'none'}.")
    # All slides repeat: every fold has rows of its own, and its own splits. A few that repeat are a mistake in the
    # table, to be named by whoever examines it.
    times = Counter(cell for cell in table[slide] if cell)  # spreadsheets leave empty rows behind
    if split is not None and min(times.values(), default=0) > 1:
        own = [row for row in rows if parts[row] == fold]
        note = f"Slides appear once per fold: the {len(own)} rows of fold {fold} were read, with the splits they state."
        return own, [table[split][row] for row in own], note
    stated = [split_name(cell) for cell in table[split]] if split is not None else []
    # The table has a test split apart from its folds: it must never be trained on.
    if any(name in _HELD for name in stated):
        splits = [
            name if name in _HELD else "" if subset is None else "val" if subset == fold else "train"
            for subset, name in zip(parts, stated, strict=True)
        ]
        held = splits.count("val")
        return rows, splits, (
            f"Fold {fold} of the table validates ({held} slides); its test slides stay test, the others train."
        )  # fmt: skip
    following = numbers[(numbers.index(fold) + 1) % len(numbers)]
    held = parts.count(fold)
    note = f"Fold {fold} of the table tests ({held} slides), fold {following} validates, the others train."
    return rows, splits_of(parts, fold, str(path)), note


def _number(cell: str) -> int | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return int(number) if number.is_integer() and number >= 0 else None


@dataclass(frozen=True)
class Task:
    """The label column of a task and the names of labels written as numbers."""

    column: str
    names: Mapping[str, str] = field(default_factory=dict)


def read_task(path: Path, table: tables.Columns) -> Task | None:
    """The task that a fold table belongs to, or None for any other table."""
    if "label" in table or not any(name.startswith("fold_") for name in table):
        return None
    config = path.parent / "config.yaml"
    if config.is_file():
        try:
            text = read_text(config, ManifestError)
            task = load_yaml(text, yaml.SafeLoader, where=str(config), error=ManifestError)
            column = str(task["task_col"])
            names = {str(key): str(name) for key, name in (task.get("label_dict") or {}).items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"{config} does not name the label column under 'task_col': {error!r}.") from error
        return Task(column, names) if column in table else None
    return Task(path.parent.name) if path.parent.name in table else None


def read_dataset(path: Path, table: tables.Columns) -> Task | None:
    """The names of the labels of an nnMIL task, or None for any other table and for labels that are names already."""
    described = path.with_suffix(".json")
    if path.stem != "dataset" or "label" not in table or not described.is_file():
        return None
    if described.stat().st_size > _MOST_BYTES:
        raise ManifestError(f"{described} is too large for the description of a task; is it the right file?")
    try:
        description = json.loads(described.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{described}, which names the labels of {path.name}, is not valid JSON: {error}."
        ) from error
    labels = description.get("labels") if isinstance(description, dict) else None
    if not isinstance(labels, dict) or not all(isinstance(name, str) for name in labels.values()):
        return None
    used = set(table["label"]) - {""}
    return Task("label", labels) if used and used <= set(labels) else None


def read_splits(path: Path | str) -> dict[str, str]:
    """Slide id to split; a slide in two splits is an error."""
    path = Path(path)
    table = tables.read_table(path)
    if not all(name in table for name in SPLITS):
        raise ManifestError(f"{path} is not a split file: expected columns {listing(SPLITS)}, found {listing(table)}.")
    # CLAM's first column has no name: row numbers, or the slide ids in the _bool variant.
    index = next((name for name in table if name not in PARTS), None)
    is_bool = index is not None and path.stem.endswith("_bool")
    assigned: dict[str, str] = {}
    for split in (subset for subset in PARTS if subset in table):
        cells = table[split]
        if is_bool:
            slides = [
                slide for slide, cell in zip(table[index or ""], cells, strict=True) if cell.strip().casefold() in _TRUE
            ]
        else:
            slides = [cell for cell in cells if cell]
        for slide in slides:
            if assigned.setdefault(slide, split) != split:
                raise ManifestError(
                    f"{path} has the slide {slide!r} both in {assigned[slide]!r} and in {split!r}; "
                    "a slide belongs to one split."
                )
    return assigned


def write_splits(path: Path | str, manifest: Manifest, splits: Sequence[str] | None = None) -> None:
    """Write splits, the manifest's own if None, as CLAM does: an index column, then slide ids, padded."""
    split_names = [record.split for record in manifest] if splits is None else splits
    pairs = list(zip(manifest, split_names, strict=True))
    parts = [subset for subset in PARTS if subset in SPLITS or subset in split_names]
    columns = [[record.slide_id for record, name in pairs if name == subset] for subset in parts]
    rows = ([number, *cells] for number, cells in enumerate(zip_longest(*columns, fillvalue="")))
    atomic.write_csv(path, ["", *parts], rows)
