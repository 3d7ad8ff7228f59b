"""From a pack back to one feature file per slide, in CLAM's layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pams_mil import atomic
from pams_mil.data.bags.bag_file import write_bag
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.packs.pack_reader import Pack
from pams_mil.errors import BagError, ParameterError, listing

LAYOUTS = {"clam": ("h5_files", ".h5")}


def unpack(
    pack: Path | str, out: Path | str, *, layout: str = "clam", progress: Callable[[int, int], None] | None = None
) -> int:
    """Write every bag of a pack as a feature file; returns how many.

    `paths.csv`, written last, says which file holds which slide, for ids that cannot be file names. Damaged bags are
    refused by name once all others are written; then there is no `paths.csv`.
    """
    if layout not in LAYOUTS:
        raise ParameterError(f"layout must be one of {listing(LAYOUTS)}, found {layout!r}.")
    opened, out = Pack(pack), Path(out)
    folder, suffix = LAYOUTS[layout]
    names = FileNames(opened)
    damaged: list[str] = []
    for number, slide_id in enumerate(opened, 1):
        try:
            bag = opened.read(slide_id)
        except BagError as error:
            damaged.append(str(error))
            continue
        write_bag(out / folder / f"{names[slide_id]}{suffix}", bag)
        if progress is not None:
            progress(number, len(opened))
    if damaged:
        shown = "".join(f"\n- {message}" for message in damaged[:8])
        raise BagError(f"{len(damaged)} of {len(opened)} slides could not be unpacked, the others were:{shown}")
    rows = ([slide_id, f"{folder}/{names[slide_id]}{suffix}"] for slide_id in opened)
    atomic.write_csv(out / "paths.csv", ["slide_id", "path"], rows)
    return len(opened)
