"""Deep Zoom arithmetic: which square of the slide a tile's level, column and row stand for, and whether it exists.

Level `top` is the slide itself, and every level below it is half as large, down to one pixel. Tiles have a side of 254
pixels and share one pixel with each neighbor, so that no seam shows at fractional zoom. Positions count from the
corner of level 0, as tile coordinates of features do; a scanner's "bounds" play no part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TILE_PX, OVERLAP_PX = 254, 1


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
