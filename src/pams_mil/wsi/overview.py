"""A small picture of a whole slide at a known scale, read block by block so that memory stays bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pams_mil.wsi.physical_pixels import best_level, read_scaled
from pams_mil.wsi.readers.slide_reader import Pixels
from pams_mil.wsi.slide import Slide

_BLOCK_PX = 2048  # side of what is read at once, in pixels of the level that is read


@dataclass(frozen=True)
class Overview:
    """RGB [h, w, 3] of the whole slide; `scale` is level-0 pixels per pixel of the overview."""

    pixels: Pixels
    scale: float


def read_overview(slide: Slide, *, mpp: float = 8.0, longest_px: int = 4096) -> Overview:
    """The whole slide at `mpp` microns per pixel, or coarser where a side would exceed `longest_px`.

    A fixed physical scale makes the tissue found on a slide independent of the scanner's resolution.
    """
    # Never finer than level 0: an overview is not enlarged here.
    scale = max(mpp / slide.mpp, max(slide.width, slide.height) / longest_px, 1.0)
    width, height = max(1, round(slide.width / scale)), max(1, round(slide.height / scale))
    # A pixel of the overview takes ratio x ratio pixels of the level that is read.
    ratio = scale / slide.levels[best_level(slide.levels, scale)].downsample
    block = max(1, int(_BLOCK_PX / ratio))
    pixels: Pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, block):
        for left in range(0, width, block):
            across, down = min(block, width - left), min(block, height - top)
            part = read_scaled(slide, left * scale, top * scale, scale, across, down)
            pixels[top : top + down, left : left + across] = part
    return Overview(pixels, scale)
