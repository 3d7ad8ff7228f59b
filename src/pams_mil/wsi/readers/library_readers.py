"""Slides through OpenSlide, the reader of first choice, through tiffslide, and plain images through Pillow."""

from __future__ import annotations

import importlib
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

from pams_mil.arrays import Pixels
from pams_mil.errors import SlideError
from pams_mil.wsi.readers.slide_reader import PyramidLevel, first_stated, is_ome, number, ome_mpp, pyramid

_CACHE_BYTES = 64 << 20  # decoded tiles kept per handle: neighboring regions share the tiles at their border
_PLAIN_COLORS = ("RGB", "MINISBLACK")
_DECODED_COLORS = ("OJPEG", "JPEG", "JPEG_99", "ALT_JPEG", "JPEG_LOSSY", "WEBP")
"""Compressions whose decoders turn YCbCr into RGB; those of JPEG 2000 leave it as it is."""
MOST_PIXELS = 400_000_000
"""Largest plain image, 1.2 GB once decoded; larger ones belong in a pyramidal file."""
_limit = threading.Lock()


class _PyramidReader:
    """A handle of OpenSlide or of tiffslide, which offers the same attributes."""

    is_shared = False

    def __init__(self, handle: Any, library: str) -> None:
        self._slide, properties = handle, handle.properties
        self._stated = tuple(handle.level_downsamples)  # what the library itself divides by
        self.levels = pyramid(self._stated, handle.level_dimensions)
        description = str(properties.get("tiff.ImageDescription") or "")
        stated = (number(properties, f"{library}.mpp-x"), number(properties, f"{library}.mpp-y"))
        self.stated_mpp = first_stated(stated, ome_mpp(description))
        # OpenSlide does not look where an OME-TIFF has its levels: another reader may find more.
        self.may_miss_levels = library == "openslide" and is_ome(description) and len(self.levels) == 1

    def close(self) -> None:
        """Close the handle."""
        self._slide.close()


class OpenSlideReader(_PyramidReader):
    """An OpenSlide handle; areas that were never scanned are white.

    `cache` is an `openslide.OpenSlideCache` to share with other handles, so that all stay within one bound.
    """

    def __init__(self, path: Path, *, cache: object = None) -> None:
        openslide: Any = importlib.import_module("openslide")  # an optional dependency
        super().__init__(openslide.OpenSlide(str(path)), "openslide")
        self._slide.set_cache(openslide.OpenSlideCache(_CACHE_BYTES) if cache is None else cache)

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """RGB [height, width, 3] of a region inside a level."""
        # Positions are asked for in level-0 pixels, whatever the level.
        corner = (round(x * self._stated[level]), round(y * self._stated[level]))
        region = _on_white(self._slide.read_region(corner, level, (width, height)))
        # written out without alpha in one pass, which converting first would take two for
        return np.frombuffer(region.tobytes("raw", "RGB"), np.uint8).reshape(height, width, 3)

    @property
    def icc_profile(self) -> bytes | None:
        """The color profile of the scanner, if the file has one."""
        try:
            profile = self._slide.color_profile
        except ImageCms.PyCMSError:  # damaged; pixels are used as stored, so that the slide can be read all the same
            return None
        return None if profile is None else bytes(profile.tobytes())


class TiffSlideReader(_PyramidReader):
    """A tiffslide handle (tifffile and zarr), which opens some TIFF variants OpenSlide does not.

    tiffslide hands out samples as they are stored, so files that store anything but gray or RGB (palettes, CMYK, plain
    YCbCr) are refused when they are opened, and another reader may try. Areas without color are white.
    """

    def __init__(self, path: Path) -> None:
        handle: Any = importlib.import_module("tiffslide").TiffSlide(path)  # an optional dependency
        page = handle.ts_tifffile.series[int(handle.properties.get("tiffslide.series-index", 0))].keyframe
        colors, compression = page.photometric.name, page.compression.name
        if colors not in _PLAIN_COLORS and not (colors == "YCBCR" and compression in _DECODED_COLORS):
            handle.close()
            raise SlideError(f"its pixels are stored as {colors} ({compression}); expected gray or RGB")
        self._alpha = page.extrasamples[0].name if page.samplesperpixel == 4 and page.extrasamples else ""
        super().__init__(handle, "tiffslide")

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """RGB [height, width, 3] of a region inside a level."""
        downsample = self._stated[level]
        # tiffslide divides by the downsample and cuts the fraction off: the next whole level-0 pixel comes back to x.
        corner = (math.ceil(x * downsample - 1e-6), math.ceil(y * downsample - 1e-6))
        region = np.asarray(self._slide.read_region(corner, level, (width, height), as_array=True))
        return as_rgb(region, width, height, alpha=self._alpha)


def as_rgb(region: npt.NDArray[Any], width: int, height: int, *, alpha: str = "") -> Pixels:
    """Eight-bit RGB [height, width, 3] of what a TIFF holds: gray, RGB or RGBA on white, nothing else.

    `alpha` says what the fourth channel is, in TIFF's words: UNASSALPHA, ASSOCALPHA (colors are multiplied by it
    already) or anything else, which is left out.
    """
    if region.ndim == 2:
        region = region[:, :, None]
    if region.ndim != 3 or region.dtype != np.uint8 or region.shape[2] not in (1, 3, 4):
        raise SlideError(
            f"expected eight-bit gray, RGB or RGBA pixels, found {region.dtype} with shape {list(region.shape)}; "
            "fluorescence and multi-channel images are not brightfield slides"
        )
    if region.shape[:2] != (height, width):
        raise SlideError(f"asked for {width} x {height} pixels, received {region.shape[1]} x {region.shape[0]}")
    channels = region[:, :, :3] if region.shape[2] >= 3 else np.repeat(region, 3, axis=2)
    if alpha in ("UNASSALPHA", "ASSOCALPHA"):
        cover = region[:, :, 3:].astype(np.float32) / 255
        shown = channels * cover if alpha == "UNASSALPHA" else channels
        channels = np.clip(np.rint(shown + 255 * (1 - cover)), 0, 255)
    return np.ascontiguousarray(channels).astype(np.uint8, copy=False)


class ImageReader:
    """A plain image (PNG, JPEG, TIFF without tiles), read whole, so it has a size limit and one level.

    The dots per inch of such files describe print, not tissue, so no mpp is read.
    """

    is_shared = True
    stated_mpp: tuple[float | None, float | None] = (None, None)

    def __init__(self, path: Path) -> None:
        with _limit:  # Pillow's own limit is lower, and one value for all threads
            before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            try:
                opened = Image.open(path)  # not decoded yet
            finally:
                Image.MAX_IMAGE_PIXELS = before
        with opened as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise SlideError(
                    f"the plain image has {width} x {height} pixels, more than {MOST_PIXELS:,}; "
                    "convert it to a pyramidal TIFF, for example with 'vips tiffsave --tile --pyramid'"
                )
            if image.mode not in ("1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"):
                raise SlideError(f"the image has mode {image.mode!r}; expected eight-bit gray or RGB")
            layered = image.convert("RGBA" if image.mode in ("RGBA", "LA", "P") else "RGB")
            self._pixels: Pixels = np.asarray(_on_white(layered).convert("RGB"))
        self.levels: tuple[PyramidLevel, ...] = (PyramidLevel(1.0, width, height),)

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """RGB [height, width, 3] of a region inside the image."""
        return self._pixels[y : y + height, x : x + width]

    def close(self) -> None:
        """Nothing to give back: the file was closed after reading."""


def _on_white(image: Image.Image) -> Image.Image:
    """What shows through on white; an opaque picture as it is."""
    if image.mode != "RGBA" or (alpha := image.getchannel("A")).getextrema() == (255, 255):
        return image
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=alpha)
    return white
