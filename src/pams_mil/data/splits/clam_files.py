"""CLAM's split files: `splits_<k>.csv` with columns train, val, test and maybe calib, and its `_bool` variant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from pams_mil import atomic, tables
from pams_mil.data.manifest.manifest import PARTS, SPLITS, Manifest
from pams_mil.errors import ManifestError, listing

_TRUE = {"true", "1", "1.0"}


def read_splits(path: Path | str) -> dict[str, str]:
    """Slide id to split; a slide named twice is an error."""
    path = Path(path)
    table = tables.read_table(path)
    if not all(name in table for name in SPLITS):
        raise ManifestError(f"{path} is not a split file: expected columns {listing(SPLITS)}, found {listing(table)}.")
    # CLAM's first column has no name: row numbers, or the slide ids in the _bool variant.
    index = next((name for name in table if name not in PARTS), None)
    is_bool = index is not None and path.stem.endswith("_bool")
    pairs: list[tuple[str, str]] = []
    for split in (part for part in PARTS if part in table):
        for row, cell in enumerate(table[split]):
            if is_bool and index is not None:
                if cell.strip().casefold() in _TRUE:
                    pairs.append((table[index][row], split))
            elif cell:
                pairs.append((cell, split))
    assigned: dict[str, str] = {}
    for slide, split in pairs:
        if assigned.setdefault(slide, split) != split:
            raise ManifestError(
                f"{path} has the slide {slide!r} both in {assigned[slide]!r} and in {split!r}; "
                "a slide belongs to one split."
            )
    return assigned


def write_splits(path: Path | str, manifest: Manifest, splits: Sequence[str] | None = None) -> None:
    """Write splits, the manifest's own if None, as CLAM does: an index column, then slide ids, padded."""
    given = [record.split for record in manifest] if splits is None else splits
    pairs = list(zip(manifest, given, strict=True))
    parts = [part for part in PARTS if part in SPLITS or part in given]
    columns = [[record.slide_id for record, name in pairs if name == part] for part in parts]
    rows = ([number, *cells] for number, cells in enumerate(zip_longest(*columns, fillvalue="")))
    atomic.write_csv(path, ["", *parts], rows)
