"""One reader for the feature files of CLAM, TRIDENT, STAMP, LazySlide, torchmil, slideflow, MIL_BASELINE and our own.

The layout is recognized from the file itself and reported in `bag.info.layout`. Files that are locked, truncated,
empty, mismatched or not finite are refused by name. Precision is kept as stored.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pams_mil.data.bags.bag import Bag, check_values, content_mark
from pams_mil.data.bags.layouts.hdf5 import as_rows, feature_key, open_hdf5, own_dataset, read_hdf5
from pams_mil.data.bags.layouts.lazyslide import read_store, store_of
from pams_mil.data.bags.layouts.tensors import read_npy, read_safetensors, read_torch
from pams_mil.errors import BagError, listing

READERS: dict[str, Callable[[Path], Bag]] = {
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".pt": read_torch,
    ".pth": read_torch,
    ".npy": read_npy,
    ".safetensors": read_safetensors,
}


def read_bag(path: Path | str, *, level0_mpp: float | None = None, verify: bool = True, mapped: bool = False) -> Bag:
    """The bag in a feature file of any known layout.

    Args:
        path: The feature file.
        level0_mpp: The slide's true microns per pixel at level 0, where known: coordinates stored in microns
            become level-0 pixels, and nominal magnifications become a true `mpp`.
        verify: Check digests and finite values. Switch off only for files already checked in this process.
        mapped: Let the arrays be the file's own pages where it is stored plainly: nothing is copied, but the file
            must not be cut short while they are in use.
    """
    path = Path(path)
    # A store is a folder, or a path into one: neither is a file that could be checked as the others are.
    store = store_of(path)
    if store is None:
        _refuse_unreadable(path)
    reader = READERS[path.suffix.lower()] if store is None else read_store
    if reader is read_hdf5:  # other layouts have no digests, and are never mapped
        reader = partial(read_hdf5, verify=verify, mapped=mapped)
    try:
        bag = reader(path)
    except BagError as error:
        message = str(error)
        # Checks of shapes do not know the file: its name is put in front.
        raise error if str(path) in message else BagError(f"{path} cannot be used: {message}") from error.__cause__
    except OSError as error:
        raise BagError(f"{path} cannot be read: {error}. It is truncated, damaged or of another format.") from error
    if not bag.features.dtype.isnative:  # torch takes no other byte order
        bag = replace(bag, features=bag.features.astype(bag.features.dtype.newbyteorder("=")))
    if verify:
        check_values(bag, str(path))
    return bag if level0_mpp is None else at_scale(bag, level0_mpp)


def mark_file(path: Path) -> str:
    """The `content_mark` of a feature file; files of the usual layouts are not read whole."""
    kind = path.suffix.lower()
    try:
        if kind in (".h5", ".hdf5"):
            with open_hdf5(path) as file:
                features = own_dataset(file, feature_key(set(file), path), path)
                return content_mark(features if features.ndim == 2 else as_rows(features[()]))
        if kind == ".npy":
            return content_mark(as_rows(np.load(path, mmap_mode="r")))
        if kind in (".pt", ".pth"):
            return content_mark(read_torch(path, mapped=zipfile.is_zipfile(path)).features)
    except BagError:
        raise
    except Exception as error:  # damaged files raise OSError, KeyError, ValueError and more
        raise BagError(f"{path} cannot be read: {error}. It is truncated, damaged or of another format.") from error
    return content_mark(read_bag(path, verify=False).features)


def _refuse_unreadable(path: Path) -> None:
    if path.suffix.lower() not in READERS:
        raise BagError(f"{path} is not a known kind of feature file; expected one of {listing(READERS)}.")
    if not path.is_file():
        raise BagError(f"There is no feature file {path}.")
    lock = path.with_name(path.name + ".lock")
    if lock.exists():
        raise BagError(
            f"{path} is being written: {lock.name} lies beside it. Wait for the extraction to finish, "
            "or delete the lock and extract the slide again if it was interrupted."
        )
    if path.stat().st_size == 0:
        raise BagError(f"{path} is empty (0 bytes); extract the slide again.")


def at_scale(bag: Bag, level0_mpp: float) -> Bag:
    """The bag with what a known level-0 resolution tells."""
    info, coords_px0, coords_um = bag.info, bag.coords_px0, bag.coords_um
    mpp, tile_px0 = info.mpp, info.tile_px0
    # px0 = microns / (microns per level-0 pixel).
    if coords_px0 is None and coords_um is not None:
        coords_px0, coords_um = coords_um / level0_mpp, None
        if tile_px0 is None and info.tile_px is not None and mpp is not None:
            tile_px0 = info.tile_px * mpp / level0_mpp
    # A tile of tile_px pixels covers tile_px0 pixels of level 0: that is how much coarser than level 0 it is.
    if mpp is None and info.tile_px and tile_px0:
        mpp = level0_mpp * tile_px0 / info.tile_px
    changed = replace(info, mpp=mpp, tile_px0=tile_px0, level0_mpp=level0_mpp)
    return replace(bag, coords_px0=coords_px0, coords_um=coords_um, info=changed)
