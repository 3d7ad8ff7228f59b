"""The slides on the shelf: found once at the start, opened on demand, a bounded number of them open at a time.

The browser never names a path. Whatever it asks for is looked up by row; the path was resolved when the server
started, must lie in the folder that was given, and is checked again when the slide is opened.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.errors import SlideError, needs_extra
from pams_mil.view.pyramid import Painter, Pyramid, TileBox, needs_overview, read_tile, tile_of_overview
from pams_mil.wsi.physical_pixels import Overview, read_overview
from pams_mil.wsi.readers.dicom_series import SeriesFinder
from pams_mil.wsi.readers.image_reader import MOST_PIXELS
from pams_mil.wsi.readers.slide_kind import is_ome_zarr, is_zarr
from pams_mil.wsi.resolution import ScaleError
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.slide_sources import READABLE_SUFFIXES

MOST_OPEN = 10
CACHE_BYTES = 256 << 20
OVERVIEW_PX = 2048
THUMBNAIL_PX = 320


@dataclass
class OpenSlide:
    """A slide that is open, how many requests use it, and its overview."""

    slide: Slide
    mpp: float | None
    painter: Painter
    users: int = 0
    evicted: bool = False
    overview: Overview | None = None
    making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def pyramid(self) -> Pyramid:
        """Its Deep Zoom levels."""
        return Pyramid(self.slide.width, self.slide.height)

    def whole(self) -> Overview:
        """The whole slide, small; read once."""
        with self.making:
            if self.overview is None:
                longest = max(self.slide.width, self.slide.height)
                mpp = self.slide.mpp * max(1.0, longest / OVERVIEW_PX)
                self.overview = read_overview(self.slide, mpp=mpp, longest_px=OVERVIEW_PX)
            return self.overview


class Shelf:
    """Slides by row of the worklist."""

    def __init__(self, paths: Sequence[Path | None], folder: Path | None, problems: dict[int, str]) -> None:
        self._paths, self._folder, self.problems = list(paths), folder, problems
        self._open: OrderedDict[int, OpenSlide] = OrderedDict()
        self._guard = threading.Lock()
        self._cache: Any = None

    @classmethod
    def find(cls, slide_ids: Sequence[str], folder: Path | None) -> Shelf:
        """Look for every slide below a folder by the name of its file; what is missing is remembered, not refused."""
        if folder is None:
            return cls([None] * len(slide_ids), None, {})
        if not folder.is_dir():
            raise SlideError(f"There is no folder of slides {folder}.")
        inside = folder.resolve()
        files, outside = _files(inside)
        paths: list[Path | None] = []
        problems: dict[int, str] = {}
        for row, slide_id in enumerate(slide_ids):
            stem = _stem(slide_id)
            named = files.get(slide_id) or files.get(stem) or files.get(f"{stem}.ome") or []  # a.ome.tiff, called a
            if len(named) == 1:
                paths.append(named[0])
                continue
            paths.append(None)
            if named:
                problems[row] = f"{len(named)} files in the slide folder have this slide's name."
            elif {slide_id, stem, f"{stem}.ome"} & outside:
                problems[row] = "The slide is a link that leads out of the slide folder, so it is not opened."
            else:
                problems[row] = "There is no file for this slide in the slide folder."
        return cls(paths, inside, problems)

    def has(self, row: int) -> bool:
        """Whether there was a file for the slide when the server started."""
        return self._paths[row] is not None

    @property
    def num_files(self) -> int:
        """How many slides have a file."""
        return sum(path is not None for path in self._paths)

    @contextmanager
    def use(self, row: int) -> Iterator[OpenSlide]:
        """The open slide; it is not closed under the hands of whoever uses it."""
        entry = self._take(row)
        try:
            yield entry
        finally:
            with self._guard:
                entry.users -= 1
                # Decided under the lock, done outside of it: closing may take long.
                close = entry.evicted and entry.users == 0
            if close:
                entry.slide.close()

    def mpp(self, row: int) -> float | None:
        """Microns per level-0 pixel, where there is a slide that can be opened and says."""
        try:
            with self.use(row) as entry:
                return entry.mpp
        except SlideError:
            return None

    def tile(self, row: int, box: TileBox) -> bytes:
        """A tile as JPEG."""
        with self.use(row) as entry:
            if needs_overview(entry.slide, box):
                return entry.painter.jpeg(tile_of_overview(entry.whole(), box))
            return entry.painter.jpeg(read_tile(entry.slide, box))

    def thumbnail(self, row: int) -> Overview:
        """The whole slide at most `THUMBNAIL_PX` pixels long, in the colors of screens."""
        with self.use(row) as entry:
            scale = max(1.0, max(entry.slide.width, entry.slide.height) / THUMBNAIL_PX)
            overview = read_overview(entry.slide, mpp=entry.slide.mpp * scale, longest_px=THUMBNAIL_PX)
            return Overview(np.asarray(entry.painter.on_screen(overview.pixels)), overview.scale)

    def close(self) -> None:
        """Close what is not in use."""
        with self._guard:
            entries, self._open = list(self._open.values()), OrderedDict()
            for entry in entries:
                entry.evicted = True
            idle = [entry for entry in entries if entry.users == 0]
        for entry in idle:
            entry.slide.close()

    def _take(self, row: int) -> OpenSlide:
        with self._guard:
            entry = self._open.get(row)
            if entry is not None:
                self._open.move_to_end(row)
                entry.users += 1
                return entry
        fresh = self._opened(row)  # outside of the lock: a slow disk must not stop other slides
        with self._guard:
            entry = self._open.get(row)
            if entry is None:
                entry = self._open[row] = fresh
            entry.users += 1
            idle = self._evict()
        # Two requests opened the slide at once: the first stays, the second copy goes.
        if entry is not fresh:
            idle.append(fresh)
        for one in idle:
            one.slide.close()
        return entry

    def _evict(self) -> list[OpenSlide]:
        idle = []
        while len(self._open) > MOST_OPEN or (len(self._open) > 1 and self._pixels_in_memory() > MOST_PIXELS):
            _, old = self._open.popitem(last=False)
            # In use: whoever uses it last closes it; see `use`.
            old.evicted = True
            if old.users == 0:
                idle.append(old)
        return idle

    def _pixels_in_memory(self) -> int:
        """Plain images are held whole, so they count by their size."""
        plain = (entry.slide for entry in self._open.values() if entry.slide.reader_name == "image")
        return sum(slide.width * slide.height for slide in plain)

    def _opened(self, row: int) -> OpenSlide:
        path = self._paths[row]
        if path is None:
            raise SlideError(self.problems.get(row, "No slide folder was given, so there is no picture."))
        try:
            # the file may have been replaced by a link since the server started
            if self._folder is None or path.resolve(strict=True) != path or not path.is_relative_to(self._folder):
                raise SlideError("The slide now lies outside of the slide folder, so it is not opened.")
        except OSError as error:
            raise SlideError("The slide was there when the server started and has vanished.") from error
        cache = self._shared_cache()
        try:
            slide, mpp = _open(path, cache)
        except SlideError as error:
            # The browser is told no paths of this machine.
            raise SlideError(str(error).replace(str(path), path.name)) from error
        return OpenSlide(slide, mpp, Painter(slide.icc_profile))

    def _shared_cache(self) -> Any:
        """One cache of decoded tiles for all slides, so that memory does not grow with their number."""
        with self._guard:
            if self._cache is None:
                with needs_extra("Showing slides", package="openslide-python", extra="wsi"):
                    self._cache = importlib.import_module("openslide").OpenSlideCache(CACHE_BYTES)
            return self._cache


def _open(path: Path, cache: Any) -> tuple[Slide, float | None]:
    """The slide, and its microns per pixel; None where unknown: then it is shown without a scale bar."""
    try:
        slide = Slide(path, cache=cache)
    except ScaleError:
        # The 1.0 only lets the slide be opened; the None beside it keeps it from being shown as a scale.
        return Slide(path, mpp_of_slide=1.0, mpp_is_certain=True, cache=cache), None
    return slide, slide.mpp


def _files(folder: Path) -> tuple[dict[str, list[Path]], set[str]]:
    """Slides below a folder by file name and stem, and the names of links that lead out of it."""
    files: dict[str, list[Path]] = {}
    outside: set[str] = set()
    finder = SeriesFinder()
    for entry in _walk(folder):
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False) and path.stem in files:
            continue  # an OME-Zarr image beside the slide that was made of it
        if entry.is_symlink():  # only links cost a look at the disk: folders of 10,000 slides may be slow
            try:
                path = path.resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            if not path.is_relative_to(folder) or not path.is_file():
                outside |= {entry.name, Path(entry.name).stem}
                continue
        names = {entry.name, Path(entry.name).stem}
        series = finder.of(path)
        if series is not None:
            path = series.path
            names.add(series.slide_id)
        for name in names:
            if path not in files.setdefault(name, []):
                files[name].append(path)
    return files, outside


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        by_name = sorted(entries, key=lambda entry: entry.name)
    for entry in by_name:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if is_zarr(Path(entry.path)):  # thousands of small files; an image is refused by name when it is opened
                if is_ome_zarr(Path(entry.path)):
                    yield entry
                continue
            with suppress(PermissionError):
                yield from _walk(Path(entry.path))
        elif entry.name.lower().endswith(READABLE_SUFFIXES):
            yield entry


def _stem(slide_id: str) -> str:
    stem, dot, suffix = slide_id.rpartition(".")
    return stem if dot and f".{suffix.lower()}" in READABLE_SUFFIXES else slide_id
