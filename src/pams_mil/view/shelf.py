"""The slides on the shelf: found once at the start, opened on demand, a bounded number of them open at a time.

The browser never names a path. Whatever it asks for is looked up by row; the path was resolved when the server
started, must lie in the folder that was given, and is checked again when the slide is opened.

Tiles are those of Deep Zoom. Level `top` is the slide itself, and every level below it is half as large, down to one
pixel. Tiles have a side of 254 pixels and share one pixel with each neighbor, so that no seam shows at fractional zoom.
Positions count from the corner of level 0, as tile coordinates of features do; a scanner's "bounds" play no part.
"""

from __future__ import annotations

import importlib
import io
import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from pams_mil.arrays import Pixels
from pams_mil.errors import SlideError, needs_extra
from pams_mil.wsi.heatmap import encoded
from pams_mil.wsi.physical_pixels import Overview, Patch, best_level, read_overview, read_scaled
from pams_mil.wsi.readers.dicom_series import gather
from pams_mil.wsi.readers.library_readers import MOST_PIXELS
from pams_mil.wsi.slide import Slide, open_unscaled
from pams_mil.wsi.slide_sources import READABLE_SUFFIXES, entries_below

TILE_PX, OVERLAP_PX = 254, 1
MOST_OPEN = 10
CACHE_BYTES = 256 << 20
OVERVIEW_PX = 2048
THUMBNAIL_PX = 320
MOST_SHRINKING = 16.0
"""Beyond this much shrinking of the best level a tile comes from the overview: slides without small levels."""


@dataclass(frozen=True)
class TileBox:
    """A tile in the pixels of its own level."""

    x: int
    y: int
    width: int
    height: int
    scale: float


@dataclass(frozen=True)
class Pyramid:
    """The Deep Zoom levels over a slide of `width` x `height` level-0 pixels."""

    width: int
    height: int

    @property
    def top(self) -> int:
        """The level of the slide itself.

        >>> Pyramid(4000, 3000).top, Pyramid(1, 1).top
        (12, 0)
        """
        return max(0, math.ceil(math.log2(max(self.width, self.height))))

    def size(self, level: int) -> tuple[int, int]:
        """Pixels across and down at a level."""
        scale = 1 << (self.top - level)
        # Rounded up, as Deep Zoom does: the last column of pixels may stand for less than `scale`.
        return -(-self.width // scale), -(-self.height // scale)

    def tile(self, level: int, column: int, row: int) -> TileBox | None:
        """The tile, or None where there is none.

        >>> Pyramid(600, 300).tile(10, 1, 0)
        TileBox(x=253, y=0, width=256, height=255, scale=1.0)
        >>> Pyramid(600, 300).tile(10, 3, 0), Pyramid(600, 300).tile(11, 0, 0), Pyramid(600, 300).tile(10, -1, 0)
        (None, None, None)
        """
        if not 0 <= level <= self.top:
            return None
        width, height = self.size(level)
        if not (0 <= column * TILE_PX < width and 0 <= row * TILE_PX < height):
            return None
        # A tile starts one pixel before its own square, save at the border of the slide.
        left, top = max(0, column * TILE_PX - OVERLAP_PX), max(0, row * TILE_PX - OVERLAP_PX)
        right = min(width, (column + 1) * TILE_PX + OVERLAP_PX)
        bottom = min(height, (row + 1) * TILE_PX + OVERLAP_PX)
        return TileBox(left, top, right - left, bottom - top, float(1 << (self.top - level)))


class ShownSlide:
    """An open slide in the colors of screens (sRGB); `mpp` is None where unknown: then it has no scale bar.

    The slide is closed when the last reference goes, so never under the hands of whoever reads from it.
    """

    def __init__(self, slide: Slide, mpp: float | None) -> None:
        self.slide, self.mpp, self.pyramid = slide, mpp, Pyramid(slide.width, slide.height)
        self._whole: Overview | None = None
        self._making = threading.Lock()
        self._transform = None
        if slide.icc_profile is not None:
            try:
                scanner = ImageCms.ImageCmsProfile(io.BytesIO(slide.icc_profile))
                self._transform = ImageCms.buildTransform(scanner, ImageCms.createProfile("sRGB"), "RGB", "RGB")
            except (ImageCms.PyCMSError, OSError):  # a profile nobody can use: show the colors as stored
                self._transform = None
        weakref.finalize(self, slide.close)

    def tile(self, box: TileBox) -> bytes:
        """A tile as JPEG, from the best level of the slide."""
        region = (box.x * box.scale, box.y * box.scale, box.scale, box.width, box.height)
        # Reading the tile itself would decode far more than it shows.
        if box.scale > MOST_SHRINKING * self.slide.levels[best_level(self.slide.levels, box.scale)].downsample:
            whole = self.whole()
            return self.jpeg(Patch(whole.pixels, 0, 0, whole.scale).resampled(*region))
        return self.jpeg(read_scaled(self.slide, *region))

    def whole(self) -> Overview:
        """The whole slide, small; read once."""
        with self._making:
            if self._whole is None:
                self._whole = read_overview(self.slide, mpp=self.slide.mpp, longest_px=OVERVIEW_PX)
            return self._whole

    def thumbnail(self) -> Overview:
        """The whole slide at most `THUMBNAIL_PX` pixels long."""
        overview = read_overview(self.slide, mpp=self.slide.mpp, longest_px=THUMBNAIL_PX)
        return Overview(np.asarray(self._on_screen(overview.pixels)), overview.scale)

    def jpeg(self, pixels: Pixels) -> bytes:
        """Pixels of the slide as JPEG."""
        return encoded(self._on_screen(pixels), "JPEG")

    def _on_screen(self, pixels: Pixels) -> Image.Image:
        image = Image.fromarray(pixels)
        if self._transform is not None:
            ImageCms.applyTransform(image, self._transform, inPlace=True)
        return image


class Shelf:
    """Slides by row of the worklist."""

    def __init__(self, paths: Sequence[Path | None], folder: Path | None, problems: dict[int, str]) -> None:
        self._paths, self._folder, self.problems = list(paths), folder, problems
        self._open: dict[int, ShownSlide] = {}  # the one used last comes last
        self._guard = threading.Lock()
        self._cache: Any = None
        if folder is not None:
            with needs_extra("Showing slides", package="openslide-python", extra="wsi"):
                # One cache of decoded tiles for all slides, so that memory does not grow with their number.
                self._cache = importlib.import_module("openslide").OpenSlideCache(CACHE_BYTES)

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
            stem = slide_id.rpartition(".")[0] if slide_id.lower().endswith(READABLE_SUFFIXES) else slide_id
            named = files.get(slide_id) or files.get(stem) or files.get(f"{stem}.ome") or set()  # a.ome.tiff, called a
            paths.append(next(iter(named)) if len(named) == 1 else None)
            if len(named) > 1:
                problems[row] = f"{len(named)} files in the slide folder have this slide's name."
            elif not named and {slide_id, stem, f"{stem}.ome"} & outside:
                problems[row] = "The slide is a link that leads out of the slide folder, so it is not opened."
            elif not named:
                problems[row] = "There is no file for this slide in the slide folder."
        return cls(paths, inside, problems)

    def has(self, row: int) -> bool:
        """Whether there was a file for the slide when the server started."""
        return self._paths[row] is not None

    @property
    def num_files(self) -> int:
        """How many slides have a file."""
        return sum(path is not None for path in self._paths)

    def use(self, row: int) -> ShownSlide:
        """The open slide."""
        with self._guard:
            if row in self._open:
                self._open[row] = self._open.pop(row)
                return self._open[row]
        fresh = self._opened(row)  # outside of the lock: a slow disk must not stop other slides
        dropped = []  # let go, and thereby closed, outside of the lock too
        with self._guard:
            shown = self._open.setdefault(row, fresh)  # of two that opened it at once the first stays
            while len(self._open) > MOST_OPEN or (len(self._open) > 1 and self._pixels_in_memory() > MOST_PIXELS):
                dropped.append(self._open.pop(next(iter(self._open))))
        return shown

    def mpp(self, row: int) -> float | None:
        """Microns per level-0 pixel, where there is a slide that can be opened and says."""
        try:
            return self.use(row).mpp
        except SlideError:
            return None

    def close(self) -> None:
        """Close what is not in use."""
        with self._guard:
            dropped, self._open = self._open, {}
        dropped.clear()  # outside of the lock: closing may take long

    def _pixels_in_memory(self) -> int:
        """Plain images are held whole, so they count by their size."""
        plain = (shown.slide for shown in self._open.values() if shown.slide.reader_name == "image")
        return sum(slide.width * slide.height for slide in plain)

    def _opened(self, row: int) -> ShownSlide:
        path = self._paths[row]
        if path is None:
            raise SlideError(self.problems.get(row, "No slide folder was given, so there is no picture."))
        try:
            # the file may have been replaced by a link since the server started
            if self._folder is None or path.resolve(strict=True) != path or not path.is_relative_to(self._folder):
                raise SlideError("The slide now lies outside of the slide folder, so it is not opened.")
        except OSError as error:
            raise SlideError("The slide was there when the server started and has vanished.") from error
        try:
            return ShownSlide(*open_unscaled(path, cache=self._cache))
        except SlideError as error:
            # The browser is told no paths of this machine.
            raise SlideError(str(error).replace(str(path), path.name)) from error


def _files(folder: Path) -> tuple[dict[str, set[Path]], set[str]]:
    """Slides below a folder by file name, stem and id, and the names of links that lead out of it."""
    named: dict[Path, set[str]] = {}
    outside: set[str] = set()
    for entry in entries_below(folder):
        path, names = Path(entry.path), {entry.name, Path(entry.name).stem}
        if entry.is_symlink():  # only links cost a look at the disk: folders of 10,000 slides may be slow
            try:
                path = path.resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            if not path.is_relative_to(folder) or not path.is_file():
                outside |= names
                continue
        named.setdefault(path, set()).update(names)
    files: dict[str, set[Path]] = {}
    for path, slide_id, file in gather(named):
        for name in {*named[path], slide_id}:
            files.setdefault(name, set()).add(file)
    return files, outside
