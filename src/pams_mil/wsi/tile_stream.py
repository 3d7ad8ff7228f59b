"""Tiles of a slide as a stream: reader threads stay a few blocks ahead, so that the encoder need not wait.

Neighbors are read together, and every cell of the plan is accounted for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Ints, Pixels
from pams_mil.errors import BagError, SlideError
from pams_mil.wsi.encoders.encoder import Encoder
from pams_mil.wsi.physical_pixels import best_level, read_patch
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.tile_grid import TilePlan


class TileStream:
    """Blocks of tiles in a fixed order, at most `ahead` of them read before they are asked for."""

    def __init__(
        self, slide: Slide, plan: TilePlan, pool: Executor, *, ahead: int, skip_unreadable: bool = False
    ) -> None:
        self.slide, self._plan, self._pool = slide, plan, pool
        self._ahead, self._skip = ahead, skip_unreadable
        self._waiting = deque(blocks(plan, slide))
        self._reading: deque[Future[TileBlock]] = deque()

    def prefetch(self) -> None:
        """Hand blocks to the readers until enough are under way."""
        while self._waiting and len(self._reading) < self._ahead:
            rows = self._waiting.popleft()
            task = self._pool.submit(read_block, self.slide, self._plan, rows, skip_unreadable=self._skip)
            self._reading.append(task)

    def __iter__(self) -> Iterator[TileBlock]:
        self.prefetch()
        while self._reading:
            # In the order of submission, not of completion: batches, and with them features, are the same in every run.
            block = self._reading.popleft().result()
            self.prefetch()
            yield block

    def stop(self) -> None:
        """Drop what is waiting and let what is being read come to its end, so that the slide can be closed."""
        self._waiting.clear()
        for task in self._reading:
            # Already running: its outcome does not matter, but the slide must not be closed under it.
            if not task.cancel():
                task.exception()
        self._reading.clear()


@dataclass(frozen=True)
class Encoded:
    """Features [n, d] of the rows [n] of a plan, in the plan's order, and how many rows could not be read."""

    features: npt.NDArray[Any]
    rows: Ints
    unreadable: int


def encode(stream: TileStream, encoder: Encoder, *, batch: int, advance: Callable[[int], None]) -> Encoded:
    """Encode a stream in batches; `advance` hears of every batch done.

    Batches never mix slides, so a slide's features do not depend on what was extracted before it.
    """
    rows: list[Ints] = []
    features: list[npt.NDArray[Any]] = []
    unreadable = 0
    held: list[Pixels] = []
    for block in stream:
        rows.append(block.rows)
        unreadable += len(block.unreadable)
        held.append(block.tiles)
        # Blocks have any number of tiles; what is left over waits for the next block, so that every batch but the last
        # is full.
        while sum(map(len, held)) >= batch:
            together = np.concatenate(held)
            held = [together[batch:]]
            features.append(_encoded(encoder, together[:batch]))
            advance(batch)
    if rest := sum(map(len, held)):
        features.append(_encoded(encoder, np.concatenate(held)))
        advance(rest)
    if not features:
        raise SlideError(f"{stream.slide.path.name}: none of its {unreadable} tiles with tissue can be read")
    # Tiles were read block by block; bags list them in the order of the plan.
    order_read = np.concatenate(rows)
    order = np.argsort(order_read, kind="stable")
    return Encoded(np.concatenate(features)[order], order_read[order], unreadable)


def _encoded(encoder: Encoder, tiles: Pixels) -> npt.NDArray[Any]:
    features = np.asarray(encoder(tiles))
    if features.ndim != 2 or len(features) != len(tiles) or features.dtype.kind != "f":
        raise BagError(
            f"The encoder {encoder.name} gave {features.dtype} features of shape {list(features.shape)} for "
            f"{len(tiles)} tiles; expected floating-point numbers of shape [{len(tiles)}, d]."
        )
    return features


_BLOCK_PX = 1536  # side of what is read at once, in pixels of the level that is read


@dataclass(frozen=True)
class TileBlock:
    """Tiles [k, t, t, 3] of the rows [k] of a plan; `unreadable` rows have no tile."""

    rows: Ints
    tiles: Pixels
    unreadable: tuple[int, ...] = ()


def blocks(plan: TilePlan, slide: Slide) -> list[Ints]:
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


def read_block(slide: Slide, plan: TilePlan, rows: Ints, *, skip_unreadable: bool = False) -> TileBlock:
    """The tiles of one block; if it cannot be read whole, tile by tile, so that only the bad ones are lost."""
    try:
        return TileBlock(rows, _read_together(slide, plan, rows))
    except SlideError:
        # A block of one tile has no other tiles to save: its own error is the answer.
        if len(rows) == 1 and not skip_unreadable:
            raise
    places: list[int] = []
    tiles: list[Pixels] = []
    lost: list[int] = []
    for row in rows.tolist():
        try:
            tiles.append(_read_together(slide, plan, np.array([row])))
            places.append(row)
        except SlideError:
            if not skip_unreadable:
                raise
            lost.append(row)
    side = plan.grid.tile_px
    # A block of nothing but bad tiles still has the shape of tiles, so that batches can be joined.
    together: Pixels = np.concatenate(tiles) if tiles else np.empty((0, side, side, 3), np.uint8)
    return TileBlock(np.array(places, np.int64), together, tuple(lost))


def _read_together(slide: Slide, plan: TilePlan, rows: Ints) -> Pixels:
    grid = plan.grid
    corners = grid.corners(plan.cells[rows])
    left, top = corners.min(axis=0).tolist()
    right, bottom = (corners.max(axis=0) + grid.tile_px0).tolist()
    patch = read_patch(slide, left, top, right, bottom, grid.scale)
    tiles: Pixels = np.empty((len(rows), grid.tile_px, grid.tile_px, 3), np.uint8)
    for index, (x, y) in enumerate(corners.tolist()):
        tiles[index] = patch.resampled(x, y, grid.scale, grid.tile_px, grid.tile_px)
    return tiles
