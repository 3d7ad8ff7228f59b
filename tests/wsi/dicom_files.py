"""Writes small DICOM slides: only the elements that readers ask for, in explicit little-endian order."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image

SLIDE_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
JPEG = "1.2.840.10008.1.2.4.50"
HIGH_THROUGHPUT = "1.2.840.10008.1.2.4.203"
TILE = 64


def element(tag: int, kind: str, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        value = struct.pack("<I" if kind == "UL" else "<H", value)
    elif isinstance(value, str):
        value = value.encode()
    value += (b"\0" if kind in ("UI", "OB") else b" ") * (len(value) % 2)
    head = struct.pack("<HH", tag >> 16, tag & 0xFFFF) + kind.encode()
    if kind in ("OB", "SQ"):
        return head + struct.pack("<HI", 0, len(value)) + value
    return head + struct.pack("<H", len(value)) + value


def sequence(tag: int, *items: bytes, marked: bool = False) -> bytes:
    """A sequence with its length, or one whose end and whose items' ends are marked instead."""
    if not marked:
        return element(tag, "SQ", b"".join(struct.pack("<HHI", 0xFFFE, 0xE000, len(item)) + item for item in items))
    end = struct.pack("<HHI", 0xFFFE, 0xE00D, 0)
    inside = b"".join(struct.pack("<HHI", 0xFFFE, 0xE000, 0xFFFFFFFF) + item + end for item in items)
    head = struct.pack("<HH2sHI", tag >> 16, tag & 0xFFFF, b"SQ", 0, 0xFFFFFFFF)
    return head + inside + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)


def write_instance(
    path: Path,
    pixels: np.ndarray,
    *,
    mpp: float,
    series: str = "1.2.3.4",
    instance: str = "1.2.3.4.1",
    syntax: str = JPEG,
    sop_class: str = SLIDE_CLASS,
    image_type: str = "ORIGINAL\\PRIMARY\\VOLUME\\NONE",
) -> Path:
    """One level of a slide, tiled and compressed as JPEG, whatever transfer syntax it claims to be in."""
    height, width = pixels.shape[:2]
    frames = [
        _jpeg(pixels[top : top + TILE, left : left + TILE])
        for top in range(0, height, TILE)
        for left in range(0, width, TILE)
    ]
    meta = b"".join((
        element(0x00020001, "OB", b"\0\1"), element(0x00020002, "UI", sop_class), element(0x00020003, "UI", instance),
        element(0x00020010, "UI", syntax), element(0x00020012, "UI", "1.2.3"),
    ))  # fmt: skip
    spacing = element(0x00280030, "DS", f"{mpp / 1000:.6f}\\{mpp / 1000:.6f}")
    body = b"".join((
        element(0x00080008, "CS", image_type), element(0x00080016, "UI", sop_class),
        element(0x00080018, "UI", instance), element(0x00080060, "CS", "SM"),
        sequence(0x00081115, element(0x0020000E, "UI", "9.9.9"), marked=True),  # another series, inside a sequence
        element(0x0020000D, "UI", "1.2.3"), element(0x0020000E, "UI", series), element(0x00209311, "CS", "TILED_FULL"),
        element(0x00280002, "US", 3), element(0x00280004, "CS", "YBR_FULL_422"), element(0x00280006, "US", 0),
        element(0x00280008, "IS", str(len(frames))), element(0x00280010, "US", TILE), element(0x00280011, "US", TILE),
        element(0x00280100, "US", 8), element(0x00280101, "US", 8), element(0x00280102, "US", 7),
        element(0x00280103, "US", 0), element(0x00480006, "UL", width), element(0x00480007, "UL", height),
        sequence(0x52009229, sequence(0x00289110, spacing)),
    ))  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(128) + b"DICM" + element(0x00020000, "UL", len(meta)) + meta + body + _encapsulated(frames))
    return path


def write_series(folder: Path, *, mpp: float = 1.0, side: int = 256, levels: int = 3, **options: str) -> list[Path]:
    """A square slide with a dark square of tissue, one file per level."""
    full = np.full((side, side, 3), 245, np.uint8)
    full[side // 4 : -side // 4, side // 4 : -side // 4] = (150, 60, 130)
    made = []
    for level in range(levels):
        step = 2**level
        kind = "ORIGINAL\\PRIMARY\\VOLUME\\NONE" if level == 0 else "DERIVED\\PRIMARY\\VOLUME\\RESAMPLED"
        name = f"level-{level}.dcm"
        given = {"instance": f"{options.get('series', '1.2.3.4')}.{level + 1}", "image_type": kind, **options}
        made.append(write_instance(folder / name, full[::step, ::step], mpp=mpp * step, **given))
    return made


def _jpeg(tile: np.ndarray) -> bytes:
    whole = np.full((TILE, TILE, 3), 255, np.uint8)
    whole[: tile.shape[0], : tile.shape[1]] = tile
    buffer = io.BytesIO()
    Image.fromarray(whole).save(buffer, "JPEG", quality=90)
    return buffer.getvalue() + b"\0" * (buffer.tell() % 2)


def _encapsulated(frames: list[bytes]) -> bytes:
    offsets, place = [], 0
    for frame in frames:
        offsets.append(place)
        place += 8 + len(frame)
    table = struct.pack(f"<{len(offsets)}I", *offsets)
    items = b"".join(struct.pack("<HHI", 0xFFFE, 0xE000, len(item)) + item for item in (table, *frames))
    head = struct.pack("<HH2sHI", 0x7FE0, 0x0010, b"OB", 0, 0xFFFFFFFF)
    return head + items + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)
