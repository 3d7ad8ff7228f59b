"""Reading packs: any bag of a cohort in a fraction of a millisecond, by slide id.

Nothing stays open between reads, so a pack can be forked, pickled and shared freely. Each bag is mapped
privately: its memory is the page cache, it is given back with the array, and writing to the array changes
neither the file nor what others read.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.data.bags.bag import Bag, check_values
from pams_mil.data.bags.pack_format import INDEX, PackEntry, Place, decode_index, read_shard
from pams_mil.data.manifest.manifest import SlideRecord
from pams_mil.digests import digest
from pams_mil.errors import BagError, MissingBagError, nearest


def is_pack(path: Path | str) -> bool:
    """Whether a finished pack lies at a path."""
    return (Path(path) / INDEX).is_file()


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
        return slide_id in self._places or slide_id in self._whole()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def read(self, record: SlideRecord | str, *, verify: bool = True) -> Bag:
        """A slide's bag, by record or slide id; its bytes and values are checked unless told not to."""
        slide_id = record if isinstance(record, str) else record.slide_id
        path, entry = self._place(slide_id)
        arrays = mapped(path, entry)
        if verify and checksum_of(arrays) != entry.checksum:
            raise BagError(f"Slide {slide_id!r} is damaged in {path}: its checksum differs. Pack the cohort again.")
        features, coords = arrays[0], arrays[1] if len(arrays) > 1 else None
        um = entry.coords_unit == "um"
        bag = Bag(features, None if um else coords, entry.info, coords if um else None)
        if verify:
            check_values(bag, f"Slide {slide_id!r} of {self.path}")
        return bag

    def fingerprint(self, record: SlideRecord) -> str:
        """Shape, number type and checksum of the slide's bag, as its shard states them."""
        entry = self.entry(record.slide_id)
        return digest([entry.features.shape, entry.features.dtype, entry.checksum])

    def entry(self, slide_id: str) -> PackEntry:
        """What the pack knows of a slide without reading it."""
        return self._place(slide_id)[1]

    def _place(self, slide_id: str) -> tuple[Path, PackEntry]:
        try:
            return self._places[slide_id]
        except KeyError:
            self._whole()  # a damaged shard may have held it
            hint = nearest(slide_id, list(self._places)[:5000])
            raise MissingBagError(
                f"Slide {slide_id!r} is not in the pack {self.path}.{hint} Pack the cohort again if slides were added."
            ) from None

    @cached_property
    def _index(self) -> dict[str, Any]:
        index = self.path / INDEX
        return decode_index(index.read_text("utf-8", errors="replace"), index)

    def _whole(self) -> dict[str, tuple[Path, PackEntry]]:
        """Where all slides are, unless a shard cannot be read: nobody knows which slides it held."""
        if self._shards[1]:
            raise BagError("\n".join(self._shards[1]))
        return self._places

    @property
    def _places(self) -> dict[str, tuple[Path, PackEntry]]:
        return self._shards[0]

    @cached_property
    def _shards(self) -> tuple[dict[str, tuple[Path, PackEntry]], list[str]]:
        """Where the slides of sound shards are, and what is wrong with the other shards."""
        places: dict[str, tuple[Path, PackEntry]] = {}
        damaged: list[str] = []
        for name, size, checksum in self._index["shards"]:
            path = self.path / name
            try:
                shard = read_shard(path)
                if shard.checksum != checksum or path.stat().st_size != size:
                    raise BagError(f"{path} is not the shard that {self.path / INDEX} was written for. Pack again.")
            except BagError as error:
                damaged.append(str(error))
                continue
            for entry in shard.entries:
                places[entry.slide_id] = (path, entry)
        return places, damaged


def checksum_of(arrays: Iterable[Any]) -> int:
    """Of the bytes of the features, then of those of the coordinates."""
    return reduce(lambda before, array: zlib.crc32(array.data.cast("B"), before), arrays, 0)


def mapped(path: Path, entry: PackEntry) -> list[Any]:
    """The arrays of a bag, each a mapping of its own part of the file: pages are read when they are looked at."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            # Looking at a page past the end of the file would kill the process (SIGBUS).
            if os.fstat(descriptor).st_size < entry.end:
                raise BagError(f"{path} was cut short after it was packed. Pack the cohort again.")
            return [_map(descriptor, place) for place in (entry.features, entry.coords) if place is not None]
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BagError(f"Slide {entry.slide_id!r} cannot be read from {path}: {error}.") from error


def _map(descriptor: int, place: Place) -> Any:
    # Mappings begin at multiples of a page; the bytes before the tensor are skipped again in the array.
    skipped = place.offset % mmap.ALLOCATIONGRANULARITY
    start = place.offset - skipped
    # Pages that are written to become a copy of this array's own. The mapping outlives its descriptor.
    pages = mmap.mmap(descriptor, place.end - start, access=mmap.ACCESS_COPY, offset=start)
    if hasattr(pages, "madvise"):
        pages.madvise(mmap.MADV_WILLNEED)
    return np.frombuffer(pages, place.dtype, place.shape[0] * place.shape[1], skipped).reshape(place.shape)
