"""Small pictures: a slide's thumbnail with its heatmap, and the tiles that say most."""

from __future__ import annotations

import numpy as np
from PIL import Image

from pams_mil.errors import BagError, SlideError
from pams_mil.view.heat import Heat
from pams_mil.view.session import Session
from pams_mil.view.shelf import THUMBNAIL_PX
from pams_mil.wsi.heatmap import encoded, overlay
from pams_mil.wsi.physical_pixels import Overview, read_scaled

PATCH_PX = 128
MOST_PATCH_PX0 = 8192.0


def tile_picture(session: Session, row: int, level: int, column: int, line: int) -> bytes | None:
    """A tile of the slide; of one without a picture, white under its heatmap; None where there is no such tile."""
    try:
        shown = session.shelf.use(row)
    except SlideError:
        # No picture: the plane is as large as the tiles of the features reach.
        box = session.pyramid(row).tile(level, column, line)
        return None if box is None else encoded(Image.new("RGB", (box.width, box.height), "white"), "JPEG")
    box = shown.pyramid.tile(level, column, line)
    return None if box is None else shown.tile(box)


def thumbnail_picture(session: Session, row: int, heat: Heat | None, call: int | None = None) -> bytes:
    """The slide at most 320 pixels long, with the heat for a call if given; without a picture, on white."""
    if session.shelf.has(row):
        overview = session.shelf.use(row).thumbnail()
    elif heat is None:
        raise BagError("There is neither a slide nor tiles to show.")
    else:
        width, height = heat.extent
        scale = max(1.0, max(width, height) / THUMBNAIL_PX)
        shape = (max(1, round(height / scale)), max(1, round(width / scale)), 3)
        overview = Overview(np.full(shape, 255, np.uint8), scale)
    pixels = overview.pixels
    if heat is not None:
        colors, shades = heat.shades(call)
        pixels = overlay(overview, heat, shades, colors=colors, opacity=0.6)
    return encoded(Image.fromarray(pixels), "JPEG")


def patch_picture(session: Session, row: int, heat: Heat, index: int) -> bytes | None:
    """One tile of the features as the slide shows it; None where there is no such tile."""
    if not 0 <= index < len(heat.coords_px0):
        return None
    if heat.tile_px0 > MOST_PATCH_PX0:
        raise BagError("The tiles of this slide are too large for small pictures.")
    x, y = heat.coords_px0[index].tolist()
    shown = session.shelf.use(row)
    return shown.jpeg(read_scaled(shown.slide, x, y, heat.tile_px0 / PATCH_PX, PATCH_PX, PATCH_PX))
