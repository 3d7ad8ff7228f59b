"""How slides are cut: the settings, the grid of tiles at an exact physical size, and which of its cells hold tissue.

One set of settings per output folder, so that bags in it can be compared; a preview shows the tiles taken.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from scipy import ndimage

from pams_mil import atomic
from pams_mil.arrays import Array, Ints, Pixels
from pams_mil.errors import CheckedFields, ConfigError, Count, SlideError, Within
from pams_mil.wsi.encoders.encoder import Encoder, weights_digest
from pams_mil.wsi.physical_pixels import Overview
from pams_mil.wsi.resolution import check_mpp
from pams_mil.wsi.tissue import Tissue

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

    def corners(self, cells: Ints) -> Ints:
        """Level-0 corners (x, y) [n, 2] of cells (column, row) [n, 2].

        >>> Grid(256, 1.0, 513.03, 4, 4).corners(np.array([[0, 0], [1, 3]])).tolist()
        [[0, 0], [513, 1539]]
        """
        # Multiplied first, then rounded: adding up a rounded side would drift by up to half a pixel per tile.
        corners: Ints = np.rint(cells * self.tile_px0).astype(np.int64)
        return corners


@dataclass(frozen=True)
class TilePlan:
    """The cells to encode, row by row: `cells` [n, 2] as (column, row)."""

    grid: Grid
    cells: Ints

    @property
    def coords_px0(self) -> Ints:
        """Level-0 corners (x, y) [n, 2]."""
        return self.grid.corners(self.cells)


def plan_tiles(grid: Grid, tissue: Tissue, *, min_tissue: float) -> TilePlan:
    """The cells of which at least `min_tissue` is tissue; what lies past the slide's edge is background."""
    # The share is a difference of sums, so 0.1 may come out as 0.0999999; row by row is the order of the bag.
    rows, columns = np.nonzero(tissue_per_cell(grid, tissue) >= min_tissue - 1e-9)
    return TilePlan(grid, np.stack([columns, rows], 1).astype(np.int64))


def tissue_per_cell(grid: Grid, tissue: Tissue) -> Array:
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
    shares: Array = np.diff(np.diff(along_both, axis=0), axis=1) / side**2
    return shares


def _interpolated(table: Array, positions: npt.NDArray[Any]) -> Array:
    # S is constant past the edge of the mask, so what lies outside counts as background.
    inside = np.clip(positions, 0, table.shape[0] - 1)
    # The last position is the end of the last pixel: it is reached from the pixel before, with share 1.
    low = np.minimum(np.floor(inside).astype(np.int64), table.shape[0] - 2)
    share = (inside - low)[:, None]
    values: Array = table[low] * (1 - share) + table[low + 1] * share
    return values


_FILE = "extraction.json"


@dataclass(frozen=True)
class TileSettings(CheckedFields):
    """Settings that change features; the paper's are the defaults.

    `on_bad_tile` says what an unreadable tile means: `fail` gives the slide up, `skip` counts it and goes on.
    """

    mpp: float = 1.0
    tile_px: Annotated[int, Within(at_least=16, at_most=8192)] = 256
    min_tissue: Annotated[float, Within(above=0, at_most=1)] = 0.10
    on_bad_tile: Literal["fail", "skip"] = "fail"
    reader: Literal["auto", "openslide", "tiffslide", "image"] = "auto"
    feature_dtype: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        check_mpp(self.mpp, "--mpp")
        super().__post_init__()


@dataclass(frozen=True)
class WorkSettings(CheckedFields):
    """Settings that change speed alone."""

    workers: Count = min(4, os.cpu_count() or 1)  # noqa: RUF009  the same for all
    batch: Count = 32
    preview: bool = False


def hold_to(out: Path, settings: TileSettings, encoder: Encoder) -> None:
    """Write the folder's settings down, or refuse to add bags that were made differently from those in it."""
    wanted: dict[str, Any] = {"encoder": encoder.name, "encoder_digest": weights_digest(encoder), **asdict(settings)}
    path = out / _FILE
    if not path.exists():
        atomic.write_json(path, wanted)
        return
    try:
        stored = json.loads(path.read_text("utf-8"))
        # Only what is compared now: settings of later versions in the file do not count.
        differing = [name for name in wanted if stored.get(name) != wanted[name]]
    except (ValueError, AttributeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Remove it, or use another --out.") from error
    if differing:
        changes = ", ".join(f"{name} was {stored.get(name)!r}, now {wanted[name]!r}" for name in differing)
        raise ConfigError(f"{out} holds bags made with other settings: {changes}. Use another --out folder.")


_LONGEST_PX = 1600
_OUTLINE = (0, 150, 60)
_TILE_INK = (30, 80, 220)
_DIM = 0.35


def draw_preview(overview: Overview, tissue: Tissue, plan: TilePlan) -> Pixels:
    """RGB of the overview, enlarged or reduced to a handy size; background is dimmed."""
    dimmed = np.where(tissue.mask[:, :, None], overview.pixels, overview.pixels * (1 - _DIM) + 60 * _DIM)
    dimmed[tissue.mask & ~ndimage.binary_erosion(tissue.mask, border_value=1)] = _OUTLINE
    height, width = tissue.mask.shape
    zoom = _LONGEST_PX / max(height, width)
    image = Image.fromarray(dimmed.astype(np.uint8)).resize(
        (max(1, round(width * zoom)), max(1, round(height * zoom))), Image.Resampling.NEAREST
    )
    pen = ImageDraw.Draw(image)
    side = plan.grid.tile_px0 / overview.scale * zoom
    for x, y in (plan.coords_px0 / overview.scale * zoom).tolist():
        pen.rectangle((x, y, x + side, y + side), outline=_TILE_INK, width=2)
    return np.asarray(image)
