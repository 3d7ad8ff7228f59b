"""Splits as files: a manifest that carries them, and CLAM's `splits_<k>.csv`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pams_mil.data.manifest.foreign_tables import write_splits
from pams_mil.data.manifest.manifest import PARTS, Manifest
from pams_mil.data.splits.stratify import Split
from pams_mil.errors import listing
from pams_mil.hierarchy import ClassHierarchy

MOST_LINES = 20
"""Absent classes that have a line each."""


@dataclass(frozen=True)
class WrittenSplit:
    """What was written.

    Attributes:
        lines: Sentences for people.
        counts: Slides of every fold by split and class; one entry where there are no folds.
        patients: By class, the patients who have a slide of it.
        num_patients: All patients, each once.
    """

    lines: tuple[str, ...]
    counts: tuple[dict[str, dict[str, int]], ...]
    patients: dict[str, int]
    num_patients: int


def write_split(
    out: Path | str, manifest: Manifest, hierarchy: ClassHierarchy, split: Split, *, is_folds: bool
) -> WrittenSplit:
    """Write the split manifest last, so that a folder which has one is complete."""
    out = Path(out)
    lines = list(manifest.notes)
    # a small share of calibration patients may come to none in some folds: all are counted alike
    present = [subset for subset in PARTS if subset != "calib" or any(subset in names for names in split.folds)]
    targets = manifest.targets(hierarchy).tolist()
    tallies = [Counter(zip(names, targets, strict=True)) for names in split.folds]
    counts = tuple(
        {subset: {name: tally[subset, index] for index, name in enumerate(hierarchy.names())} for subset in present}
        for tally in tallies
    )
    patients = patients_by_class(manifest, hierarchy)
    for number, names in enumerate(split.folds):
        write_splits(out / f"splits_{number}.csv", manifest, names)
    lines += absent_classes(counts, patients)
    if split.held_out:
        lines.append(
            f"{split.held_out:,} slides are held out for testing by their tag; {split.followed:,} more slides of the "
            "same patients went with them."
        )
    if is_folds:
        columns = {f"fold_{number}": list(names) for number, names in enumerate(split.folds)}
        # Without the folds of an earlier split.
        others = ({name: cell for name, cell in r.extra.items() if not name.startswith("fold_")} for r in manifest)
        records = tuple(replace(record, extra=extra) for record, extra in zip(manifest, others, strict=True))
        replace(manifest, records=records).write(out / "manifest.csv", columns=columns)
    else:
        split.manifest(manifest).write(out / "manifest.csv")
    lines.append(f"{len(counts)} split{'s' if len(counts) > 1 else ''} of {len(manifest):,} slides written to {out}.")
    return WrittenSplit(tuple(lines), counts, patients, len(manifest.patients))


def absent_classes(counts: Sequence[dict[str, dict[str, int]]], patients: dict[str, int]) -> list[str]:
    """Which class is missing where, and what to do about it.

    >>> absent_classes([{"train": {"N": 5, "IC": 1}, "val": {"N": 1, "IC": 0}}], {"N": 6, "IC": 1})[0]
    "warning  absent class: 'IC' (1 patient) is not in val."
    """
    lines, absent = [], dict[str, list[str]]()
    for name, count in patients.items():
        places = []
        for subset in counts[0]:
            folds = [str(number) for number, fold in enumerate(counts) if not fold[subset][name]]
            named = f"fold{'s' if len(folds) > 1 else ''} {', '.join(folds)}"
            where = "" if len(counts) == 1 else f" of {'every fold' if len(folds) == len(counts) else named}"
            places += [f"{subset}{where}"] if folds else []
        if places:
            who = "1 patient" if count == 1 else f"{count:,} patients"
            lines.append(f"warning  absent class: {name!r} ({who}) is not in {' and not in '.join(places)}.")
        for place in places:
            absent.setdefault(place, []).append(name)
    if len(lines) > MOST_LINES:  # of hundreds of classes, said by part
        lines = [
            f"warning  absent classes: {len(names):,} of {len(patients):,} are not in {place}: {listing(names)}."
            for place, names in absent.items()
        ]
    if lines:
        lines.append(
            "What to do: a class can be in train, val and test only if three patients have it, and in the test part of "
            "every fold only if as many patients have it as there are folds. Use fewer folds, merge the class with one "
            "beside it in the class file, or score all folds together, as 'pams cv' does. A model cannot learn a class "
            "that its train part lacks."
        )
    return lines


def patients_by_class(manifest: Manifest, hierarchy: ClassHierarchy, level: int = -1) -> dict[str, int]:
    """How many patients have a slide of each class of a level."""
    targets = hierarchy.lift(manifest.targets(hierarchy), level).tolist()
    having: dict[int, set[str]] = {}
    for record, target in zip(manifest, targets, strict=True):
        having.setdefault(target, set()).add(record.patient_id)
    return {name: len(having.get(index, ())) for index, name in enumerate(hierarchy.names(level))}
