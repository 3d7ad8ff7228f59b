"""Small synthetic slides with planted lesions, so that the whole path from slide to heatmap can be tried and scored.

A scene is defined in microns, not pixels: tissue is a set of wavy ellipses sprinkled with nuclei, a lesion a disc in
which nuclei are larger, denser and darker. It can be drawn at any resolution and position, and is the same place
every time, which is what makes it a test of physical scale.
"""

from __future__ import annotations

import importlib
import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pams_mil import atomic
from pams_mil.arrays import Pixels
from pams_mil.errors import ParameterError, needs_extra
from pams_mil.seeding import numpy_generator

Field = npt.NDArray[np.float32]

_GLASS = (243, 242, 244)
_STROMA = (226, 172, 203)
_NUCLEUS = (104, 66, 146)
_LESION_STROMA = ((214, 150, 196), (196, 140, 205), (176, 128, 190))
_LESION_NUCLEUS = ((88, 44, 128), (70, 30, 112), (48, 20, 92))
_PITCH_UM, _RADIUS_UM = 14.0, 3.2
_LESION_PITCH_UM, _LESION_RADIUS_UM = (10.0, 8.5, 7.5), (3.6, 3.7, 3.6)
KINDS = len(_LESION_NUCLEUS)
"""How many kinds of lesion there are, from mild (1) to grave."""


@dataclass(frozen=True)
class Piece:
    """A piece of tissue: an ellipse with a wavy edge, in microns."""

    x: float
    y: float
    radius_x: float
    radius_y: float


@dataclass(frozen=True)
class Lesion:
    """A disc of lesion, in microns; `kind` runs from 1, mild, to `KINDS`, grave."""

    x: float
    y: float
    radius: float
    kind: int


@dataclass(frozen=True)
class Scene:
    """What lies on a glass slide of `width_um` x `height_um` microns."""

    width_um: float
    height_um: float
    tissue: tuple[Piece, ...]
    lesions: tuple[Lesion, ...] = ()
    seed: int = 0

    @classmethod
    def random(cls, seed: int, *, side_um: float = 4000.0, lesion_kind: int = 0, pieces: int = 2) -> Scene:
        """A slide with `pieces` of tissue and, unless `lesion_kind` is 0, one lesion in the first of them."""
        if not 0 <= lesion_kind <= KINDS:
            raise ParameterError(f"lesion_kind is {lesion_kind}; expected 0 (none) to {KINDS}.")
        draw = numpy_generator(seed, "scene")
        strip = side_um / pieces
        tissue = tuple(
            Piece(
                x=strip * (index + 0.5) + strip * draw.uniform(-0.05, 0.05),
                y=side_um * draw.uniform(0.42, 0.58),
                radius_x=strip * draw.uniform(0.30, 0.38),
                radius_y=side_um * draw.uniform(0.28, 0.36),
            )
            for index in range(pieces)
        )
        first, angle = tissue[0], draw.uniform(0, 2 * math.pi)
        radius = 0.45 * min(first.radius_x, first.radius_y)
        x, y = first.x + 0.3 * first.radius_x * math.cos(angle), first.y + 0.3 * first.radius_y * math.sin(angle)
        lesions = (Lesion(x, y, radius, lesion_kind),) if lesion_kind else ()
        return cls(side_um, side_um, tissue, lesions, seed)

    def is_blank(self, left_um: float, top_um: float, right_um: float, bottom_um: float) -> bool:
        """Whether a rectangle surely holds nothing but glass."""
        return not any(
            piece.x - 1.3 * piece.radius_x < right_um
            and piece.x + 1.3 * piece.radius_x > left_um
            and piece.y - 1.3 * piece.radius_y < bottom_um
            and piece.y + 1.3 * piece.radius_y > top_um
            for piece in self.tissue
        )

    def lesion_share(self, corners_um: npt.NDArray[Any], tile_um: float) -> Field:
        """The share of every square tile [n] that a lesion covers, from its corners (x, y) [n, 2], by sampling."""
        steps = (np.arange(16) + 0.5) / 16 * tile_um
        x = corners_um[:, 0, None, None] + steps[None, None, :]
        y = corners_um[:, 1, None, None] + steps[None, :, None]
        inside = np.zeros((len(corners_um), 16, 16), bool)
        for lesion in self.lesions:
            inside |= (x - lesion.x) ** 2 + (y - lesion.y) ** 2 < lesion.radius**2
        share: Field = inside.mean(axis=(1, 2)).astype(np.float32)
        return share


def render(scene: Scene, left_um: float, top_um: float, mpp: float, width: int, height: int) -> Pixels:
    """RGB [height, width, 3] of a part of the scene; edges are soft over one pixel, so that scales agree."""
    # Centers of pixels, so that a scene drawn at half the scale lies in the same place.
    x = (left_um + (np.arange(width, dtype=np.float32) + 0.5) * np.float32(mpp))[None, :]
    y = (top_um + (np.arange(height, dtype=np.float32) + 0.5) * np.float32(mpp))[:, None]
    canvas = np.empty((height, width, 3), np.float32)
    # Later layers cover earlier ones: glass, stroma, nuclei, then the lesion with nuclei of its own.
    canvas[:] = _GLASS
    if scene.is_blank(left_um, top_um, left_um + width * mpp, top_um + height * mpp):
        return canvas.astype(np.uint8)
    inside = _tissue_cover(scene, x, y, mpp)
    _blend(canvas, inside, _STROMA)
    _blend(canvas, inside * _nuclei(x, y, _PITCH_UM, _RADIUS_UM, scene.seed, mpp), _NUCLEUS)
    for lesion in scene.lesions:
        distance = np.hypot(x - np.float32(lesion.x), y - np.float32(lesion.y))
        cover = _cover(lesion.radius - distance, mpp) * inside
        index = lesion.kind - 1
        _blend(canvas, cover, _LESION_STROMA[index])
        spots = _nuclei(x, y, _LESION_PITCH_UM[index], _LESION_RADIUS_UM[index], scene.seed + lesion.kind, mpp)
        _blend(canvas, cover * spots, _LESION_NUCLEUS[index])
    return np.rint(canvas).astype(np.uint8)


def _tissue_cover(scene: Scene, x: Field, y: Field, mpp: float) -> Field:
    cover: Field = np.zeros(np.broadcast_shapes(x.shape, y.shape), np.float32)
    for piece in scene.tissue:
        u, v = (x - np.float32(piece.x)) / piece.radius_x, (y - np.float32(piece.y)) / piece.radius_y
        angle = np.arctan2(v, u)
        edge = 1 + 0.08 * np.sin(3 * angle + scene.seed) + 0.05 * np.sin(7 * angle)
        depth = (edge - np.hypot(u, v)) * min(piece.radius_x, piece.radius_y)
        cover = np.maximum(cover, _cover(depth, mpp))
    return cover


def _cover(depth: Field, mpp: float) -> Field:
    """How much of a pixel a shape covers whose edge is `depth` microns away, positive inside."""
    share: Field = np.clip(depth / np.float32(mpp) + np.float32(0.5), 0.0, 1.0).astype(np.float32)
    return share


def _nuclei(x: Field, y: Field, pitch: float, radius: float, seed: int, mpp: float) -> Field:
    """One disc per square of a lattice, jittered within its square."""
    column, row = np.floor(x / pitch).astype(np.int64), np.floor(y / pitch).astype(np.int64)
    first, second = _hashed(column, row, seed), _hashed(row, column, seed + 7919)
    size = np.float32(radius) * (np.float32(0.75) + np.float32(0.25) * first)
    # The disc stays within its square, so no neighboring square has to be looked at.
    room = np.float32(pitch) - 2 * size
    center_x = column * np.float32(pitch) + size + room * second
    center_y = row * np.float32(pitch) + size + room * first
    return _cover(size - np.hypot(x - center_x, y - center_y), mpp)


def _hashed(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], seed: int) -> Field:
    # A hash of the square's position instead of a generator: any part of the scene can be drawn by itself.
    mixed = (a * 73856093) ^ (b * 19349663) ^ (seed * 83492791)
    mixed = ((mixed >> 16) ^ mixed) * 0x45D9F3B & 0xFFFFFFFF
    mixed = ((mixed >> 16) ^ mixed) * 0x45D9F3B & 0xFFFFFFFF
    share: Field = ((mixed >> 8) & 0xFFFF).astype(np.float32) / np.float32(65536.0)
    return share


def _blend(canvas: npt.NDArray[np.float32], cover: Field, color: tuple[int, int, int]) -> None:
    canvas += cover[:, :, None] * (np.array(color, np.float32) - canvas)


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
    with atomic.replacing(path) as temporary, tifffile.TiffWriter(temporary, bigtiff=True) as file:
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
