"""Slides through tiffslide (tifffile and zarr), the second reader: it opens some TIFF variants OpenSlide does not."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.errors import SlideError
from pams_mil.wsi.readers.ome_tiff import ome_mpp
from pams_mil.wsi.readers.slide_reader import Pixels, first_stated, number, pyramid


class TiffSlideReader:
    """A tiffslide handle."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        tiffslide: Any = importlib.import_module("tiffslide")  # an optional dependency
        self._slide = tiffslide.TiffSlide(path)
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
        return as_rgb(region, width, height)

    def close(self) -> None:
        """Close the handle."""
        self._slide.close()


def as_rgb(region: np.ndarray[tuple[int, ...], np.dtype[np.generic]], width: int, height: int) -> Pixels:
    """Eight-bit RGB [height, width, 3] of what a TIFF holds: gray, RGB or RGBA, nothing else."""
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
    return np.ascontiguousarray(channels).astype(np.uint8, copy=False)
