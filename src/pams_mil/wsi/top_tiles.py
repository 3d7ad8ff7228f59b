"""The tiles that say most, as the slide shows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pams_mil.wsi.heatmap import Heatmap, Values
from pams_mil.wsi.physical_pixels import read_scaled
from pams_mil.wsi.readers.slide_reader import Pixels
from pams_mil.wsi.slide import Slide

TILE_PX = 160


@dataclass(frozen=True)
class TopTile:
    """One tile: its picture, its value, and its corner in level-0 pixels."""

    pixels: Pixels
    value: float
    x: int
    y: int


def highest_rows(values: Values, count: int) -> list[int]:
    """The rows of the highest values, highest first; of equal ones the earlier.

    >>> highest_rows(np.array([0.1, 0.7, 0.7, 0.2]), 3)
    [1, 2, 3]
    """
    found: list[int] = np.argsort(-values, kind="stable")[:count].tolist()
    return found


def top_tiles(slide: Slide, tiles: Heatmap, values: Values, *, count: int = 8) -> list[TopTile]:
    """Pictures of the tiles with the highest values, highest first."""
    scale = tiles.tile_px0 / TILE_PX
    found = []
    for row in highest_rows(values, count):
        x, y = tiles.coords_px0[row].tolist()
        pixels = read_scaled(slide, float(x), float(y), scale, TILE_PX, TILE_PX)
        found.append(TopTile(pixels, float(values[row]), round(x), round(y)))
    return found
