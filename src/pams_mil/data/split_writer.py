"""Splits as files: a manifest that carries them, and CLAM's `splits_<k>.csv`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pams_mil.data.examine import examine_manifest
from pams_mil.data.manifest import SPLITS, Manifest, SlideRecord
from pams_mil.data.split_files import write_splits
from pams_mil.data.splits import Split
from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class WrittenSplit:
    """What was written: sentences for people, and slides per split and class (of the first fold)."""

    lines: tuple[str, ...]
    counts: dict[str, dict[str, int]]


def write_split(
    out: Path | str, manifest: Manifest, tree: ClassHierarchy, split: Split, *, is_folds: bool
) -> WrittenSplit:
    """Write the split manifest last, so that a folder which has one is complete."""
    out = Path(out)
    lines = list(manifest.notes)
    parts = [split.manifest(manifest, fold) for fold in range(len(split.folds))]
    for number, part in enumerate(parts):
        write_splits(out / f"splits_{number}.csv", part)
        for problem in examine_manifest(part, tree):
            where = f"Fold {number}: " if is_folds else ""
            lines.append(f"warning  {problem.kind}: {where}{problem.message}")
    if split.held_out:
        lines.append(
            f"{split.held_out:,} slides are held out for testing by their tag; {split.followed:,} more slides of the "
            "same patients went with them."
        )
    if is_folds:
        columns = {f"fold_{number}": list(names) for number, names in enumerate(split.folds)}
        kept = replace(manifest, records=tuple(_without_folds(manifest)))
        kept.write(out / "manifest.csv", columns=columns)
    else:
        parts[0].write(out / "manifest.csv")
    lines.append(f"{len(parts)} split{'s' if len(parts) > 1 else ''} of {len(manifest):,} slides written to {out}.")
    return WrittenSplit(tuple(lines), _counts(parts[0], tree))


def _without_folds(manifest: Manifest) -> list[SlideRecord]:
    return [
        replace(record, extra={name: cell for name, cell in record.extra.items() if not name.startswith("fold_")})
        for record in manifest
    ]


def _counts(manifest: Manifest, tree: ClassHierarchy) -> dict[str, dict[str, int]]:
    names = tree.names()
    counts = {split: dict.fromkeys(names, 0) for split in SPLITS}
    for record, target in zip(manifest, manifest.targets(tree).tolist(), strict=True):
        counts[record.split][names[target]] += 1
    return counts
