"""Cohort tables as people have them: our own, CLAM's dataset CSV, STAMP's two tables, Patho-Bench's fold TSV, nnMIL's.

Columns are recognized by name, whatever their case: `slide_id | slide | filename`, `patient_id | patient`,
`case_id | case`, `label`, `split`, `path`, `tags`, and `fold_<k>` with cells train, val or test, or folds as numbers.
Sets of findings are one cell, `DCIS; UDH`, or one column of 0 and 1 per class.
What is called otherwise is named by the user; nothing is guessed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from pams_mil.data import tables
from pams_mil.data.finding_labels import has_class_columns, labels_of_marks
from pams_mil.data.manifest.foreign_tables import Task, read_dataset, read_splits, read_task, split_name, take_fold
from pams_mil.data.manifest.manifest import FOLD_COLUMN, PARTS, Manifest, SlideRecord
from pams_mil.errors import LabelError, ManifestError, listing, nearest, refuse_unknown
from pams_mil.hierarchy import ClassHierarchy

ROLES: dict[str, tuple[str, ...]] = {
    "slide_id": ("slide_id", "slide", "filename"),
    "patient_id": ("patient_id", "patient"),
    "case_id": ("case_id", "case"),
    "label": ("label",),
    "split": ("split",),
    "path": ("path",),
    "tags": ("tags",),
}
_TAG_SEPARATORS = re.compile(r"[;,|]")


def read_manifest(
    path: Path | str,
    *,
    patients_are_slides: bool = False,
    columns: Mapping[str, str] | None = None,
    fold: int | None = None,
    splits: Path | str | None = None,
    clini: Path | str | None = None,
    labels: bool = True,
    classes: ClassHierarchy | None = None,
) -> Manifest:
    """Read a cohort table.

    Args:
        path: CSV, TSV, xlsx or parquet.
        patients_are_slides: Take every slide for a patient of its own where the table names no patients.
        columns: Role to column name, where the table uses other names, e.g. `{"label": "grade"}`.
        fold: Take the splits from the column `fold_<k>`, or hold out the fold of this number.
        splits: Take the splits from CLAM's `splits_<k>.csv` or `splits_<k>_bool.csv`.
        clini: STAMP's clinical table; `path` is then its slide table.
        labels: Whether slides have labels; if not, no column is taken for them and every slide's is empty.
        classes: With several findings per slide, a table without a label may have a column of 0 and 1 per class.
    """
    refuse_unknown("A cohort table", columns or {}, list(ROLES), kind="role", error=ManifestError)
    path = Path(path)
    table = tables.read_table(path)
    notes: list[str] = []
    if clini is not None:
        table = _joined(table, path, Path(clini), columns or {}, notes)
    task = read_task(path, table) or read_dataset(path, table)
    spelled = dict(columns or {})
    unnamed = labels and task is None and "label" not in spelled
    if unnamed and classes is not None and has_class_columns(table, classes):
        slides = table[_roles(table, path, spelled, task, labels=False)["slide_id"]]
        try:
            label, marks = labels_of_marks(table, slides, classes)
        except LabelError as error:
            raise ManifestError(f"{path}: {error}") from error
        table = {**{name: cells for name, cells in table.items() if name not in marks}, "label": label}
        notes.append("Labels were read from one column of 0 and 1 per class.")
    roles = _roles(table, path, spelled, task, labels=labels)
    if fold is not None:
        taken = take_fold(table, fold, roles["slide_id"], roles.get("split"), path)
        if taken is None:
            roles["split"] = _fold_column(table, fold, path)
        else:
            rows, cells_of_split, note = taken
            table = {name: [cells[row] for row in rows] for name, cells in table.items()}
            table[roles.setdefault("split", "split")] = list(cells_of_split)
            notes.append(note)
    if task is not None and task.names and task.column == roles.get("label"):
        used = {label: task.names[label] for label in sorted(set(table[task.column])) if label in task.names}
        named = [f"{label} is {name}" for label, name in used.items()]
        notes.append(f"Labels were named by the file beside the table: {listing(named)}.")
    if "patient_id" in roles or "case_id" in roles:
        patients_are_slides = False
    elif not patients_are_slides:
        raise ManifestError(
            f"{path} has no column 'patient_id' or 'case_id', so slides of one patient cannot be kept together. "
            f"Found {listing(table)}. Name the column, or state that every slide is a patient of its own with "
            "--patients-are-slides."
        )
    else:
        notes.append("The table names no patients: every slide was taken for a patient of its own.")
    notes += _respelled(table[roles["split"]] if "split" in roles else [])
    records = _records(table, roles, task, patients_are_slides)
    manifest = Manifest(tuple(records), source=path, patients_are_slides=patients_are_slides, notes=tuple(notes))
    return manifest if splits is None else _with_split_file(manifest, Path(splits))


def _roles(
    table: tables.Columns, path: Path, named: Mapping[str, str], task: Task | None, *, labels: bool
) -> dict[str, str]:
    """Which column has which role."""
    # Reversed: of two columns that differ in case alone the first one wins.
    folded = {name.casefold(): name for name in reversed(table)}
    roles: dict[str, str] = {}
    asked = [role for role in ROLES if labels or role != "label"]
    missing: list[str] = []
    for role in asked:
        wanted = named.get(role)
        column = wanted or next((folded[name] for name in ROLES[role] if name in folded), None)
        if task is not None and role == "label" and wanted is None:
            column = task.column
        if wanted is not None and wanted not in table:
            hint = nearest(wanted, table).strip()
            missing.append(f"{wanted!r} ({hint})" if hint else repr(wanted))
        elif column is not None:
            roles[role] = column
        elif role in ("slide_id", "label"):
            names = " or ".join(map(repr, ROLES[role]))
            missing.append(f"{names} (name it with --{role.split('_')[0]}-column)")
    if missing:  # all at once: each would cost another attempt
        raise ManifestError(f"{path} has no column {', and no column '.join(missing)}. Found {listing(table)}.")
    return roles


def _records(
    table: tables.Columns, roles: Mapping[str, str], task: Task | None, patients_are_slides: bool
) -> list[SlideRecord]:
    count = len(next(iter(table.values()), []))
    blank = [""] * count
    of: dict[str, list[str]] = {role: table[roles[role]] if role in roles else blank for role in ROLES}
    slides, cases, labels = of["slide_id"], of["case_id"], of["label"]
    patients = of["patient_id"] if "patient_id" in roles else slides if patients_are_slides else cases
    if task is not None and task.column == roles.get("label"):
        labels = [task.names.get(label, label) for label in labels]
    split = map(split_name, of["split"])
    is_stamp = roles["slide_id"].casefold() == "filename"  # the path of the feature file below the feature folder
    paths = slides if is_stamp and "path" not in roles else of["path"]
    slides = [name.removesuffix(".h5") for name in slides] if is_stamp else slides
    words = (_TAG_SEPARATORS.split(cell) if cell else () for cell in of["tags"])
    tags = [tuple(word.strip() for word in one if word.strip()) for one in words]
    taken = set(roles.values())
    # A column without a name is the row number that pandas writes.
    others = [name for name in table if name and name not in taken]
    cells = zip(*(table[name] for name in others), strict=True) if others else iter([()] * count)
    extra = (dict(zip(others, row, strict=True)) for row in cells)
    # Where cases stand in for patients they are not a level of their own.
    named_cases = cases if "patient_id" in roles else blank
    rows = zip(slides, patients, labels, split, paths, named_cases, tags, extra, strict=True)
    # Spreadsheets leave empty rows behind.
    return [SlideRecord(*row) for row in rows if row[0] or row[1] or row[2]]


def _respelled(cells: Sequence[str]) -> list[str]:
    """A note on splits that were read as another spelling than the table's.

    >>> _respelled(["train", "Train", "train ", "validation"])
    ["Splits were read as: 'Train' as 'train' (1), 'train ' as 'train' (1), 'validation' as 'val' (1)."]
    """
    changed = Counter(cell for cell in cells if cell != split_name(cell) and split_name(cell) in PARTS)
    shown = ", ".join(f"{cell!r} as {split_name(cell)!r} ({count})" for cell, count in changed.items())
    return [f"Splits were read as: {shown}."] if shown else []


def _fold_column(table: tables.Columns, fold: int, path: Path) -> str:
    folds = {int(match[1]): name for name in table if (match := FOLD_COLUMN.fullmatch(name))}
    if fold not in folds:
        raise ManifestError(
            f"{path} has no column 'fold_{fold}'; folds found: {listing(sorted(folds)) or 'none'}. "
            "Make folds with 'pams split --folds'."
        )
    return folds[fold]


def _joined(
    slides: tables.Columns, path: Path, clini: Path, columns: Mapping[str, str], notes: list[str]
) -> tables.Columns:
    """STAMP's slide table with every patient's row of the clinical table beside each of the patient's slides."""
    patients = tables.read_table(clini)
    key = columns.get("patient_id", "PATIENT")
    for where, table in ((path, slides), (clini, patients)):
        if key not in table:
            raise ManifestError(
                f"{where} has no column {key!r}; found {listing(table)}. Name it with --patient-column."
            )
    row_of: dict[str, int] = {}
    for row, patient in enumerate(patients[key]):
        # Two rows might contradict each other; which one is right cannot be known.
        if row_of.setdefault(patient, row) != row:
            raise ManifestError(f"{clini} has the patient {patient!r} twice; expected one row per patient.")
    unknown = [patient for patient in dict.fromkeys(slides[key]) if patient not in row_of]
    if unknown:
        notes.append(
            f"{len(unknown)} patients of {path.name} are not in {clini.name} and were left out: {listing(unknown)}."
        )
    present = set(slides[key])
    without = [patient for patient in row_of if patient not in present]
    if without:
        notes.append(f"{len(without)} patients of {clini.name} have no slide in {path.name}: {listing(without)}.")
    runs = sum(first != second for first, second in pairwise(slides[key])) + 1
    if runs > len(present):
        notes.append(f"Slides of one patient are not in adjacent rows of {path.name}; they were grouped all the same.")
    rows = [row for row, patient in enumerate(slides[key]) if patient in row_of]
    joined = {name: [cells[row] for row in rows] for name, cells in slides.items()}
    for name, cells in patients.items():
        if name not in joined:
            joined[name] = [cells[row_of[patient]] for patient in joined[key]]
    return joined


def _with_split_file(manifest: Manifest, path: Path) -> Manifest:
    assigned = read_splits(path)
    known = {record.slide_id for record in manifest}
    unknown = [slide for slide in assigned if slide not in known]
    if unknown:
        raise ManifestError(
            f"{path} names {len(unknown)} slides that {manifest.where} does not have: {listing(unknown)}."
            f"{nearest(unknown[0], list(known)[:5000])}"
        )
    left_out = len(known) - len(assigned)
    note = f"{left_out} slides are in no split of {path.name} and are not used."
    changed = manifest.with_splits({record.slide_id: assigned.get(record.slide_id, "") for record in manifest})
    return replace(changed, notes=(*manifest.notes, note)) if left_out else changed
