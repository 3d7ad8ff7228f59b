"""HDF5 feature files: CLAM, TRIDENT, STAMP, torchmil and our own.

They differ in the name of the features, in where attributes sit (on a dataset or on the file), and in the
unit of the coordinates (level-0 pixels, or microns for STAMP).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pams_mil.data.bag import Array, Bag, BagInfo
from pams_mil.data.bagfile import is_marked, read_marked
from pams_mil.data.layouts.chunks import read_dataset
from pams_mil.errors import BagError, listing

FEATURE_KEYS = ("features", "feats", "patch_embeddings")


def read_hdf5(path: Path, verify: bool) -> Bag:
    """The bag in an HDF5 file."""
    with open_hdf5(path) as file:
        try:
            if is_marked(file):
                return read_marked(file, path, verify=verify)
            return _read_foreign(file, path)
        except BagError:
            raise
        except Exception as error:  # damaged HDF5 raises OSError, KeyError, RuntimeError, ValueError and more
            raise BagError(f"{path} is torn or damaged: {error}. Extract or copy the slide again.") from error


def open_hdf5(path: Path) -> h5py.File:
    """The file opened for reading, without locks so that read-only and network disks work."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        raise BagError(
            f"{path} is not a complete HDF5 file ({_short(error)}); it was probably cut short while it was "
            "written or copied. Extract or copy the slide again."
        ) from error


def feature_key(file: h5py.File, path: Path) -> str:
    """The name of the features in a file."""
    for key in FEATURE_KEYS:
        if isinstance(file.get(key), h5py.Dataset):
            return key
    raise BagError(
        f"{path} holds no features: expected a dataset called {listing(FEATURE_KEYS)}, "
        f"found {listing(file) or 'nothing'}. Is it a coordinates file?"
    )


def as_rows(features: Array) -> Array:
    """Features as [n, d]: a slide-level vector [d] is one row, and a leading axis of one is dropped."""
    if features.ndim == 1:
        return features[None]
    return features[0] if features.ndim == 3 and features.shape[0] == 1 else features


def _read_foreign(file: h5py.File, path: Path) -> Bag:
    key = feature_key(file, path)
    features = as_rows(read_dataset(file[key], path))
    coords = read_dataset(file["coords"], path) if isinstance(file.get("coords"), h5py.Dataset) else None
    attributes = _attributes(file, key)
    in_microns = attributes.get("unit") == "um"
    if coords is not None and in_microns:
        coords = np.asarray(coords)
    return Bag(
        features=features,
        coords_px0=None if in_microns else coords,
        coords_um=coords if in_microns else None,
        info=_info(attributes, layout=_layout(file, key, attributes)),
    )


def _attributes(file: h5py.File, key: str) -> dict[str, Any]:
    """All attributes of file, coordinates and features; what is nearer to the features wins."""
    found: dict[str, Any] = {}
    for owner in (file, file.get("coords"), file[key]):
        if owner is not None:
            found.update(owner.attrs.items())
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def _layout(file: h5py.File, key: str, attributes: dict[str, Any]) -> str:
    if "stamp_version" in attributes or key == "feats" or attributes.get("unit") == "um":
        return "stamp"
    if "patch_size_level0" in attributes or ("encoder" in attributes and "savetodir" in attributes):
        return "trident"
    if "labels" in file or "inst_labels" in file or "patch_labels" in file:
        return "torchmil"
    return "clam" if key == "features" and "coords" in file else "h5"


def _info(attributes: dict[str, Any], *, layout: str) -> BagInfo:
    tile_px = _number(attributes, "tile_px", "tile_size_px", "patch_size")
    tile_um = _number(attributes, "tile_size_um")
    if tile_um is None and attributes.get("unit") == "um":
        tile_um = _number(attributes, "tile_size")
    tile_px0 = _number(attributes, "tile_px0", "patch_size_level0")
    if tile_px0 is None and tile_px is not None and "downsample" in attributes:
        custom = _number(attributes, "custom_downsample") or 1.0
        tile_px0 = tile_px * float(np.ravel(attributes["downsample"])[0]) * custom
    mpp = _number(attributes, "mpp")
    if mpp is None and tile_um is not None and tile_px:
        mpp = tile_um / tile_px
    encoder = next((str(attributes[name]) for name in ("encoder", "extractor") if name in attributes), None)
    return BagInfo(
        encoder=None if encoder in (None, "", "None") else encoder,
        tile_px=None if tile_px is None else round(tile_px),
        tile_px0=tile_px0,
        mpp=mpp,
        magnification=_number(attributes, "target_magnification"),
        layout=layout,
    )


def _number(attributes: dict[str, Any], *names: str) -> float | None:
    """The first of these attributes that is a positive number; TRIDENT writes the text 'None' for nothing."""
    for name in names:
        try:
            value = float(np.ravel(attributes[name])[0])
        except (KeyError, ValueError, TypeError, IndexError):
            continue
        if math.isfinite(value) and value > 0:
            return value
    return None


def _short(error: OSError) -> str:
    return str(error).split("(", 1)[-1].rstrip(")")
