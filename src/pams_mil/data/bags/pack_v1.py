"""Packs of version 0.1, read only: segments of plain rows with a deflated JSON footer, as that version wrote them.

segment-00000.bin    bags one after another: features [n, d], then coordinates [n, 2], little-endian; then a footer
                     (one entry per bag) and a trailer of 24 bytes
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from pams_mil.data.bags.bag import BagInfo
from pams_mil.data.bags.pack_format import PackEntry, Place, Shard
from pams_mil.errors import BagError

_MAGIC = b"PAMSPK1\n"
_TRAILER = struct.Struct("<8sQII")  # magic, footer length, footer checksum, checksum of the three before
_MOST_FOOTER = 1 << 30
_DTYPES = frozenset({"<f2", "<f4", "<f8", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8"})


def read_segment(path: Path) -> Shard:
    """What a segment holds; anything but an undamaged one is a `BagError`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - _TRAILER.size))
            trailer = file.read(_TRAILER.size)
            magic, length, checksum, own = _TRAILER.unpack(trailer)
            if magic != _MAGIC or own != zlib.crc32(trailer[:-4]) or length > min(_MOST_FOOTER, size):
                raise BagError(f"{path} is not a complete pack segment: it is torn or damaged. Pack the cohort again.")
            # The footer ends where the trailer begins; that is all that says where it starts.
            file.seek(size - _TRAILER.size - length)
            packed = file.read(length)
        if zlib.crc32(packed) != checksum:
            raise BagError(f"The footer of {path} is damaged. Pack the cohort again.")
        content: dict[str, Any] = json.loads(zlib.decompress(packed))
        infos = [BagInfo.from_json(info) for info in content["infos"]]
        return Shard(tuple(_entry(fields, infos) for fields in content["entries"]), checksum)
    except (OSError, struct.error, zlib.error, ValueError, TypeError, KeyError, IndexError) as error:
        raise BagError(f"{path} cannot be read as a pack segment: {error}. Pack the cohort again.") from error


def _entry(fields: list[Any], infos: list[BagInfo]) -> PackEntry:
    slide_id, offset, rows, width, dtype, coords_dtype, unit, info, checksum, source = fields
    if dtype not in _DTYPES or (coords_dtype and coords_dtype not in _DTYPES):
        raise ValueError(f"unknown number type of slide {slide_id!r}")
    features = Place(offset, (rows, width), dtype)
    behind = features.end - offset
    start = offset + behind + -behind % 8  # coordinates begin at the next multiple of eight bytes
    coords = Place(start, (rows, 2), coords_dtype) if coords_dtype else None
    return PackEntry(slide_id, features, coords, unit, infos[info], checksum, source)


def checksum_of(arrays: list[Any]) -> int:
    """Of the features' bytes, the gap up to a multiple of eight, and the coordinates' bytes."""
    checksum = zlib.crc32(arrays[0].data.cast("B"))
    if len(arrays) > 1:
        checksum = zlib.crc32(bytes(-arrays[0].nbytes % 8), checksum)
        checksum = zlib.crc32(arrays[1].data.cast("B"), checksum)
    return checksum
