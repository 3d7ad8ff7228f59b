"""Slides through tiffslide (tifffile and zarr), the second reader: it opens some TIFF variants OpenSlide does not."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Pixels
from pams_mil.errors import SlideError
from pams_mil.wsi.readers.slide_reader import first_stated, number, ome_mpp, pyramid

_PLAIN_COLORS = ("RGB", "MINISBLACK")
_DECODED_COLORS = ("OJPEG", "JPEG", "JPEG_99", "ALT_JPEG", "JPEG_LOSSY", "WEBP")
"""Compressions whose decoders turn YCbCr into RGB; those of JPEG 2000 leave it as it is."""


class TiffSlideReader:
    """A tiffslide handle; areas without color are white.

    tiffslide hands out samples as they are stored, so files that store anything but gray or RGB (palettes, CMYK, plain
    YCbCr) are refused when they are opened, and another reader may try.
    """

    is_shared = False

    def __init__(self, path: Path) -> None:
        tiffslide: Any = importlib.import_module("tiffslide")  # an optional dependency
        self._slide = tiffslide.TiffSlide(path)
        page = self._slide.ts_tifffile.series[int(self._slide.properties.get("tiffslide.series-index", 0))].keyframe
        colors, compression = page.photometric.name, page.compression.name
        if colors not in _PLAIN_COLORS and not (colors == "YCBCR" and compression in _DECODED_COLORS):
            self._slide.close()
            raise SlideError(f"its pixels are stored as {colors} ({compression}); expected gray or RGB")
        self._alpha = page.extrasamples[0].name if page.samplesperpixel == 4 and page.extrasamples else ""
        self._stated = tuple(self._slide.level_downsamples)
        self.levels = pyramid(self._stated, self._slide.level_dimensions)
        properties = self._slide.properties
        self.stated_mpp = first_stated(
            (number(properties, "tiffslide.mpp-x"), number(properties, "tiffslide.mpp-y")),
            ome_mpp(str(properties.get("tiff.ImageDescription") or "")),
        )

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """RGB [height, width, 3] of a region inside a level."""
        downsample = self._stated[level]  # what the library itself will divide by
        # tiffslide divides by the downsample and cuts the fraction off: the next whole level-0 pixel comes back to x.
        corner = (math.ceil(x * downsample - 1e-6), math.ceil(y * downsample - 1e-6))
        region = np.asarray(self._slide.read_region(corner, level, (width, height), as_array=True))
        return as_rgb(region, width, height, alpha=self._alpha)

    def close(self) -> None:
        """Close the handle."""
        self._slide.close()


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
