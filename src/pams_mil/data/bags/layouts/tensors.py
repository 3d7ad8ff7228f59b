"""Feature files that hold bare arrays: `.pt` tensors or dictionaries, `.npy`, and safetensors.

Such files know little about themselves; torchmil and slideflow keep the rest in files beside them, which are
read where they are found: `../coords/<bag>.npy`, `<slide>.index.npz`, `bags_config.json`.
"""

from __future__ import annotations

import json
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag, BagInfo
from pams_mil.data.bags.layouts.hdf5 import as_rows, feature_key, positive
from pams_mil.errors import BagError, first_line


def read_npy(path: Path) -> Bag:
    """The bag in a `.npy` file, as torchmil writes it, with the coordinates of the sibling folder."""
    features = _plain_array(path)
    # torchmil keeps features/<bag>.npy and coords/<bag>.npy side by side.
    beside = path.parent.parent / "coords" / path.name
    coords = _plain_array(beside) if beside.is_file() else None
    return Bag(as_rows(features), coords, BagInfo(layout="torchmil" if coords is not None else "npy"))


def _plain_array(path: Path) -> AnyArray:
    try:
        with path.open("rb") as file:  # numpy would leave a damaged archive open
            content = np.load(file)
    except Exception as error:  # a damaged header raises SyntaxError, UnicodeError, OverflowError, MemoryError and more
        raise BagError(
            f"{path} is not a complete .npy array of numbers: {first_line(error)}. Write or copy it again."
        ) from error
    if not isinstance(content, np.ndarray):
        raise BagError(f"{path} is an archive of arrays; expected one .npy array of numbers.")
    return content


def read_safetensors(path: Path) -> Bag:
    """The bag in a safetensors file with a tensor `features` and, optionally, `coords`."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415  not needed for HDF5 cohorts

    try:
        with safe_open(path, framework="np") as file:
            keys = list(file.keys())
            features = file.get_tensor(feature_key(keys, path))
            coords = file.get_tensor("coords") if "coords" in keys else None
            metadata: dict[str, str] = file.metadata() or {}
    except (SafetensorError, TypeError, ValueError, AttributeError, struct.error) as error:  # numpy has no float8
        raise BagError(
            f"{path} is not a readable safetensors file: {error}. Features must be float16, float32 or float64."
        ) from error
    info = BagInfo(encoder=metadata.get("encoder") or metadata.get("extractor"), layout="safetensors")
    return Bag(as_rows(features), coords, info)


def read_torch(path: Path, *, mapped: bool = False) -> Bag:
    """The bag in a `.pt` file: a tensor or array [n, d], or a dictionary with features and coordinates.

    With `mapped`, tensors are the file's pages, which are read as they are looked at.
    """
    content = _load_torch(path, mapped=mapped)
    if isinstance(content, dict):
        features, coords = _array(content[feature_key(content, path)], path), content.get("coords")
        coords = None if coords is None else _array(coords, path)
        encoder = content.get("encoder") or content.get("extractor")
        info = BagInfo(encoder=encoder if isinstance(encoder, str) else None, layout="torch-dict")
        return Bag(as_rows(features), coords, info)
    features = as_rows(_array(content, path))
    coords, info = _slideflow(path)
    return Bag(features, coords, info)


def _load_torch(path: Path, *, mapped: bool = False) -> Any:
    import torch  # noqa: PLC0415  slow to import, and only .pt files need it

    try:
        # Arrays of numpy are refused by weights_only unless their parts are named as safe; none of them runs foreign
        # code.
        rebuild = np.zeros(0).__reduce__()[0]
        kinds = [type(np.dtype(name)) for name in ("f2", "f4", "f8", "i4", "i8")]
        spelled = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
        allowed = getattr(torch.serialization, "safe_globals", lambda names: nullcontext())  # since torch 2.5
        with allowed([np.ndarray, np.dtype, *kinds, *spelled]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError, KeyError and more
        raise BagError(
            f"{path} cannot be loaded as plain tensors: {first_line(error)}. It is truncated, or holds objects that "
            "could run code when loaded, which is refused; save it again as a tensor."
        ) from error


def _array(value: Any, path: Path) -> AnyArray:
    import torch  # noqa: PLC0415

    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, torch.Tensor):
        raise BagError(f"{path} holds a {type(value).__name__} where a tensor [n, d] was expected.")
    try:
        # numpy has no bfloat16; float32 holds every value exactly
        dense = value.float() if value.dtype == torch.bfloat16 else value
        array: AnyArray = dense.detach().contiguous().numpy()
    except (TypeError, RuntimeError) as error:  # sparse, nested, quantized, float8, or without any values
        raise BagError(
            f"{path} holds a tensor that numpy cannot hold ({value.dtype}, {value.layout}): {first_line(error)}. "
            "Save it again as a dense tensor of float16, bfloat16, float32 or float64."
        ) from error
    return array


def _slideflow(path: Path) -> tuple[AnyArray | None, BagInfo]:
    """Tile locations and settings that slideflow keeps beside its bags."""
    index, config = path.with_suffix(".index.npz"), path.parent / "bags_config.json"
    coords = None
    if index.is_file():
        try:
            with index.open("rb") as file, np.load(file) as archive:
                coords = archive[archive.files[0]]
        except Exception as error:  # a damaged archive raises what zipfile, zlib and numpy's header parser raise
            raise BagError(f"{index} is not the archive of tile locations that slideflow writes: {error!r}.") from error
    coords, side = (None, None) if coords is None else _corners(coords)
    if not config.is_file():
        return coords, BagInfo(tile_px0=side, layout="slideflow" if index.is_file() else "torch")
    try:
        settings = json.loads(config.read_text("utf-8"))
        tile_px, tile_um = positive(settings, "tile_px"), positive(settings, "tile_um")  # or a magnification: "40x"
        extractor = settings.get("extractor", {})
        name = extractor.get("class") if isinstance(extractor, dict) else extractor
    except (ValueError, AttributeError, RecursionError) as error:
        raise BagError(f"{config} is not the JSON that slideflow writes: {error}.") from error
    info = BagInfo(
        encoder=name if isinstance(name, str) else None,
        tile_px=None if tile_px is None else round(tile_px),
        tile_px0=side,
        mpp=None if tile_um is None or tile_px is None else tile_um / tile_px,
        layout="slideflow",
    )
    return coords, info


def _corners(centers: AnyArray) -> tuple[AnyArray | None, float | None]:
    """Corners and side of tiles in level-0 pixels, from the centers that slideflow stores; None where they stay open.

    Tiles of side E lie on a grid from the slide's corner, centers at floor(E / 2) + k E. So E is what divides all
    distances, if the centers then lie in the middle of their cells. Of overlapping tiles, and of tiles too few to tell,
    the side is not known, and with it the corners.

    >>> _corners(np.array([[150, 450], [450, 150], [1050, 150]]))[0].tolist(), _corners(np.array([[150, 450]]))
    ([[0, 300], [300, 0], [900, 0]], (None, None))
    """
    if centers.ndim != 2 or centers.shape[1:] != (2,) or centers.dtype.kind not in "iu":
        return None, None
    places = centers.astype(np.int64)
    side = int(np.gcd.reduce(np.abs(places - places[0]), axis=None))
    if side < 2 or (places % side != side // 2).any():
        return None, None
    return places - side // 2, float(side)
