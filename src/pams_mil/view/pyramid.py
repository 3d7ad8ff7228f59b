"""Deep Zoom arithmetic: which square of the slide a tile's level, column and row stand for, and whether it exists.

Level `top` is the slide itself, and every level below it is half as large, down to one pixel. Tiles have a side of 254
pixels and share one pixel with each neighbor, so that no seam shows at fractional zoom. Positions count from the
corner of level 0, as tile coordinates of features do; a scanner's "bounds" play no part.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

from PIL import Image, ImageCms

from pams_mil.arrays import Pixels
from pams_mil.wsi.heatmap import encoded
from pams_mil.wsi.physical_pixels import Overview, Patch, best_level, read_scaled
from pams_mil.wsi.slide import Slide

TILE_PX, OVERLAP_PX = 254, 1
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


def read_tile(slide: Slide, box: TileBox) -> Pixels:
    """The tile's pixels, from the best level of the slide."""
    return read_scaled(slide, box.x * box.scale, box.y * box.scale, box.scale, box.width, box.height)


def needs_overview(slide: Slide, box: TileBox) -> bool:
    """Whether reading the tile itself would decode far more than it shows."""
    return box.scale > MOST_SHRINKING * slide.levels[best_level(slide.levels, box.scale)].downsample


def tile_of_overview(overview: Overview, box: TileBox) -> Pixels:
    """The tile's pixels, enlarged or reduced from the overview of the whole slide."""
    patch = Patch(overview.pixels, 0, 0, overview.scale)
    return patch.resampled(box.x * box.scale, box.y * box.scale, box.scale, box.width, box.height)


class Painter:
    """Pixels to JPEG, with the scanner's colors turned into those of screens (sRGB)."""

    def __init__(self, icc_profile: bytes | None) -> None:
        self._transform = None
        if icc_profile is not None:
            try:
                scanner = ImageCms.ImageCmsProfile(io.BytesIO(icc_profile))
                self._transform = ImageCms.buildTransform(scanner, ImageCms.createProfile("sRGB"), "RGB", "RGB")
            except (ImageCms.PyCMSError, OSError):  # a profile nobody can use: show the colors as stored
                self._transform = None

    def on_screen(self, pixels: Pixels) -> Image.Image:
        """The picture in sRGB."""
        image = Image.fromarray(pixels)
        if self._transform is not None:
            ImageCms.applyTransform(image, self._transform, inPlace=True)
        return image

    def jpeg(self, pixels: Pixels) -> bytes:
        """The picture in sRGB as JPEG."""
        return encoded(self.on_screen(pixels), "JPEG")
