"""The grid of tiles over a slide, at an exact physical size, and which of its cells hold tissue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.errors import ParameterError, SlideError
from pams_mil.wsi.tissue import Tissue

Cells = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]

MOST_UPSAMPLING = 1.25
"""Tiles may be this much finer than the finest level; beyond it detail would be invented."""


@dataclass(frozen=True)
class Grid:
    """Square cells that cover a slide from its top left corner; the last column and row may reach past its edge.

    A cell is `tile_px` pixels at `mpp` microns per pixel, which is `tile_px0 = tile_px * mpp / mpp_0` level-0
    pixels: a real number, so corners are rounded one by one and never drift.

    >>> grid = Grid.over(1000, 600, mpp_of_slide=0.5, mpp=1.0, tile_px=256)
    >>> grid.tile_px0, grid.columns, grid.rows
    (512.0, 2, 2)
    """

    tile_px: int
    mpp: float
    tile_px0: float
    columns: int
    rows: int

    @classmethod
    def over(cls, width: int, height: int, *, mpp_of_slide: float, mpp: float, tile_px: int) -> Grid:
        """The grid for a slide of `width` x `height` level-0 pixels."""
        if tile_px < 16:
            raise ParameterError(f"tile_px is {tile_px}; expected at least 16 pixels.")
        if mpp_of_slide > mpp * MOST_UPSAMPLING:
            raise SlideError(
                f"the finest level has {mpp_of_slide:g} microns per pixel, so tiles at {mpp:g} would be invented by "
                f"enlarging; ask for --mpp {mpp_of_slide:.2g} or coarser"
            )
        tile_px0 = tile_px * mpp / mpp_of_slide
        # A slide of exactly k tiles must not get a column k + 1 because the division came out a little above k.
        columns = max(1, math.ceil(width / tile_px0 - 1e-9))
        rows = max(1, math.ceil(height / tile_px0 - 1e-9))
        return cls(tile_px, mpp, tile_px0, columns, rows)

    @property
    def scale(self) -> float:
        """Level-0 pixels per tile pixel."""
        return self.tile_px0 / self.tile_px

    @property
    def num_cells(self) -> int:
        """All cells, with tissue or without."""
        return self.columns * self.rows

    def corners(self, cells: Cells) -> Cells:
        """Level-0 corners (x, y) [n, 2] of cells (column, row) [n, 2].

        >>> Grid(256, 1.0, 513.03, 4, 4).corners(np.array([[0, 0], [1, 3]])).tolist()
        [[0, 0], [513, 1539]]
        """
        # Multiplied first, then rounded: adding up a rounded side would drift by up to half a pixel per tile.
        corners: Cells = np.rint(cells * self.tile_px0).astype(np.int64)
        return corners


@dataclass(frozen=True)
class TilePlan:
    """The cells to encode, row by row: `cells` [n, 2] as (column, row)."""

    grid: Grid
    cells: Cells

    @property
    def coords_px0(self) -> Cells:
        """Level-0 corners (x, y) [n, 2]."""
        return self.grid.corners(self.cells)


def plan_tiles(grid: Grid, tissue: Tissue, *, min_tissue: float) -> TilePlan:
    """The cells of which at least `min_tissue` is tissue; what lies past the slide's edge is background."""
    if not 0.0 < min_tissue <= 1.0:
        raise ParameterError(f"min_tissue is {min_tissue:g}; expected a share above 0 and up to 1.")
    # The share is a difference of sums, so 0.1 may come out as 0.0999999; row by row is the order of the bag.
    rows, columns = np.nonzero(tissue_per_cell(grid, tissue) >= min_tissue - 1e-9)
    return TilePlan(grid, np.stack([columns, rows], 1).astype(np.int64))


def tissue_per_cell(grid: Grid, tissue: Tissue) -> Shares:
    """The share of tissue in every cell [rows, columns].

    With S(x, y) the area of tissue above and left of (x, y), exact between mask pixels by linear interpolation:

        share = (S(x1, y1) - S(x0, y1) - S(x1, y0) + S(x0, y0)) / cell area
    """
    mask = tissue.mask
    # One row and column of zeros in front: S(0, .) = S(., 0) = 0.
    area = np.zeros((mask.shape[0] + 1, mask.shape[1] + 1))
    area[1:, 1:] = mask.cumsum(0).cumsum(1)
    # The side of a cell in pixels of the mask, rarely a whole number.
    side = grid.tile_px0 / tissue.scale
    # Linear along y, then along x: exact, because within one mask pixel S is bilinear.
    along_y = _interpolated(area, np.arange(grid.rows + 1) * side)
    along_both = _interpolated(along_y.T, np.arange(grid.columns + 1) * side).T
    shares: Shares = np.diff(np.diff(along_both, axis=0), axis=1) / side**2
    return shares


def _interpolated(table: Shares, positions: npt.NDArray[Any]) -> Shares:
    # S is constant past the edge of the mask, so what lies outside counts as background.
    inside = np.clip(positions, 0, table.shape[0] - 1)
    # The last position is the end of the last pixel: it is reached from the pixel before, with share 1.
    low = np.minimum(np.floor(inside).astype(np.int64), table.shape[0] - 2)
    share = (inside - low)[:, None]
    values: Shares = table[low] * (1 - share) + table[low + 1] * share
    return values
