"""An open slide: levels, physical scale, and pixels of any region, whatever library reads it.

Every thread gets a handle of its own. After an error a handle is dropped, because OpenSlide refuses all further
reads once one has failed; the next read opens the file again, so one bad region does not spoil the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pams_mil.arrays import Pixels
from pams_mil.errors import ConfigError, MissingExtraError, ParameterError, SlideError
from pams_mil.wsi.readers.library_readers import ImageReader, OpenSlideReader, TiffSlideReader
from pams_mil.wsi.readers.slide_kind import said_of
from pams_mil.wsi.readers.slide_reader import PyramidLevel, Reader
from pams_mil.wsi.resolution import Resolution, ScaleError, resolve

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
READERS: dict[str, Callable[..., Reader]] = {
    "openslide": OpenSlideReader, "tiffslide": TiffSlideReader, "image": ImageReader,
}  # fmt: skip


class Slide:
    """A slide opened by the first reader that can; close it, or use it in a `with` block."""

    def __init__(
        self,
        path: Path | str,
        *,
        reader: str = "auto",
        mpp_of_slide: float | None = None,
        mpp_is_certain: bool = False,
        cache: object = None,
    ) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            if known := said_of(self.path):
                raise SlideError(f"{self.path.name} cannot be read as a slide. {known}")
            raise SlideError(f"{self.path} is a folder, not a slide; name the file inside it.")
        if not self.path.is_file():
            raise SlideError(f"There is no slide {self.path}.")
        self._cache = cache  # decoded tiles shared with other slides, see OpenSlideReader
        self.reader_name, first = _open_any(self.path, reader, cache)
        self.levels: tuple[PyramidLevel, ...] = first.levels
        self._is_shared = first.is_shared
        self.icc_profile: bytes | None = getattr(first, "icc_profile", None)
        """The scanner's color profile, where the file has one; pixels are as stored, without it."""
        # The reader that was opened to look at the file serves the thread that made the slide.
        self._handles: dict[int, Reader] = {self._owner(): first}
        self._guard = threading.Lock()
        try:
            self.resolution: Resolution = resolve(first.stated_mpp, mpp_of_slide, certain=mpp_is_certain)
        except (ScaleError, ParameterError) as error:
            self.close()
            raise ScaleError(f"{self.path.name}: {error}.") from error

    @property
    def mpp(self) -> float:
        """Microns per level-0 pixel."""
        return self.resolution.mpp

    @property
    def width(self) -> int:
        """Level-0 pixels across."""
        return self.levels[0].width

    @property
    def height(self) -> int:
        """Level-0 pixels down."""
        return self.levels[0].height

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """RGB [height, width, 3] of a region in the pixels of a level; white outside the slide."""
        size = self.levels[level]
        # Readers disagree on what lies outside (black, transparent, an error), so they are never asked for it.
        left, top = max(x, 0), max(y, 0)
        right, bottom = min(x + width, size.width), min(y + height, size.height)
        if (left, top, right, bottom) == (x, y, x + width, y + height):
            return self._read_inside(level, x, y, width, height)
        canvas: Pixels = np.full((height, width, 3), 255, np.uint8)
        if right > left and bottom > top:
            inside = self._read_inside(level, left, top, right - left, bottom - top)
            canvas[top - y : bottom - y, left - x : right - x] = inside
        return canvas

    def close(self) -> None:
        """Close every thread's handle."""
        with self._guard:
            handles, self._handles = list(self._handles.values()), {}
        for handle in handles:
            handle.close()

    def __enter__(self) -> Slide:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_inside(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        thread = self._owner()
        try:
            # No lock: a thread only ever looks for its own handle.
            handle = self._handles.get(thread) or self._open_again(thread)
            return handle.read(level, x, y, width, height)
        except Exception as error:  # decoders raise their own kinds: OpenSlide, tifffile, zarr, imagecodecs, Pillow
            with self._guard:
                # A shared handle may have been dropped by another thread in the meantime.
                spoiled = self._handles.pop(thread, None)
            if spoiled is not None:
                spoiled.close()
            downsample = self.levels[level].downsample
            raise SlideError(
                f"{self.path.name}: the region at ({round(x * downsample)}, {round(y * downsample)}) in level-0 pixels "
                f"cannot be read from level {level}: {error}"
            ) from error

    def _owner(self) -> int:
        return 0 if self._is_shared else threading.get_ident()

    def _open_again(self, thread: int) -> Reader:
        handle = _opened(self.reader_name, self.path, self._cache)
        with self._guard:
            self._handles[thread] = handle
        return handle


def open_unscaled(path: Path, *, cache: object = None) -> tuple[Slide, float | None]:
    """The slide, and its microns per level-0 pixel; None where its file does not state them."""
    try:
        slide = Slide(path, cache=cache)
    except ScaleError:
        # The 1.0 only lets the slide be opened; the None beside it keeps it from being shown as a scale.
        return Slide(path, mpp_of_slide=1.0, mpp_is_certain=True, cache=cache), None
    return slide, slide.mpp


def _open_any(path: Path, wanted: str, cache: object) -> tuple[str, Reader]:
    if wanted != "auto" and wanted not in READERS:
        raise ConfigError(f"There is no slide reader called {wanted!r}. Choose auto, openslide, tiffslide or image.")
    names = (wanted,) if wanted != "auto" else tuple(READERS)
    causes: list[str] = []
    missing: list[str] = []
    for name in names:
        # Pillow opens whatever picture a file begins with, e.g. the thumbnail that a .mrxs is, and not the slide.
        if name == "image" and wanted == "auto" and path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        try:
            opened = _opened(name, path, cache)
            return _with_all_levels(name, opened, path) if wanted == "auto" else (name, opened)
        except ImportError:
            missing.append(name)
        except Exception as error:  # every library has its own kinds of error for a file it cannot open
            causes.append(f"{name}: {str(error) or type(error).__name__}")
    if not causes:
        package = missing[0].replace("openslide", "openslide-python")
        raise MissingExtraError(f"Reading {path.name}", package=package, extra="wsi")
    hint = f" ({', '.join(missing)} not installed)" if missing else ""
    why = "; ".join(causes)
    if known := said_of(path):
        raise SlideError(f"{path.name} cannot be read as a slide{hint}. {known} Readers said: {why}.")
    raise SlideError(
        f"{path.name} cannot be read as a slide; it is damaged, cut short or in a format no reader knows{hint}. {why}."
    )


def _with_all_levels(name: str, opened: Reader, path: Path) -> tuple[str, Reader]:
    """The reader, or tiffslide where that finds levels which this one may miss."""
    if not getattr(opened, "may_miss_levels", False):
        return name, opened
    try:
        other = _opened("tiffslide", path, None)
    except Exception:  # not installed, or a file that it cannot open: then one level must do
        return name, opened
    # Equal counts keep the first reader, the one of first choice.
    chosen, dropped = (other, opened) if len(other.levels) > len(opened.levels) else (opened, other)
    dropped.close()
    return (name if chosen is opened else "tiffslide"), chosen


def _opened(name: str, path: Path, cache: object) -> Reader:
    return READERS[name](path, cache=cache) if name == "openslide" and cache is not None else READERS[name](path)
