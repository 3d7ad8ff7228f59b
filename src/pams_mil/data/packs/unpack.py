"""From a pack back to one feature file per slide, in CLAM's layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pams_mil import atomic
from pams_mil.data.bags.bag_file import write_bag
from pams_mil.data.bags.filenames import file_names
from pams_mil.data.packs.pack_reader import Pack
from pams_mil.errors import ParameterError, listing

LAYOUTS = {"clam": ("h5_files", ".h5")}


def unpack(
    pack: Path | str, out: Path | str, *, layout: str = "clam", progress: Callable[[int, int], None] | None = None
) -> int:
    """Write every bag of a pack as a feature file; returns how many.

    `paths.csv`, written last, says which file holds which slide, for ids that cannot be file names.
    """
    if layout not in LAYOUTS:
        raise ParameterError(f"layout must be one of {listing(LAYOUTS)}, found {layout!r}.")
    opened, out = Pack(pack), Path(out)
    folder, suffix = LAYOUTS[layout]
    names = file_names(opened)
    for number, slide_id in enumerate(opened, 1):
        write_bag(out / folder / f"{names[slide_id]}{suffix}", opened.read(slide_id))
        if progress is not None:
            progress(number, len(opened))
    rows = ([slide_id, f"{folder}/{name}{suffix}"] for slide_id, name in names.items())
    atomic.write_csv(out / "paths.csv", ["slide_id", "path"], rows)
    return len(opened)
