"""Which slides to work on: files and folders in, one source per slide out, each with an id of its own.

`check_slides` opens and closes each before extraction: is it there, can it be opened, does it state its scale? No pixel
of a tiled slide is read.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pams_mil.data.bags.filenames import SLIDE_SUFFIXES
from pams_mil.data.examine import Problem
from pams_mil.data.tables import parse_number, read_table
from pams_mil.digests import sampled_digest
from pams_mil.errors import ParameterError, SlideError, TableError, counted, listing
from pams_mil.wsi.readers.dicom_series import gather
from pams_mil.wsi.readers.slide_kind import is_ome_zarr, is_zarr
from pams_mil.wsi.resolution import check_mpp
from pams_mil.wsi.slide import open_unscaled

READABLE_SUFFIXES = (*SLIDE_SUFFIXES, ".png", ".jpg", ".jpeg")
"""What is taken for a slide when a folder is searched; any file can be given by its own name."""


@dataclass(frozen=True)
class SlideSource:
    """A slide to extract. The id is the file's name without its suffix and names the bag.

    A DICOM series of several files is one slide, see `pams_mil.wsi.readers.dicom_series`.
    """

    slide_id: str
    path: Path
    mpp: float | None = None
    mpp_is_certain: bool = False


def find_slides(
    paths: Iterable[Path], *, mpp_of_slide: float | None = None, mpp_table: Mapping[str, float] | None = None
) -> tuple[SlideSource, ...]:
    """Sources for files as given and for the slides below folders, in order of id.

    Two slides that would write the same bag are refused before any work.
    """
    if mpp_of_slide is not None:
        check_mpp(mpp_of_slide, "--mpp-of-slide")
    known = dict(mpp_table or {})
    sources = []
    for slide_id, path in dict.fromkeys((slide_id, file) for _, slide_id, file in gather(_expanded(paths))):
        named = [known.pop(name, None) for name in dict.fromkeys((path.name, path.stem, slide_id))]
        stated = {mpp for mpp in named if mpp is not None}
        if len(stated) > 1:
            raise ParameterError(f"The table of resolutions gives the slide {slide_id!r} as {listing(sorted(stated))}.")
        certain = next(iter(stated), None)
        sources.append(SlideSource(slide_id, path, certain or mpp_of_slide, certain is not None))
    if known:
        raise ParameterError(f"The table of resolutions names slides that were not given: {listing(known)}.")
    _check_ids(sources)
    return tuple(sorted(sources, key=lambda source: source.slide_id))


def read_mpp_table(path: Path) -> dict[str, float]:
    """Resolutions by slide from a table with columns `slide` (or `wsi`) and `mpp`."""
    columns = read_table(path)
    names = next((columns[name] for name in ("slide", "wsi", "slide_id") if name in columns), None)
    if names is None or "mpp" not in columns:
        raise TableError(f"{path} has the columns {listing(columns)}; expected 'slide' and 'mpp'.")
    resolutions: dict[str, float] = {}
    for name, text in zip(names, columns["mpp"], strict=True):
        try:
            value = parse_number(text)
        except ValueError as error:
            raise TableError(f"{path} gives {text!r} as the mpp of {name!r}; expected a number.") from error
        mpp = check_mpp(value, f"the mpp of {name!r} in {path}")
        if resolutions.setdefault(name, mpp) != mpp:
            raise TableError(
                f"{path} gives {name!r} two resolutions, {resolutions[name]:g} and {mpp:g} microns per pixel."
            )
    return resolutions


def file_fingerprint(path: Path) -> str:
    """32 hex digits that tell files apart without reading gigabytes; headers and tables of tiles lie at their ends."""
    try:
        return sampled_digest(path, 1 << 16)
    except OSError as error:
        raise SlideError(f"{path} cannot be read: {error.strerror}.") from error


def _expanded(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        # A folder named like a slide is handed on and refused by that name, instead of being searched.
        if not path.is_dir() or path.suffix.lower() in READABLE_SUFFIXES or is_ome_zarr(path):
            yield path
            continue
        inside = [Path(entry.path) for entry in entries_below(path)]
        if not inside:
            raise SlideError(
                f"There are no slides in {path}; expected files ending in {listing(READABLE_SUFFIXES, most=20)}."
            )
        yield from inside


def entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What looks like a slide below a folder; OME-Zarr images count, so that they are refused by name."""
    try:
        with os.scandir(folder) as entries:
            here = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError:  # not ours to look into, or gone since it was listed
        return
    folders = [entry for entry in here if entry.is_dir(follow_symlinks=False)]
    files = [entry for entry in here if entry not in folders and entry.name.lower().endswith(READABLE_SUFFIXES)]
    yield from files
    # An image that was converted beside itself is not a second slide.
    stems = {Path(entry.name).stem for entry in files}
    for entry in folders:
        if not is_zarr(Path(entry.path)):  # the thousands of chunks of a store are not walked through
            yield from entries_below(Path(entry.path))
        elif Path(entry.name).stem not in stems and is_ome_zarr(Path(entry.path)):
            yield entry


def _check_ids(sources: list[SlideSource]) -> None:
    groups: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        if not source.slide_id.strip(". "):
            raise SlideError(f"{source.path} has no name that could identify the slide; rename the file.")
        # some file systems take these for one another, and a cohort may be moved to one
        groups[unicodedata.normalize("NFKC", source.slide_id).casefold()].append(str(source.path))
    doubles = [paths for paths in groups.values() if len(paths) > 1]
    if doubles:
        raise SlideError(
            f"{len(doubles)} slide ids are not unique, so bags would overwrite each other: {listing(doubles[0])}. "
            "Rename the files or extract them into different folders."
        )


@dataclass(frozen=True)
class SlideFindings:
    """What was found out about the slides of a cohort.

    `slides` has the id, the reader and the microns per pixel of each that could be opened, None where its file does not
    state them.
    """

    slides: tuple[tuple[str, str, float | None], ...]
    problems: tuple[Problem, ...]

    def summary(self) -> dict[str, Any]:
        """How many slides could be opened, by which reader, at which resolutions."""
        resolutions = Counter(f"{mpp:.3g}" for _, _, mpp in self.slides if mpp is not None)
        return {
            "readable": len(self.slides),
            "readers": dict(Counter(reader for _, reader, _ in self.slides)),
            "mpp": {mpp: resolutions[mpp] for mpp in sorted(resolutions, key=float)},
        }


def check_slides(
    slide_ids: Sequence[str],
    folder: Path,
    *,
    workers: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> SlideFindings:
    """Open the slide file of every id below a folder."""
    try:
        sources = find_slides([folder])
    except SlideError as error:
        return SlideFindings((), (Problem("slides", str(error)),))
    by_name = {source.slide_id.removesuffix(".ome"): source for source in sources}  # a.ome.zarr is often called a
    # Exact names overrule the shortened ones above.
    by_name |= {name: source for source in sources for name in (source.path.name, source.slide_id)}
    wanted = {slide_id: by_name.get(slide_id) for slide_id in slide_ids}
    present = [(slide_id, source) for slide_id, source in wanted.items() if source is not None]
    facts, problems = [], []
    if missing := tuple(slide_id for slide_id, source in wanted.items() if source is None):
        message = f"No slide file was found below {folder} for {counted(len(missing), 'slide')} of the table: "
        problems.append(Problem("missing slide", f"{message}{listing(missing)}.", missing))
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for done, result in enumerate(pool.map(lambda pair: _opened(*pair), present), 1):
            if progress is not None:
                progress(done, len(present))
            if isinstance(result, Problem):
                problems.append(result)
            else:
                facts.append(result)
    if unknown := tuple(slide_id for slide_id, _, mpp in facts if mpp is None):
        message = f"{counted(len(unknown), 'slide')} without a usable resolution in the file: {listing(unknown)}. "
        advice = "State it when extracting: --mpp-of-slide, or --mpp-table for single slides."
        problems.append(Problem("slide without scale", message + advice, unknown, error=False))
    return SlideFindings(tuple(facts), tuple(problems))


def _opened(slide_id: str, source: SlideSource) -> tuple[str, str, float | None] | Problem:
    try:
        slide, mpp = open_unscaled(source.path)
        with slide:
            return slide_id, slide.reader_name, mpp
    except SlideError as error:
        return Problem("unreadable slide", f"Slide {slide_id!r}: {error}", (slide_id,))
