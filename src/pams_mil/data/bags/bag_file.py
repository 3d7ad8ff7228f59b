"""Our own bag files: HDF5 that CLAM's readers understand, plus checksums and how the features were made.

Datasets `features` [n, d] and `coords` [n, 2] with Fletcher-32 checksums on every chunk. The attribute
`pams_bag` on the file and `pams_digest` on the features hold the same digest of all content, so that no
damaged bit, in data or attributes, can pass for a sound file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py

from pams_mil import atomic
from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag, BagInfo, check_values
from pams_mil.errors import BagError

VERSION = 1
FILE_MARK = "pams_bag"
DATASET_MARK = "pams_digest"
_CHUNK_BYTES = 1 << 18


def write_bag(path: Path | str, bag: Bag, *, attributes: Mapping[str, str] | None = None) -> str:
    """Write a bag atomically, verified by reading it back; returns its digest.

    Features that no model can compute with are refused, so that no file on disk holds any. `attributes` are written
    on the file beside our own.
    """
    path, further = Path(path), dict(attributes or {})
    check_values(bag, str(path))
    digest = bag.digest

    def verify(temporary: Path) -> None:
        with h5py.File(temporary, "r", locking=False) as file:
            read_marked(file, temporary)
            if any(file.attrs[name] != value for name, value in further.items()):
                raise damaged(temporary, "an attribute is not what was written")

    unit, coords = next(iter(bag.coords().items()), ("none", None))
    info = bag.info.to_json()
    header = {"version": VERSION, "digest": digest, "shape": list(bag.features.shape), "coords": unit, "info": info}
    # HDF5 can crash the process when a disk is full, so it writes to memory and plain code writes to disk.
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver="v108") as file:
        file.attrs.update({FILE_MARK: json.dumps(header), **further})
        # Twice, on file and dataset: if one mark is lost, the other still says that the file is ours and must verify.
        # And what the header says again as plain attributes, for other tools; our own reader trusts the header alone.
        plain = {name: value for name, value in info.items() if value is not None and name != "layout"}
        _dataset(file, "features", bag.features).attrs.update({DATASET_MARK: digest, **plain})
        if coords is not None:
            _dataset(file, "coords", coords).attrs["unit"] = unit
    with atomic.replacing(path, verify=verify) as temporary, temporary.open("wb") as out:
        out.write(memory.getbuffer())
    return digest


def _dataset(file: h5py.File, name: str, values: AnyArray) -> h5py.Dataset:
    row_bytes = max(1, values.itemsize * values.shape[1])
    # Whole rows, about 256 KiB of them: one checksum each.
    rows = min(values.shape[0], max(1, _CHUNK_BYTES // row_bytes))
    return file.create_dataset(name, data=values, chunks=(rows, values.shape[1]), fletcher32=True)


def read_marked(file: h5py.File, path: Path, *, verify: bool = True) -> Bag:
    """The bag in a file of ours, refused unless everything it says about itself is true."""
    try:
        header: dict[str, Any] = json.loads(file.attrs[FILE_MARK])
        second = str(file["features"].attrs[DATASET_MARK])
        if header["version"] > VERSION:
            raise BagError(
                f"{path} was written by a later PAMS (bag version {header['version']}, this one reads {VERSION}); "
                "update PAMS to read it."
            )
        coords = {} if header["coords"] == "none" else {f"coords_{header['coords']}": file["coords"][()]}
        bag = Bag(file["features"][()], info=BagInfo.from_json({**header["info"], "layout": "pams"}), **coords)
    except BagError:
        raise
    except Exception as error:  # damaged HDF5 raises OSError, KeyError, ValueError, TypeError and more
        raise damaged(path, str(error)) from error
    # Cheap checks are made even without `verify`.
    if list(bag.features.shape) != header["shape"] or second != header["digest"]:
        raise damaged(path, "its header does not match its features")
    if verify and bag.digest != header["digest"]:
        raise damaged(path, "its content does not match its digest")
    return bag


def damaged(path: Path, cause: str) -> BagError:
    """The error for a file of ours that was altered after it was written."""
    return BagError(f"{path} is damaged: {cause}. Extract or copy the slide again.")
