"""Whole HDF5 datasets read at the speed of the disk.

HDF5 looks up, locks and copies chunk by chunk, which takes most of the time when chunks are small (CLAM: 32
rows, TRIDENT: one). Where chunks are stored plainly, their places in the file are listed once and
neighboring chunks are read in one go. Anything unusual is left to HDF5.

Measured by processor time, interleaved, D = 384: chunks of 32 rows 1.2 times faster than HDF5 at n = 1,200 and 1.8 at
8,000; chunks of one row 1.3 and 2.3 times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pams_mil.arrays import AnyArray

_FEWEST_CHUNKS = 8
_FEWEST_BYTES = 1 << 16  # below, listing the chunks takes longer than reading them


def read_dataset(dataset: h5py.Dataset, path: Path, *, mapped: bool = False) -> AnyArray:
    """All values of a dataset, in native byte order and their stored precision.

    With `mapped`, a dataset that lies in one piece is not copied: the array is the file's pages, privately mapped.
    """
    runs = _plain_runs(dataset)
    values: AnyArray
    if runs is None:
        values = dataset[()]
    elif mapped and len(runs) == 1:
        values = np.memmap(path, dataset.dtype, "c", runs[0][2], dataset.shape).view(np.ndarray)
    else:
        values = _read_runs(dataset, path, runs)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _plain_runs(dataset: h5py.Dataset) -> list[tuple[int, int, int]] | None:
    """(first row, rows, byte offset) of stretches that lie together in the file, or None if not plain."""
    chunks, shape = dataset.chunks, dataset.shape
    plain = (
        len(shape) == 2
        and dataset.dtype.kind in "fiu"
        and dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype)  # HDF5 has types that numpy reads as wider ones
        and dataset.file.userblock_size == 0  # HDF5 versions differ in whether offsets count it
    )
    if not plain:
        return None
    whole = dataset.id.get_offset()
    if whole is not None:
        return [(0, shape[0], whole)]
    worthwhile = (
        chunks is not None
        and chunks[1] == shape[1]
        and dataset.id.get_create_plist().get_nfilters() == 0
        and shape[0] >= _FEWEST_CHUNKS * chunks[0]
        and dataset.nbytes >= _FEWEST_BYTES
        and hasattr(dataset.id, "chunk_iter")
    )
    if not worthwhile:
        return None
    places: list[tuple[int, int]] = []

    def note(info: Any) -> None:
        places.append((info.chunk_offset[0], info.byte_offset))

    dataset.id.chunk_iter(note)
    places.sort()
    # Every chunk once and none missing, or the file is left to HDF5.
    if [row for row, _ in places] != list(range(0, shape[0], chunks[0])):
        return None  # chunks that were never written hold the fill value
    runs: list[tuple[int, int, int]] = []
    row_bytes = dataset.dtype.itemsize * shape[1]
    for row, offset in places:
        # The last chunk is stored whole, but only its first rows are part of the dataset.
        count = min(chunks[0], shape[0] - row)
        if runs and runs[-1][2] + runs[-1][1] * row_bytes == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + count, runs[-1][2])
        else:
            runs.append((row, count, offset))
    return runs


def _read_runs(dataset: h5py.Dataset, path: Path, runs: list[tuple[int, int, int]]) -> AnyArray:
    values = np.empty(dataset.shape, dataset.dtype)
    memory = values.reshape(-1).view(np.uint8).data
    row_bytes = values.itemsize * values.shape[1]
    with path.open("rb", buffering=0) as raw:
        for row, count, offset in runs:
            target = memory[row * row_bytes : (row + count) * row_bytes]
            raw.seek(offset)
            done = 0
            # One call may give less than it was asked for, e.g. 2 GiB at most on Linux.
            while done < len(target):
                got = raw.readinto(target[done:])
                if not got:
                    raise OSError(f"the file ends inside row {row}")
                done += got
    return values
