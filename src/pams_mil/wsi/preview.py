"""A picture for the eye: the slide, the outline of the tissue found, and the tiles taken."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from pams_mil import atomic
from pams_mil.wsi.overview import Overview
from pams_mil.wsi.readers.slide_reader import Pixels
from pams_mil.wsi.tile_grid import TilePlan
from pams_mil.wsi.tissue import Mask, Tissue

_LONGEST_PX = 1600
_OUTLINE = (0, 150, 60)
_TILE = (30, 80, 220)
_DIM = 0.35


def draw_preview(overview: Overview, tissue: Tissue, plan: TilePlan) -> Pixels:
    """RGB of the overview, enlarged or reduced to a handy size; background is dimmed."""
    dimmed = np.where(tissue.mask[:, :, None], overview.pixels, overview.pixels * (1 - _DIM) + 60 * _DIM)
    dimmed[_edge(tissue.mask)] = _OUTLINE
    height, width = tissue.mask.shape
    zoom = _LONGEST_PX / max(height, width)
    image = Image.fromarray(dimmed.astype(np.uint8)).resize(
        (max(1, round(width * zoom)), max(1, round(height * zoom))), Image.Resampling.NEAREST
    )
    pen = ImageDraw.Draw(image)
    side = plan.grid.tile_px0 / overview.scale * zoom
    for x, y in (plan.coords_px0 / overview.scale * zoom).tolist():
        pen.rectangle((x, y, x + side, y + side), outline=_TILE, width=2)
    return np.asarray(image)


def write_preview(path: Path, overview: Overview, tissue: Tissue, plan: TilePlan) -> None:
    """Write the preview as PNG, atomically."""
    buffer = io.BytesIO()
    Image.fromarray(draw_preview(overview, tissue, plan)).save(buffer, "PNG")
    atomic.write_bytes(path, buffer.getvalue())


def _edge(mask: Mask) -> Mask:
    padded = np.pad(mask, 1, mode="edge")
    surrounded = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    inner: Mask = mask & ~surrounded
    return inner
