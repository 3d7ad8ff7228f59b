"""HDF5 feature files: CLAM, TRIDENT, STAMP, torchmil and our own.

They differ in the name of the features, in where attributes sit (on a dataset or on the file), and in the
unit of the coordinates (level-0 pixels, or microns for STAMP).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag, BagInfo
from pams_mil.data.bags.bag_file import DATASET_MARK, FILE_MARK, read_marked
from pams_mil.data.bags.layouts.chunks import read_dataset
from pams_mil.errors import BagError, listing

_SMALL = 1 << 28
_MOST_COMPRESSED = 1032  # deflate cannot pack more densely
_STAMP_1_UM, _STAMP_1_PX = 256.0, 224
FEATURE_KEYS = ("features", "feats", "patch_embeddings")


def read_hdf5(path: Path, *, verify: bool = True, mapped: bool = False) -> Bag:
    """The bag in an HDF5 file; `verify` checks digests, `mapped` lets arrays be the file's pages instead of copies."""
    with open_hdf5(path) as file:
        try:
            names = set(file)
            features = own_dataset(file, feature_key(names, path), path)
            attributes, own = _attributes(file), _attributes(features)
            # Either mark: a file of ours that lost one is damaged, not a file of CLAM's.
            if FILE_MARK in attributes or DATASET_MARK in own:
                return read_marked(file, path, verify=verify)
            placed = own_dataset(file, "coords", path) if "coords" in names else None
            # On a name that several state: features before coordinates before file.
            attributes |= {} if placed is None else _attributes(placed)
            attributes |= own
            whole = _of_whole(attributes, features.shape)
            # The file of a whole slide may list the tiles that it was made from; its one vector has no place itself.
            coords = None if placed is None or whole else read_dataset(placed, path, mapped=mapped)
            if "augmented" in names and not {"tile_size_um", "unit"} & set(attributes):
                attributes, coords = _early_stamp(attributes, coords)
            in_microns = attributes.get("unit") == "um" or "tile_size_um" in attributes
            info = _info(attributes, _layout(names, attributes) + whole)
            rows = as_rows(read_dataset(features, path, mapped=mapped))
            return Bag(rows, info=info, **{"coords_um" if in_microns else "coords_px0": coords})
        except BagError:
            raise
        except Exception as error:  # damaged HDF5 raises OSError, KeyError, RuntimeError, ValueError and more
            raise BagError(f"{path} is truncated or damaged: {error}. Extract or copy the slide again.") from error


def open_hdf5(path: Path) -> h5py.File:
    """The file opened for reading, without locks so that read-only and network disks work."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        short = str(error).split("(", 1)[-1].rstrip(")")
        raise BagError(
            f"{path} is not a complete HDF5 file ({short}); it was probably cut short while it was "
            "written or copied. Extract or copy the slide again."
        ) from error


def own_dataset(file: h5py.File, name: str, path: Path) -> h5py.Dataset:
    """A dataset whose values lie in this very file; what leads elsewhere, or declares more than it holds, is refused.

    A feature file of someone else could otherwise name any file of this machine as its features.
    """
    link = file.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise BagError(f"{path} keeps {name!r} in another file ({link.filename!r}), which is not followed; copy it in.")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise BagError(f"{path} has a group called {name!r}; expected a dataset [n, d] of numbers.")
    # A soft link may lead to an external link, which the check above does not see.
    if dataset.file != file:
        raise BagError(f"{path} keeps {name!r} in another file, which is not followed; copy it in.")
    if dataset.external is not None or dataset.is_virtual:
        raise BagError(f"{path} keeps the values of {name!r} in other files, which are not followed; copy them in.")
    refuse_hollow(dataset, dataset.id.get_storage_size(), f"{path} declares {name!r} as")
    return dataset


def refuse_hollow(array: Any, stored: int, claim: str) -> None:
    """Refuse an array that declares more bytes than what is stored can hold: it would take all memory to read."""
    if array.nbytes > max(_SMALL, _MOST_COMPRESSED * stored):
        raise BagError(
            f"{claim} {list(array.shape)}, {array.nbytes:,} bytes, but stores {stored:,}; no data are packed so "
            "densely. It was cut short or made up; extract the slide again."
        )


def feature_key(names: Collection[Any], path: Path) -> str:
    """The name under which a file keeps its features."""
    name = next((key for key in FEATURE_KEYS if key in names), None)
    if name is None:
        raise BagError(
            f"{path} holds no features: expected {listing(FEATURE_KEYS)}, found "
            f"{listing(sorted(map(str, names))) or 'nothing'}. Is it a file of coordinates alone?"
        )
    return name


def as_rows(features: AnyArray) -> AnyArray:
    """Features as [n, d]: a slide-level vector [d] is one row, and a leading axis of one is dropped."""
    if features.ndim == 1:
        return features[None]
    return features[0] if features.ndim == 3 and features.shape[0] == 1 else features


def _attributes(owner: h5py.File | h5py.Dataset) -> dict[str, Any]:
    if not h5py.h5a.get_num_attrs(owner.id):  # CLAM writes none, and asking for them takes longer than for their number
        return {}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in owner.attrs.items()}


def _early_stamp(attributes: dict[str, Any], coords: AnyArray | None) -> tuple[dict[str, Any], AnyArray | None]:
    """What STAMP 1 did not write down: tiles of 256 microns, their places counted as if a tile were 224 pixels.

    Marugoto, which wrote the same files before it, counted in whatever its tiles were: then the unit is not known.
    """
    if coords is None or (coords % _STAMP_1_PX).any():
        return attributes, None
    stamp = {"unit": "um", "tile_size_um": _STAMP_1_UM, "tile_size_px": _STAMP_1_PX}
    return {**stamp, **attributes}, coords * (_STAMP_1_UM / _STAMP_1_PX)


def _of_whole(attributes: dict[str, Any], shape: tuple[int, ...]) -> str:
    """What one vector stands for, said behind the name of the layout; nothing for tiles.

    TRIDENT's slide encoders write features [d]. STAMP says slide or patient in `feat_type` and writes [d] or [1, d].
    """
    kind = str(attributes.get("feat_type", "tile"))
    if kind in ("slide", "patient"):
        return f" {kind}"
    return " slide" if len(shape) == 1 else ""


def _layout(names: set[str], attributes: dict[str, Any]) -> str:
    if "stamp_version" in attributes or "feats" in names or attributes.get("unit") == "um":
        return "stamp"
    if "patch_size_level0" in attributes or ("encoder" in attributes and "savetodir" in attributes):
        return "trident"
    if names & {"labels", "inst_labels", "patch_labels"}:
        return "torchmil"
    return "clam" if {"features", "coords"} <= names else "h5"


def _info(attributes: dict[str, Any], layout: str) -> BagInfo:
    tile_px = positive(attributes, "tile_px", "tile_size_px", "patch_size")
    tile_um = positive(attributes, "tile_size_um")
    # The first files of STAMP 2 call the size in microns `tile_size`, which is pixels elsewhere.
    if tile_um is None and attributes.get("unit") == "um":
        tile_um = positive(attributes, "tile_size")
    tile_px0 = positive(attributes, "tile_px0", "patch_size_level0")
    downsample = positive(attributes, "downsample")
    if tile_px0 is None and tile_px is not None and downsample is not None:
        tile_px0 = tile_px * downsample * (positive(attributes, "custom_downsample") or 1.0)
    mpp = positive(attributes, "mpp")
    if mpp is None and tile_um is not None and tile_px:
        mpp = tile_um / tile_px
    encoder = next((str(attributes[name]) for name in ("encoder", "extractor") if name in attributes), None)
    return BagInfo(
        encoder=None if encoder in (None, "", "None") else encoder,
        tile_px=None if tile_px is None else round(tile_px),
        tile_px0=tile_px0,
        mpp=mpp,
        magnification=positive(attributes, "target_magnification"),
        layout=layout,
    )


def positive(attributes: Mapping[str, Any], *names: str) -> float | None:
    """The first of these attributes that is a positive number; TRIDENT writes the text 'None' for nothing."""
    for name in names:
        try:
            value = float(np.ravel(attributes[name])[0])
        except (KeyError, ValueError, TypeError, IndexError):
            continue
        if math.isfinite(value) and value > 0:
            return value
    return None
