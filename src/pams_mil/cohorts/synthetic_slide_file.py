"""Synthetic scenes as pyramidal TIFF files that OpenSlide and tiffslide open like a scanner's."""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pams_mil import atomic
from pams_mil.cohorts.synthetic_slides import Pixels, Scene, render
from pams_mil.errors import ParameterError, needs_extra

_TILE_PX = 256
_MICRONS_PER_CM = 10_000.0


def write_slide(
    path: Path | str,
    scene: Scene,
    *,
    mpp: float,
    levels: int = 3,
    compression: str = "jpeg",
    state_mpp: bool = True,
) -> None:
    """Write a scene at `mpp` microns per pixel with `levels` that halve from one to the next.

    Tiles are made one at a time and glass is compressed once, so size is limited by the disk alone. `jpeg` is what
    scanners write; `deflate` keeps every value.
    """
    if compression not in ("jpeg", "deflate"):
        raise ParameterError(f"compression is {compression!r}; expected 'jpeg' or 'deflate'.")
    with needs_extra("Writing synthetic slides", package="tifffile", extra="wsi"):
        tifffile: Any = importlib.import_module("tifffile")
    width, height = round(scene.width_um / mpp), round(scene.height_um / mpp)
    kind = {"photometric": "ycbcr", "subsampling": (2, 2)} if compression == "jpeg" else {"photometric": "rgb"}
    with atomic.replacing(path) as part, tifffile.TiffWriter(part, bigtiff=True) as file:
        for level in range(levels):
            size = (max(1, height >> level), max(1, width >> level), 3)
            scale = 2.0**level
            per_cm = _MICRONS_PER_CM / (mpp * scale)
            resolution = {"resolution": (per_cm, per_cm), "resolutionunit": "CENTIMETER"} if state_mpp else {}
            file.write(
                _tiles(scene, mpp * scale, size, compression),
                shape=size,
                dtype=np.uint8,
                tile=(_TILE_PX, _TILE_PX),
                compression="jpeg" if compression == "jpeg" else "zlib",
                subfiletype=1 if level else 0,
                metadata=None,
                **kind,
                **resolution,
            )


def _tiles(scene: Scene, mpp: float, size: tuple[int, int, int], compression: str) -> Iterator[bytes]:
    side = _TILE_PX * mpp
    blank: bytes | None = None
    for row in range(-(-size[0] // _TILE_PX)):
        for column in range(-(-size[1] // _TILE_PX)):
            left, top = column * side, row * side
            if not scene.is_blank(left, top, left + side, top + side):
                yield _encoded(render(scene, left, top, mpp, _TILE_PX, _TILE_PX), compression)
                continue
            # Most of a slide is glass: one encoded tile serves for all of it.
            blank = blank or _encoded(render(scene, left, top, mpp, _TILE_PX, _TILE_PX), compression)
            yield blank


def _encoded(tile: Pixels, compression: str) -> bytes:
    if compression == "deflate":
        return zlib.compress(tile.tobytes(), 6)
    buffer = io.BytesIO()
    Image.fromarray(tile).save(buffer, "JPEG", quality=85, subsampling="4:2:0")
    return buffer.getvalue()
