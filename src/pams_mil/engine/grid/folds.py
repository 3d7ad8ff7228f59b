"""The folds of a cohort: new ones, or those that its table has; calibration patients are in none of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

from pams_mil.data.examine import examine_manifest, examine_patients, refuse_errors
from pams_mil.data.manifest.foreign_tables import numbers_of, parts_of, split_name, splits_of
from pams_mil.data.manifest.manifest import FOLD_COLUMN, Manifest
from pams_mil.data.splits import Split, split_folds, with_subset, write_split
from pams_mil.digests import text_digest
from pams_mil.errors import RunError
from pams_mil.hierarchy import ClassHierarchy

DEFAULT_FOLDS = 5
CALIB = "calib"


@dataclass(frozen=True)
class Folds:
    """Slides and their folds.

    Attributes:
        cohort: The slides of the folds, and the calibration slides that are in none.
        split: The split of every slide in every fold; `calib` in all of them for calibration slides.
        hierarchy: The class hierarchy.
        held_out: How many test slides of the table are left out.
        notes: What the user must know.
    """

    cohort: Manifest
    split: Split
    hierarchy: ClassHierarchy
    held_out: int = 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.split.folds)

    @cached_property
    def inside(self) -> Manifest:
        """The slides that some fold trains, validates or tests with."""
        names = zip(*self.split.folds, strict=True)
        kept = (record for record, own in zip(self.cohort, names, strict=True) if set(own) != {CALIB})
        return replace(self.cohort, records=tuple(kept))

    @property
    def digest(self) -> str:
        """32 hex digits of the slides with patients and labels, and of their folds."""
        rows = [[r.slide_id, r.patient_id, r.case_id, r.label] for r in self.cohort]
        return text_digest(json.dumps([rows, self.split.folds]))

    @property
    def classes(self) -> str:
        """The digests of the class hierarchy's orders."""
        return " ".join(order.digest for order in self.hierarchy.orders)

    def write(self, folder: Path) -> tuple[str, ...]:
        """Write the files of the folds; returns what is worth saying about them."""
        return write_split(folder, self.cohort, self.hierarchy, self.split, is_folds=True).lines


def fold_cohort(
    path: Path,
    hierarchy: ClassHierarchy,
    folds: int | None,
    val_share: float | None,
    seed: int,
    reading: Mapping[str, Any],
    *,
    held_out: tuple[str, ...] = (CALIB,),
) -> Folds:
    """The slides of a table, read as for `Manifest.read`, and their folds: so many new ones, else the table's own or 5.

    `val_share` of all patients validate each fold, by default a fold's worth. Slides whose split is `held_out` by the
    table are in no fold.
    """
    reading, notes = {**reading, "classes": hierarchy}, []
    whole = Manifest.read(path, **reading)
    inside = [record.split not in held_out for record in whole]
    refuse_errors(examine_patients(whole.with_splits(["train" if keep else "test" for keep in inside])), whole.where)
    tested = sum(record.split == "test" for record in whole) if "test" in held_out else 0
    kept = [record.split == CALIB or keep for record, keep in zip(whole, inside, strict=True)]
    if kept != inside:
        count = sum(kept) - sum(inside)
        notes.append(f"{count:,} slides of the split calib are in no fold: they are kept to certify.")
    if "test" not in held_out and any(record.split not in ("", CALIB) for record in whole):
        notes.append("The table's column split is not used: every slide is tested by one of the folds.")
    # Inside of the folds the column split means nothing, and must not be examined as if it did.
    blank = whole.with_splits([""] * len(whole))
    cohort = replace(blank, records=tuple(compress(blank, inside)))
    refuse_errors(examine_manifest(cohort, hierarchy), cohort.where)
    own = folds_of_table(whole) if folds is None else None
    if own is not None:
        notes.append(f"The table's own {len(own.folds)} folds are used; --folds would make new ones.")
        # Folds of the table name the split of every slide; those held out are left out here, too.
        own = replace(own, folds=tuple(tuple(compress(fold, inside)) for fold in own.folds))
    split = own or split_folds(cohort, hierarchy, folds=folds or DEFAULT_FOLDS, seed=seed)
    if val_share is not None:
        split = with_subset("val", split, cohort, hierarchy, share=val_share, seed=seed)
    # Calibration slides go back to their places in the table, with the split that no fold touches.
    places = list(compress(inside, kept))
    filled = tuple(tuple(next(names) if keep else CALIB for keep in places) for names in map(iter, split.folds))
    everyone = replace(blank, records=tuple(compress(blank, kept)))
    return Folds(everyone, replace(split, folds=filled), hierarchy, tested, tuple(notes))


def folds_of_table(table: Manifest) -> Split | None:
    """The folds that a table has: columns `fold_0`, `fold_1`, ... of splits, or numbered parts; None: it has none.

    Each numbered part is tested by one fold, whatever the table's column split says.
    """
    columns = {name: [record.extra[name] for record in table] for record in table.records[:1] for name in record.extra}
    parts = parts_of(columns, table.where)
    if parts is not None:
        return Split(tuple(splits_of(parts, number, table.where) for number in numbers_of(parts)))
    folds = {int(match[1]): cells for name, cells in columns.items() if (match := FOLD_COLUMN.fullmatch(name))}
    if not folds:
        return None
    if sorted(folds) != list(range(len(folds))):
        raise RunError(f"{table.where} has the folds {sorted(folds)}; expected 0 to {len(folds) - 1} without gaps.")
    return Split(tuple(tuple(map(split_name, folds[number])) for number in range(len(folds))))
