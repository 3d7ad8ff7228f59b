"""Pixels at an exact physical scale: the best level is read and resampled, never a nominal magnification.

A region that starts at level-0 position p and is seen at `scale` level-0 pixels per output pixel covers, on a
level with downsample d, the real-valued interval [p / d, (p + n * scale) / d). That interval need not start or end
on a pixel; the resampling filter works on it as it is, so no position or size is ever rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from pams_mil.arrays import Pixels
from pams_mil.wsi.readers.slide_reader import PyramidLevel
from pams_mil.wsi.slide import Slide

_TOLERANCE = 1.01  # a level this much too coarse still counts: file metadata is not exact to the last digit


def best_level(levels: Sequence[PyramidLevel], scale: float) -> int:
    """The coarsest level that is at least as fine as `scale` level-0 pixels per output pixel.

    >>> pyramid = [PyramidLevel(1.0, 4000, 4000), PyramidLevel(4.0, 1000, 1000), PyramidLevel(16.0, 250, 250)]
    >>> [best_level(pyramid, scale) for scale in (0.9, 3.9, 4.0, 100.0)]
    [0, 0, 1, 2]
    """
    # Coarser than asked for would have to be enlarged: detail that the slide has would be lost.
    fine_enough = [index for index, level in enumerate(levels) if level.downsample <= scale * _TOLERANCE]
    # Asked for more than level 0 has: level 0, enlarged; Grid says how far that may go.
    return max(fine_enough, key=lambda index: levels[index].downsample, default=0)


@dataclass(frozen=True)
class Patch:
    """Pixels of a level, and where on that level their corner lies."""

    pixels: Pixels
    x: int
    y: int
    downsample: float

    def resampled(self, left_px0: float, top_px0: float, scale: float, width: int, height: int) -> Pixels:
        """RGB [height, width, 3] of a part of the patch at `scale`, starting at a level-0 position."""
        # Where the part begins, in pixels of the patch; a fraction of a pixel is kept.
        left, top = left_px0 / self.downsample - self.x, top_px0 / self.downsample - self.y
        step = scale / self.downsample
        # Nothing to resample: pixels pass unchanged, so that features of a level read as it is do not depend on Pillow.
        if step == 1.0 and left.is_integer() and top.is_integer():
            return self.pixels[int(top) : int(top) + height, int(left) : int(left) + width]
        # float error must not carry the box past the image, which Pillow refuses
        rows, columns = self.pixels.shape[:2]
        box = (left, top, min(left + width * step, columns), min(top + height * step, rows))
        return np.asarray(self._image.resize((width, height), Image.Resampling.BILINEAR, box=box))

    @cached_property
    def _image(self) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(self.pixels))


def read_patch(
    slide: Slide, left_px0: float, top_px0: float, right_px0: float, bottom_px0: float, scale: float
) -> Patch:
    """The pixels of the best level for `scale` that cover a level-0 rectangle, with a margin for the filter."""
    index = best_level(slide.levels, scale)
    downsample = slide.levels[index].downsample
    corners = [value / downsample for value in (left_px0, top_px0, right_px0, bottom_px0)]
    # When reducing, a bilinear filter looks scale / downsample pixels to either side; without the margin, tiles would
    # have edges of their own and neighbors would not fit.
    exact = scale == downsample and all(value.is_integer() for value in corners)
    margin = 0 if exact else math.ceil(scale / downsample) + 1
    x, y = math.floor(corners[0]) - margin, math.floor(corners[1]) - margin
    width, height = math.ceil(corners[2]) + margin - x, math.ceil(corners[3]) + margin - y
    return Patch(slide.read(index, x, y, width, height), x, y, downsample)


def read_scaled(slide: Slide, left_px0: float, top_px0: float, scale: float, width: int, height: int) -> Pixels:
    """RGB [height, width, 3] at `scale` level-0 pixels per pixel, from a real-valued level-0 corner."""
    patch = read_patch(slide, left_px0, top_px0, left_px0 + width * scale, top_px0 + height * scale, scale)
    return patch.resampled(left_px0, top_px0, scale, width, height)


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
            region = read_scaled(slide, left * scale, top * scale, scale, across, down)
            pixels[top : top + down, left : left + across] = region
    return Overview(pixels, scale)
