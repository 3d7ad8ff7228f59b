"""Tiles as pixels: neighbors are read together, and every cell of the plan is accounted for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.errors import SlideError
from pams_mil.wsi.physical_pixels import best_level, read_patch
from pams_mil.wsi.readers.slide_reader import Pixels
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.tile_grid import TilePlan

Rows = npt.NDArray[np.int64]

_BLOCK_PX = 1536  # side of what is read at once, in pixels of the level that is read


@dataclass(frozen=True)
class TileBlock:
    """Tiles [k, t, t, 3] of the rows [k] of a plan; `unreadable` rows have no tile."""

    rows: Rows
    tiles: Pixels
    unreadable: tuple[int, ...] = ()


def blocks(plan: TilePlan, slide: Slide) -> list[Rows]:
    """The plan's rows in groups that lie close together on the slide.

    Scanners store tiles of their own. Reading a group at once decodes those under it once instead of once per cell.
    """
    if not len(plan.cells):
        return []
    level = slide.levels[best_level(slide.levels, plan.grid.scale)]
    # Cells along one side of a block; large tiles are read one by one.
    side = max(1, int(_BLOCK_PX * level.downsample / plan.grid.tile_px0))
    column, row = (plan.cells // side).T
    # Blocks row by row; a stable sort keeps the plan's order within each.
    key = row * (int(column.max()) + 1) + column
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def read_block(slide: Slide, plan: TilePlan, rows: Rows, *, skip_unreadable: bool = False) -> TileBlock:
    """The tiles of one block; if it cannot be read whole, tile by tile, so that only the bad ones are lost."""
    try:
        return TileBlock(rows, _read_together(slide, plan, rows))
    except SlideError:
        # A block of one tile has no other tiles to save: its own error is the answer.
        if len(rows) == 1 and not skip_unreadable:
            raise
    kept: list[int] = []
    tiles: list[Pixels] = []
    lost: list[int] = []
    for row in rows.tolist():
        try:
            tiles.append(_read_together(slide, plan, np.array([row])))
            kept.append(row)
        except SlideError:
            if not skip_unreadable:
                raise
            lost.append(row)
    side = plan.grid.tile_px
    # A block of nothing but bad tiles still has the shape of tiles, so that batches can be joined.
    together: Pixels = np.concatenate(tiles) if tiles else np.empty((0, side, side, 3), np.uint8)
    return TileBlock(np.array(kept, np.int64), together, tuple(lost))


def _read_together(slide: Slide, plan: TilePlan, rows: Rows) -> Pixels:
    grid = plan.grid
    corners = grid.corners(plan.cells[rows])
    left, top = corners.min(axis=0).tolist()
    right, bottom = (corners.max(axis=0) + grid.tile_px0).tolist()
    patch = read_patch(slide, left, top, right, bottom, grid.scale)
    tiles: Pixels = np.empty((len(rows), grid.tile_px, grid.tile_px, 3), np.uint8)
    for index, (x, y) in enumerate(corners.tolist()):
        tiles[index] = patch.resampled(x, y, grid.scale, grid.tile_px, grid.tile_px)
    return tiles
