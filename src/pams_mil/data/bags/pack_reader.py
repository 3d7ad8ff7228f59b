"""Packs: the bags of a cohort in a few safetensors files, any of them read by slide id, every byte checksummed.

    cohort.pack/
      shard-00000.safetensors    tensors `<name>.features` [n, d] and `<name>.coords` [n, 2] of some bags; the header's
                                 metadata says under `pams` which slides they are and how they were computed
      ...
      pack.json                  the shards with their sizes and checksums; written last

Any tool that reads safetensors opens a shard; the name of a bag is its slide id, made safe as a file name would be. A
folder without `pack.json` is not a pack. Open shards are left behind when a pack is pickled.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag, BagInfo, Fingerprint, check_values, content_mark
from pams_mil.data.manifest.manifest import SlideRecord
from pams_mil.digests import digest, sealed, unsealed
from pams_mil.errors import BagError, MissingBagError

FORMAT, SHARD_FORMAT, VERSION = "pams-pack", "pams-shard", 3
INDEX = "pack.json"
METADATA = "pams"


@dataclass(frozen=True)
class BagNote:
    """What a shard says of a bag beside its tensors."""

    slide_id: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    coords_unit: str  # "px0", "um" or "" where the bag has no coordinates
    info: int  # position in the shard's list of infos
    checksum: int  # of the features' bytes, then those of the coordinates
    source: int  # fingerprint of the file it was packed from


class Shard:
    """One file of a pack: what its metadata says is read at once, a bag when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # The mapping stays open; the tensors are copied out of it.
            file: Any = safe_open(path, "np")
            self._file, text = file, file.metadata()[METADATA]
            body = unsealed(json.loads(text), SHARD_FORMAT, VERSION)
            self.size = path.stat().st_size
            self.infos = [BagInfo.from_json(info) for info in body["infos"]]
            notes = [BagNote(**{**note, "shape": tuple(note["shape"])}) for note in body["bags"]]
            self.notes = {note.slide_id: note for note in notes}
        except (SafetensorError, OSError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise BagError(f"{path} cannot be read as a shard of a pack: {error}. Pack the cohort again.") from error
        self.checksum = zlib.crc32(text.encode())

    def arrays(self, slide_id: str) -> list[AnyArray]:
        """Features and, if the bag has them, coordinates of a slide."""
        note = self.notes[slide_id]
        keys = [f"{note.name}.features", *([f"{note.name}.coords"] if note.coords_unit else [])]
        with self._reading(slide_id):
            arrays = [self._file.get_tensor(key) for key in keys]
        if (arrays[0].shape, arrays[0].dtype.str) != (note.shape, note.dtype):
            raise BagError(f"Slide {slide_id!r} is damaged in {self.path}: its shape differs. Pack the cohort again.")
        return arrays

    def mark(self, slide_id: str) -> str:
        """The `content_mark` of a slide; only its rows are read."""
        note = self.notes[slide_id]
        with self._reading(slide_id):
            return content_mark(self._file.get_slice(f"{note.name}.features"), note.shape)

    @contextmanager
    def _reading(self, slide_id: str) -> Iterator[None]:
        try:
            # Looking at a page past the end of the file would kill the process (SIGBUS).
            if self.path.stat().st_size != self.size:
                raise BagError(f"{self.path} was cut short or replaced after it was opened. Pack the cohort again.")
            yield
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise BagError(f"Slide {slide_id!r} cannot be read from {self.path}: {error}.") from error

    def is_sound(self, slide_id: str) -> bool:
        """Whether the bytes of a slide are those that were packed."""
        return checksum_of(self.arrays(slide_id)) == self.notes[slide_id].checksum


class Pack:
    """A finished pack.

    Sizes and headers are checked when it is first used, the bytes of a bag when it is read with `verify`. Slides of
    sound shards can be read although another shard is damaged; only who asks for all slides is refused then.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not is_pack(self.path):
            raise BagError(
                f"{self.path} is not a finished pack: it has no {INDEX}. Run 'pams pack' again to make or complete it."
            )

    def __len__(self) -> int:
        return len(self._whole())

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __contains__(self, slide_id: object) -> bool:
        return slide_id in self._shards[0] or slide_id in self._whole()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def read(self, record: SlideRecord | str, *, verify: bool = True) -> Bag:
        """A slide's bag, by record or slide id; its bytes and values are checked unless told not to."""
        slide_id = record if isinstance(record, str) else record.slide_id
        shard = self._shard(slide_id)
        note = shard.notes[slide_id]
        arrays = shard.arrays(slide_id)
        if verify and checksum_of(arrays) != note.checksum:
            raise BagError(
                f"Slide {slide_id!r} is damaged in {shard.path}: its checksum differs. Pack the cohort again."
            )
        coords = {f"coords_{note.coords_unit}": arrays[-1]} if note.coords_unit else {}
        bag = Bag(arrays[0], info=shard.infos[note.info], **coords)
        if verify:
            check_values(bag, f"Slide {slide_id!r} of {self.path}")
        return bag

    def fingerprint(self, record: SlideRecord) -> Fingerprint:
        """A few rows; and shape, number type and checksum of the slide's bag, as its shard states them."""
        return Fingerprint(self._shard(record.slide_id).mark(record.slide_id), self.identity(record))

    def identity(self, record: SlideRecord) -> str:
        """Shape, number type and checksum of the whole bag, as its shard states them."""
        note = self._shard(record.slide_id).notes[record.slide_id]
        return digest([note.shape, note.dtype, note.checksum])

    def _shard(self, slide_id: str) -> Shard:
        try:
            return self._shards[0][slide_id]
        except KeyError:
            self._whole()  # a damaged shard may have held it
            raise MissingBagError(
                f"Slide {slide_id!r} is not in the pack {self.path}. Pack the cohort again if slides were added."
            ) from None

    def _whole(self) -> dict[str, Shard]:
        """The shard of every slide, unless one cannot be read: nobody knows which slides it held."""
        shards, damaged = self._shards
        if damaged:
            raise BagError("\n".join(damaged))
        return shards

    @cached_property
    def _shards(self) -> tuple[dict[str, Shard], list[str]]:
        """The shard of every slide in sound shards, and what is wrong with the other shards."""
        shards: dict[str, Shard] = {}
        damaged: list[str] = []
        for name, size, checksum in read_index(self.path / INDEX)["shards"]:
            try:
                shard = Shard(self.path / name)
                if (shard.size, shard.checksum) != (size, checksum):
                    raise BagError(
                        f"{shard.path} is not the shard that {self.path / INDEX} was written for. Pack again."
                    )
            except BagError as error:
                damaged.append(str(error))
                continue
            shards.update(dict.fromkeys(shard.notes, shard))
        return shards, damaged


def is_pack(path: Path | str) -> bool:
    """Whether a finished pack lies at a path."""
    return (Path(path) / INDEX).is_file()


def checksum_of(arrays: Iterable[AnyArray]) -> int:
    """Of the bytes of the features, then of those of the coordinates."""
    return reduce(lambda before, array: zlib.crc32(array.data.cast("B"), before), arrays, 0)


def encode_notes(notes: Iterable[BagNote], infos: Iterable[BagInfo]) -> dict[str, str]:
    """The metadata of a shard."""
    content = {"bags": [asdict(note) for note in notes], "infos": [info.to_json() for info in infos]}
    return {METADATA: json.dumps(sealed(content, SHARD_FORMAT, VERSION))}


def encode_index(dtype: str, shards: Iterable[Shard]) -> dict[str, Any]:
    """The index of a pack."""
    content = [(shard.path.name, shard.size, shard.checksum) for shard in shards]
    return sealed({"dtype": dtype, "shards": content}, FORMAT, VERSION)


def read_index(path: Path) -> dict[str, Any]:
    """The index, refused if anything in it changed."""
    try:
        return unsealed(json.loads(path.read_bytes()), FORMAT, VERSION)
    except (OSError, ValueError, RecursionError) as error:
        raise BagError(f"{path} cannot be used: {error}. Pack the cohort again.") from error
