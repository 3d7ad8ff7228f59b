"""Plain images (PNG, JPEG, TIFF without tiles): read whole, so they have a size limit and one level."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
from PIL import Image

from pams_mil.arrays import Pixels
from pams_mil.errors import SlideError
from pams_mil.wsi.readers.slide_reader import PyramidLevel

MOST_PIXELS = 400_000_000
"""Largest plain image, 1.2 GB once decoded; larger ones belong in a pyramidal file."""
_limit = threading.Lock()


class ImageReader:
    """A plain image in memory. The dots per inch of such files describe print, not tissue, so no mpp is read."""

    is_shared = True

    def __init__(self, path: Path) -> None:
        with _opened(path) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise SlideError(
                    f"the plain image has {width} x {height} pixels, more than {MOST_PIXELS:,}; "
                    "convert it to a pyramidal TIFF, for example with 'vips tiffsave --tile --pyramid'"
                )
            if image.mode not in ("1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"):
                raise SlideError(f"the image has mode {image.mode!r}; expected eight-bit gray or RGB")
            self._pixels: Pixels = np.asarray(_on_white(image))
        self.levels = (PyramidLevel(1.0, width, height),)
        self.stated_mpp: tuple[float | None, float | None] = (None, None)

    def read(self, level: int, x: int, y: int, width: int, height: int) -> Pixels:
        """RGB [height, width, 3] of a region inside the image."""
        return self._pixels[y : y + height, x : x + width]

    def close(self) -> None:
        """Nothing to give back: the file was closed after reading."""


def _opened(path: Path) -> Image.Image:
    """The image, not decoded yet, without Pillow's own limit, which is lower; it is one value for all threads."""
    with _limit:
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(path)
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode not in ("RGBA", "LA", "P"):
        return image.convert("RGB")
    layered = image.convert("RGBA")
    white = Image.new("RGB", layered.size, (255, 255, 255))
    white.paste(layered, mask=layered.getchannel("A"))
    return white
