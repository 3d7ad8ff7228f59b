"""Values of tiles drawn over their slide, and written for QuPath.

Everything happens on an overview of bounded size, so memory does not depend on the slide.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image

from pams_mil import atomic
from pams_mil.arrays import AnyArray, Pixels
from pams_mil.errors import ParameterError
from pams_mil.wsi.physical_pixels import Overview

_SPACE = uuid.UUID("5f1f2a52-6a3c-5bb0-9a55-4f9e9f6c2b11")  # makes the ids of QuPath objects stable from run to run


@dataclass(frozen=True)
class Heatmap:
    """Where the tiles of a slide lie: level-0 corners [n, 2] and their side in level-0 pixels."""

    coords_px0: AnyArray
    tile_px0: float

    def __post_init__(self) -> None:
        if self.coords_px0.ndim != 2 or self.coords_px0.shape[1] != 2 or not self.tile_px0 > 0:
            raise ParameterError(
                f"A heatmap needs corners [n, 2] and a positive tile side; found {list(self.coords_px0.shape)} "
                f"and {self.tile_px0}."
            )


def paint(tiles: Heatmap, values: AnyArray, height: int, width: int, scale: float) -> npt.NDArray[np.float32]:
    """Values [n] as a picture [height, width]; NaN where no tile lies. `scale` is level-0 pixels per pixel.

    >>> two = Heatmap(np.array([[0, 0], [8, 0]]), 8.0)
    >>> paint(two, np.array([1.0, 5.0]), 1, 3, scale=8.0).tolist()
    [[1.0, 5.0, nan]]
    """
    if values.shape != (len(tiles.coords_px0),):
        raise ParameterError(f"Expected one value per tile, {len(tiles.coords_px0)}; found shape {list(values.shape)}.")
    picture = np.full((height, width), np.nan, np.float32)
    starts = np.rint(tiles.coords_px0 / scale).astype(np.int64)
    # Edges are rounded, not sizes, so that neighbors meet without gaps; a tile is at least one pixel.
    stops = np.maximum(np.rint((tiles.coords_px0 + tiles.tile_px0) / scale).astype(np.int64), starts + 1)
    starts, stops = np.maximum(starts, 0), np.maximum(stops, 0)  # a negative index would count from the other edge
    for (left, top), (right, bottom), value in zip(starts.tolist(), stops.tolist(), values.tolist(), strict=True):
        picture[top:bottom, left:right] = value
    return picture


def ranked(values: AnyArray) -> npt.NDArray[np.float64]:
    """Values as their share of smaller ones, in [0, 1]: attention spans orders of magnitude, ranks show all of it.

    >>> ranked(np.array([0.001, 0.9, 0.001, 0.02])).tolist()
    [0.0, 1.0, 0.0, 0.6666666666666666]
    """
    if len(values) == 1:
        return np.ones(1)
    # Left: equal values get the same rank, that of the lowest of them.
    smaller = np.searchsorted(np.sort(values), values, side="left")
    shares: npt.NDArray[np.float64] = smaller / (len(values) - 1)
    return shares


def overlay(overview: Overview, tiles: Heatmap, shades: AnyArray, *, colors: str, opacity: float = 0.5) -> Pixels:
    """The overview with `shades` in [0, 1] laid over it in a colormap of matplotlib."""
    height, width = overview.pixels.shape[:2]
    picture = paint(tiles, shades, height, width, overview.scale)
    covered = np.isfinite(picture)
    colored = matplotlib.colormaps[colors](np.where(covered, np.clip(picture, 0, 1), 0.0))[:, :, :3] * 255.0
    mixed = np.where(covered[:, :, None], (1 - opacity) * overview.pixels + opacity * colored, overview.pixels)
    return np.rint(mixed).astype(np.uint8)


def symmetric(values: AnyArray) -> npt.NDArray[np.float64]:
    """Signed values in [0, 1] with zero at one half: evidence for a class above, against it below.

    >>> symmetric(np.array([-2.0, 0.0, 1.0])).tolist()
    [0.0, 0.5, 0.75]
    """
    reach = float(np.abs(values).max()) if len(values) else 0.0
    shares: npt.NDArray[np.float64] = (
        0.5 + values.astype(np.float64) / (2 * reach) if reach else np.full(len(values), 0.5)
    )
    return shares


def encoded(image: Image.Image, kind: str, *, quality: int = 80) -> bytes:
    """A picture as the bytes of a file, JPEG or PNG."""
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=quality)
    return buffer.getvalue()


def write_png(path: Path | str, pixels: Pixels) -> None:
    """Write a picture as PNG, atomically."""
    atomic.write_bytes(path, encoded(Image.fromarray(pixels), "PNG"))


@dataclass(frozen=True)
class Region:
    """A rectangle in level-0 pixels that a reader gave a class, with its color (red, green, blue)."""

    x: float
    y: float
    width: float
    height: float
    label: str
    color: tuple[int, int, int]


def write_geojson(path: Path | str, tiles: Heatmap, measurements: Mapping[str, AnyArray]) -> None:
    """Write tiles as QuPath detections with named measurements, one object at a time."""
    pieces = geojson_pieces(tiles, measurements)
    with atomic.replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(pieces)


def geojson_pieces(
    tiles: Heatmap | None, measurements: Mapping[str, AnyArray], regions: Sequence[Region] = ()
) -> Iterator[str]:
    """The text of the file piece by piece; what does not fit is refused before the first piece."""
    count = 0 if tiles is None else len(tiles.coords_px0)
    for name, values in measurements.items():
        if values.shape != (count,):
            raise ParameterError(f"The measurement {name!r} has shape {list(values.shape)}; expected one per tile.")
        # JSON has no NaN.
        if not np.isfinite(values).all():
            raise ParameterError(f"The measurement {name!r} has values that are not finite numbers.")
    return _pieces(tiles, measurements, regions)


def _pieces(tiles: Heatmap | None, measurements: Mapping[str, AnyArray], regions: Sequence[Region]) -> Iterator[str]:
    yield '{"type": "FeatureCollection", "features": ['
    for number, one in enumerate(_features(tiles, measurements, regions)):
        yield (",\n" if number else "\n") + json.dumps(one, allow_nan=False)
    yield "\n]}\n"


def _features(
    tiles: Heatmap | None, measurements: Mapping[str, AnyArray], regions: Sequence[Region]
) -> Iterator[dict[str, Any]]:
    for index, one in enumerate(regions):
        name = f"region {index} {one.x} {one.y} {one.label}"
        about = {"objectType": "annotation", "classification": {"name": one.label, "color": list(one.color)}}
        yield _rectangle(name, one.x, one.y, one.width, one.height, about)
    if tiles is not None:
        for index, (x, y) in enumerate(tiles.coords_px0.tolist()):
            values = {name: float(column[index]) for name, column in measurements.items()}
            about = {"objectType": "tile", "measurements": values}
            yield _rectangle(f"{index} {x} {y}", x, y, tiles.tile_px0, tiles.tile_px0, about)


def _rectangle(name: str, x: float, y: float, width: float, height: float, about: dict[str, Any]) -> dict[str, Any]:
    corners = [[x, y], [x + width, y], [x + width, y + height], [x, y + height], [x, y]]
    geometry = {"type": "Polygon", "coordinates": [corners]}
    return {"type": "Feature", "id": str(uuid.uuid5(_SPACE, name)), "geometry": geometry, "properties": about}
