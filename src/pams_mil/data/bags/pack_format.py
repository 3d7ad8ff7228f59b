"""The layout of a pack: a folder of safetensors shards and an index, read by memory mapping, every byte checksummed.

    cohort.pack/
      shard-00000.safetensors    tensors `<name>.features` [n, d] and `<name>.coords` [n, 2] of some bags; the header's
                                 metadata says under `pams` which slides they are and how they were made
      ...
      pack.json                  the shards with their sizes and header checksums; written last

Any tool that reads safetensors opens a shard; the name of a bag is its slide id, made safe as a file name would be. A
folder without `pack.json` is not a pack. Shards are complete by themselves, so packing can stop anywhere and continue
later.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.data.bags.bag import BagInfo
from pams_mil.errors import BagError

VERSION = 2
INDEX = "pack.json"
METADATA = "pams"
_MOST_HEADER = 100_000_000  # the limit of the safetensors library
_DTYPES = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8",
    "I16": "<i2", "I32": "<i4", "I64": "<i8", "U16": "<u2", "U32": "<u4", "U64": "<u8",
}  # fmt: skip


@dataclass(frozen=True)
class BagNote:
    """What the metadata says of a bag beside its tensors: slide, name, unit of coordinates, info, checksum, source."""

    slide_id: str
    name: str
    coords_unit: str  # "px0", "um" or "" where the bag has no coordinates
    info: int  # position in the shard's list of infos
    checksum: int  # of the features' bytes, then those of the coordinates
    source: int  # fingerprint of the file it was packed from


@dataclass(frozen=True)
class Place:
    """Where one tensor lies in its file."""

    offset: int
    shape: tuple[int, int]
    dtype: str

    @property
    def end(self) -> int:
        """End offset (exclusive)."""
        return self.offset + self.shape[0] * self.shape[1] * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class PackEntry:
    """One bag of a pack: what is known of it, and where its numbers lie."""

    slide_id: str
    features: Place
    coords: Place | None
    coords_unit: str
    info: BagInfo
    checksum: int
    source: int

    @property
    def end(self) -> int:
        """End offset of the bag (exclusive)."""
        return max(self.features.end, 0 if self.coords is None else self.coords.end)


@dataclass(frozen=True)
class Shard:
    """What a shard holds, and the checksum of its header."""

    entries: tuple[PackEntry, ...]
    checksum: int


def encode_notes(notes: list[BagNote], infos: list[BagInfo]) -> dict[str, str]:
    """The metadata of a shard, with a checksum of its own."""
    body = json.dumps({"bags": [asdict(note) for note in notes], "infos": [info.to_json() for info in infos]})
    return {METADATA: json.dumps({"version": VERSION, "checksum": zlib.crc32(body.encode()), "body": body})}


def read_shard(path: Path) -> Shard:
    """The header of a shard; anything but an undamaged one is a `BagError`."""
    try:
        with path.open("rb") as file:
            # safetensors: eight bytes with the length of the JSON header, the header, then the tensors.
            length = int.from_bytes(file.read(8), "little")
            if length > min(_MOST_HEADER, path.stat().st_size):
                raise BagError(
                    f"{path} is not a complete shard of a pack: truncated or damaged. Pack the cohort again."
                )
            header = file.read(length)
        entries = _entries(json.loads(header), 8 + length, path.stat().st_size)
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise BagError(f"{path} cannot be read as a shard of a pack: {error}. Pack the cohort again.") from error
    return Shard(entries, zlib.crc32(header))


def _entries(header: dict[str, Any], start: int, size: int) -> tuple[PackEntry, ...]:
    outer = json.loads(header["__metadata__"][METADATA])
    if zlib.crc32(outer["body"].encode()) != outer["checksum"]:
        raise ValueError("the checksum of its metadata does not match")
    body = json.loads(outer["body"])
    infos = [BagInfo.from_json(info) for info in body["infos"]]
    entries = []
    for note in (BagNote(**content) for content in body["bags"]):
        coords = _place(header[f"{note.name}.coords"], start) if note.coords_unit else None
        features = _place(header[f"{note.name}.features"], start)
        entry = PackEntry(
            note.slide_id, features, coords, note.coords_unit, infos[note.info], note.checksum, note.source
        )
        if entry.end > size:
            raise ValueError(f"it was cut short before the end of slide {note.slide_id!r}")
        entries.append(entry)
    return tuple(entries)


def _place(tensor: dict[str, Any], start: int) -> Place:
    rows, width = tensor["shape"]
    place = Place(start + tensor["data_offsets"][0], (int(rows), int(width)), _DTYPES[tensor["dtype"]])
    # Shape and type give the size once more, and must agree with it.
    if place.end != start + tensor["data_offsets"][1]:
        raise ValueError("a tensor's shape and size contradict each other")
    return place


def encode_index(content: dict[str, Any]) -> str:
    """The index as JSON that carries its own checksum."""
    # The body is kept as text inside of the outer JSON, so that the checksum is of the very bytes that were written.
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
    if content.get("version") != VERSION:
        raise BagError(f"{path} has pack version {content.get('version')!r}; this PAMS reads {VERSION}. Pack again.")
    return content
