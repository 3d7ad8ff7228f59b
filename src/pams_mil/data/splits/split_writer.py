"""Splits as files: a manifest that carries them, and CLAM's `splits_<k>.csv`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pams_mil.data.manifest.manifest import PARTS, Manifest, SlideRecord
from pams_mil.data.splits.clam_files import write_splits
from pams_mil.data.splits.stratify import Split
from pams_mil.errors import listing
from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class WrittenSplit:
    """What was written: sentences for people, and slides per split and class (of the first fold)."""

    lines: tuple[str, ...]
    counts: dict[str, dict[str, int]]


def write_split(
    out: Path | str, manifest: Manifest, hierarchy: ClassHierarchy, split: Split, *, is_folds: bool
) -> WrittenSplit:
    """Write the split manifest last, so that a folder which has one is complete."""
    out = Path(out)
    lines = list(manifest.notes)
    counts = [_counts(manifest, hierarchy, names) for names in split.folds]
    for number, names in enumerate(split.folds):
        write_splits(out / f"splits_{number}.csv", manifest, names)
        where = f"Fold {number}: the" if is_folds else "The"
        for part, found in counts[number].items():
            absent = [name for name, count in found.items() if not count]
            if absent:
                lines.append(f"warning  absent class: {where} split {part!r} has no slide of {listing(absent)}.")
    if split.held_out:
        lines.append(
            f"{split.held_out:,} slides are held out for testing by their tag; {split.followed:,} more slides of the "
            "same patients went with them."
        )
    if is_folds:
        columns = {f"fold_{number}": list(names) for number, names in enumerate(split.folds)}
        replace(manifest, records=_without_folds(manifest)).write(out / "manifest.csv", columns=columns)
    else:
        split.manifest(manifest).write(out / "manifest.csv")
    lines.append(f"{len(counts)} split{'s' if len(counts) > 1 else ''} of {len(manifest):,} slides written to {out}.")
    return WrittenSplit(tuple(lines), counts[0])


def _without_folds(manifest: Manifest) -> tuple[SlideRecord, ...]:
    """The records without the folds of an earlier split."""
    if not any(name.startswith("fold_") for record in manifest.records[:1] for name in record.extra):
        return manifest.records
    return tuple(
        replace(record, extra={name: cell for name, cell in record.extra.items() if not name.startswith("fold_")})
        for record in manifest
    )


def _counts(manifest: Manifest, hierarchy: ClassHierarchy, splits: Sequence[str]) -> dict[str, dict[str, int]]:
    names = hierarchy.names()
    present = [part for part in PARTS if part != "calib" or part in splits]
    found = Counter(zip(splits, manifest.targets(hierarchy).tolist(), strict=True))
    return {split: {name: found[split, target] for target, name in enumerate(names)} for split in present}
