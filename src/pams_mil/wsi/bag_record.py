"""Bags with a record of how they were extracted: the slide, the settings, and the fate of every grid cell."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py

from pams_mil.data.bags.bag import Bag
from pams_mil.data.bags.bag_file import write_bag
from pams_mil.digests import text_digest
from pams_mil.errors import BagError

ATTRIBUTE = "pams_extraction"


@dataclass(frozen=True)
class CellCounts:
    """What became of the grid: cells = kept + background + unreadable."""

    cells: int
    kept: int
    background: int
    unreadable: int


@dataclass(frozen=True)
class ExtractionRecord:
    """Stored in the bag file as JSON with a digest of its own; holds no time or path, so reruns are bit-identical."""

    slide_file: str
    slide_fingerprint: str
    slide_size_px0: tuple[int, int]
    reader: str
    mpp_of_slide: float
    mpp_origin: str
    encoder: str
    encoder_digest: str
    min_tissue: float
    tissue_threshold: float
    tissue_share: float
    counts: CellCounts

    def to_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self)


def write_extracted(path: Path, bag: Bag, record: ExtractionRecord) -> None:
    """Write a bag and its record as one file, atomically."""
    # A digest of its own: that of the bag does not cover the file's attributes.
    text = json.dumps(record.to_json(), sort_keys=True)
    write_bag(path, bag, attributes={ATTRIBUTE: json.dumps({"digest": text_digest(text), "record": text})})


def read_record(path: Path) -> ExtractionRecord | None:
    """The record in a bag file; None where the file has none, an error where it is damaged."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            stored = file.attrs.get(ATTRIBUTE)
            if stored is None:
                return None
            content = json.loads(stored)
            if content["digest"] != text_digest(content["record"]):
                raise ValueError("its record does not match its digest")
            values = json.loads(content["record"])
            values["counts"] = CellCounts(**values["counts"])
            values["slide_size_px0"] = tuple(values["slide_size_px0"])
            return ExtractionRecord(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BagError(f"{path} is damaged: {error}. Remove it and extract the slide again.") from error
