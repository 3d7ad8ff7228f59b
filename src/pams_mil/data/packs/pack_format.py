"""The layout of a pack: a folder of segments and an index, read by memory mapping, every byte under a checksum.

    cohort.pack/
      segment-00000.bin    bags one after another: features [n, d], then coordinates [n, 2], plain little-endian
                           rows; then a footer (deflated JSON: one entry per bag) and a trailer of 24 bytes
      ...
      pack.json            the segments with their sizes and footer checksums; written last

A folder without `pack.json` is not a pack. Segments are complete by themselves, so packing can stop anywhere
and continue later.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.data.bags.bag import BagInfo
from pams_mil.errors import BagError

VERSION = 1
INDEX = "pack.json"
ALIGNMENT = 16
_MAGIC = b"PAMSPK1\n"
_TRAILER = struct.Struct("<8sQII")  # magic, footer length, footer checksum, checksum of the three before
_MOST_FOOTER = 1 << 30
_DTYPES = frozenset({"<f2", "<f4", "<f8", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8"})


@dataclass(frozen=True)
class PackEntry:
    """Where one bag lies in its segment, what it is made of, and the checksum of its bytes."""

    slide_id: str
    offset: int
    rows: int
    width: int
    dtype: str
    coords_dtype: str  # "" where the bag has no coordinates
    coords_unit: str  # "px0", "um" or ""
    info: int  # position in the segment's list of infos
    checksum: int
    source: int  # fingerprint of the file it was packed from

    @property
    def features_bytes(self) -> int:
        """Bytes of the features."""
        return self.rows * self.width * np.dtype(self.dtype).itemsize

    @property
    def coords_start(self) -> int:
        """Where the coordinates begin, counted from the bag's offset."""
        return padded(self.features_bytes, 8)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole bag."""
        if not self.coords_dtype:
            return self.features_bytes
        return self.coords_start + self.rows * 2 * np.dtype(self.coords_dtype).itemsize


@dataclass(frozen=True)
class Footer:
    """What a segment holds: the bags, and the different infos they refer to."""

    entries: tuple[PackEntry, ...]
    infos: tuple[BagInfo, ...]


def padded(size: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of the alignment.

    >>> padded(0), padded(1), padded(16)
    (0, 16, 16)
    """
    return -(-size // alignment) * alignment


def encode_footer(footer: Footer) -> bytes:
    """Footer and trailer as they end a segment."""
    content = {"entries": [astuple(entry) for entry in footer.entries], "infos": [i.to_json() for i in footer.infos]}
    packed = zlib.compress(json.dumps(content, separators=(",", ":")).encode())
    head = _TRAILER.pack(_MAGIC, len(packed), zlib.crc32(packed), 0)[:-4]
    return packed + head + struct.pack("<I", zlib.crc32(head))


def read_footer(path: Path) -> tuple[Footer, int]:
    """A segment's footer and its checksum; anything but an undamaged segment is a `BagError`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - _TRAILER.size))
            trailer = file.read(_TRAILER.size)
            magic, length, checksum, own = _TRAILER.unpack(trailer)
            whole = magic == _MAGIC and own == zlib.crc32(trailer[:-4]) and length <= min(_MOST_FOOTER, size)
            if not whole:
                raise BagError(f"{path} is not a complete pack segment: it is torn or damaged. Pack the cohort again.")
            file.seek(size - _TRAILER.size - length)
            packed = file.read(length)
        if zlib.crc32(packed) != checksum:
            raise BagError(f"The footer of {path} is damaged. Pack the cohort again.")
        return _decode(packed), checksum
    except (OSError, struct.error, zlib.error, ValueError, TypeError, KeyError) as error:
        raise BagError(f"{path} cannot be read as a pack segment: {error}. Pack the cohort again.") from error


def _decode(packed: bytes) -> Footer:
    content: dict[str, Any] = json.loads(zlib.decompress(packed))
    entries = tuple(PackEntry(*fields) for fields in content["entries"])
    for entry in entries:
        if entry.dtype not in _DTYPES or (entry.coords_dtype and entry.coords_dtype not in _DTYPES):
            raise ValueError(f"unknown number type of slide {entry.slide_id!r}")
    return Footer(entries, tuple(BagInfo.from_json(info) for info in content["infos"]))


def encode_index(content: dict[str, Any]) -> str:
    """The index as JSON that carries its own checksum."""
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=True)
    return json.dumps({"checksum": zlib.crc32(body.encode()), "body": body}) + "\n"


def decode_index(text: str, path: Path) -> dict[str, Any]:
    """The index, refused if a single bit of it changed."""
    try:
        outer = json.loads(text)
        body = str(outer["body"])
        if zlib.crc32(body.encode()) != outer["checksum"]:
            raise ValueError("its checksum does not match")
        content: dict[str, Any] = json.loads(body)
    except (ValueError, KeyError, TypeError) as error:
        raise BagError(f"{path} is damaged: {error}. Pack the cohort again.") from error
    if content["version"] > VERSION:
        raise BagError(
            f"{path} was written by a later PAMS (pack version {content['version']}, this one reads {VERSION}); "
            "update PAMS to read it."
        )
    return content
