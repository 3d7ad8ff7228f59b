"""Marked regions and tile values as GeoJSON: drag the file onto the slide in QuPath."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib

from pams_mil.errors import BagError
from pams_mil.view.session import Session
from pams_mil.wsi.heatmap import Heatmap, Region, geojson_pieces


def slide_geojson(session: Session, row: int) -> Iterator[str]:
    """Regions of a slide as annotations and, unless they are hidden or missing, its tiles with their values."""
    slide = session.cases.slide_ids[row]
    regions = [_region(session, event) for event in session.journal.regions.get(slide, [])]
    try:
        heat = None if session.hides(row) else session.heat.of(slide)
    except BagError:
        heat = None
    if heat is None:
        return geojson_pieces(None, {}, regions)
    values = {name: values for name, (kind, values) in heat.layers.items() if kind != "flat"}
    return geojson_pieces(Heatmap(heat.coords_px0, heat.tile_px0), values, regions)


def _region(session: Session, event: dict[str, Any]) -> Region:
    names = session.cases.hierarchy.names()
    x, y, width, height = event["box"]
    return Region(x, y, width, height, event["class"], class_color(names.index(event["class"]), len(names)))


def class_color(index: int, classes: int) -> tuple[int, int, int]:
    """A color from calm (least urgent) to alarming.

    >>> class_color(0, 3) != class_color(2, 3)
    True
    """
    red, green, blue, _ = matplotlib.colormaps["plasma"](0.1 + 0.75 * index / max(1, classes - 1))
    return round(255 * red), round(255 * green), round(255 * blue)
