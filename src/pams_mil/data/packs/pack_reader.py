"""Reading packs: any bag of a cohort in a fraction of a millisecond, by slide id.

Nothing stays open between reads, so a pack can be forked, pickled and shared freely. Each bag is mapped
privately: its memory is the page cache, it is given back with the array, and writing to the array changes
neither the file nor what others read.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.data.bags.bag import Bag, BagInfo, check_values
from pams_mil.data.manifest.manifest import SlideRecord
from pams_mil.data.packs.pack_format import INDEX, PackEntry, decode_index, read_footer
from pams_mil.errors import BagError, nearest


def is_pack(path: Path | str) -> bool:
    """Whether a finished pack lies at a path."""
    return (Path(path) / INDEX).is_file()


class Pack:
    """A finished pack.

    Sizes and footers are checked when it is first used, the bytes of a bag when it is read with `verify`.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not is_pack(self.path):
            raise BagError(
                f"{self.path} is not a finished pack: it has no {INDEX}. Run 'pams pack' again to make or complete it."
            )

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, slide_id: object) -> bool:
        return slide_id in self._places

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def read(self, record: SlideRecord | str, *, verify: bool = True) -> Bag:
        """A slide's bag, by record or slide id; its bytes and values are checked unless told not to."""
        slide_id = record if isinstance(record, str) else record.slide_id
        segment, entry, info = self._place(slide_id)
        data = self._map(segment, entry)
        if verify and zlib.crc32(data) != entry.checksum:
            raise BagError(f"Slide {slide_id!r} is damaged in {segment}: its checksum differs. Pack the cohort again.")
        bag = self._bag(data, entry, info)
        if verify:
            check_values(bag, f"Slide {slide_id!r} of {self.path}")
        return bag

    @staticmethod
    def _bag(data: memoryview, entry: PackEntry, info: BagInfo) -> Bag:
        features = np.frombuffer(data, entry.dtype, entry.rows * entry.width).reshape(entry.rows, entry.width)
        if not entry.coords_dtype:
            return Bag(features, info=info)
        coords = np.frombuffer(data, entry.coords_dtype, entry.rows * 2, entry.coords_start).reshape(entry.rows, 2)
        if entry.coords_unit == "um":
            return Bag(features, info=info, coords_um=coords)
        return Bag(features, coords, info)

    def entry(self, slide_id: str) -> PackEntry:
        """What the pack knows of a slide without reading it."""
        return self._place(slide_id)[1]

    def _place(self, slide_id: str) -> tuple[Path, PackEntry, BagInfo]:
        try:
            return self._places[slide_id]
        except KeyError:
            hint = nearest(slide_id, list(self._places)[:5000])
            raise BagError(
                f"Slide {slide_id!r} is not in the pack {self.path}.{hint} Pack the cohort again if slides were added."
            ) from None

    @cached_property
    def _places(self) -> dict[str, tuple[Path, PackEntry, BagInfo]]:
        index = self.path / INDEX
        content = decode_index(index.read_text("utf-8", errors="replace"), index)
        places: dict[str, tuple[Path, PackEntry, BagInfo]] = {}
        for name, size, checksum in content["segments"]:
            segment = self.path / name
            footer, found = read_footer(segment)
            if found != checksum or segment.stat().st_size != size:
                raise BagError(f"{segment} is not the segment that {index} was written for. Pack the cohort again.")
            for entry in footer.entries:
                places[entry.slide_id] = (segment, entry, footer.infos[entry.info])
        return places

    def _map(self, segment: Path, entry: PackEntry) -> memoryview:
        start = entry.offset - entry.offset % mmap.ALLOCATIONGRANULARITY
        skipped = entry.offset - start
        try:
            descriptor = os.open(segment, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            try:
                if os.fstat(descriptor).st_size < entry.offset + entry.nbytes:
                    raise BagError(f"{segment} was cut short after it was packed. Pack the cohort again.")
                mapped = mmap.mmap(descriptor, skipped + entry.nbytes, access=mmap.ACCESS_COPY, offset=start)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise BagError(f"Slide {entry.slide_id!r} cannot be read from {segment}: {error}.") from error
        if hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_WILLNEED)
        return memoryview(mapped)[skipped:]
