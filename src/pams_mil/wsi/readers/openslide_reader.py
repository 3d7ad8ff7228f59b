"""Slides through OpenSlide, the reader of first choice."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from pams_mil.arrays import Pixels
from pams_mil.wsi.readers.slide_reader import first_stated, is_ome, number, ome_mpp, pyramid

_CACHE_BYTES = 64 << 20  # decoded tiles kept per handle: neighboring regions share the tiles at their border


class OpenSlideReader:
    """An OpenSlide handle; areas that were never scanned are white.

    OpenSlide does not look where an OME-TIFF has its levels: `may_miss_levels` says that another reader may find more.
    `cache` is an `openslide.OpenSlideCache` to share with other handles, so that all stay within one bound.
    """

    is_shared = False

    def __init__(self, path: Path, *, cache: object = None) -> None:
        openslide: Any = importlib.import_module("openslide")  # an optional dependency
        self._slide = openslide.OpenSlide(str(path))
        self._slide.set_cache(openslide.OpenSlideCache(_CACHE_BYTES) if cache is None else cache)
        self._stated = tuple(self._slide.level_downsamples)
        self.levels = pyramid(self._stated, self._slide.level_dimensions)
        properties = self._slide.properties
        description = str(properties.get("tiff.ImageDescription", ""))
        self.stated_mpp = first_stated(
            (number(properties, "openslide.mpp-x"), number(properties, "openslide.mpp-y")), ome_mpp(description)
        )
        self.may_miss_levels = is_ome(description) and len(self.levels) == 1

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """RGB [height, width, 3] of a region inside a level."""
        downsample = self._stated[level]  # what the library itself will divide by
        # Positions are asked for in level-0 pixels, whatever the level.
        corner = (round(x * downsample), round(y * downsample))
        region = self._slide.read_region(corner, level, (width, height))
        alpha = region.getchannel("A")
        if alpha.getextrema() != (255, 255):
            opaque = Image.new("RGB", region.size, (255, 255, 255))
            opaque.paste(region, mask=alpha)
            region = opaque
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

    def close(self) -> None:
        """Close the handle."""
        self._slide.close()
