"""LazySlide's stores, `<slide>.zarr` as wsidata writes them (SpatialData, Zarr 2 or 3), read without either package.

    shapes/tiles/shapes.parquet       tile_id, x, y (level-0 pixels)
    tables/<encoder>_tiles/X          features [n, d], rows in any order; obs/tile_id says whose they are
    tables/<encoder>_tiles/varm/KEY   features of the whole slide [d, k]
    attributes                        tile_spec (sizes, mpp), slide_properties (mpp of level 0)

A store with several tables is read by naming one: `case.zarr/tables/uni_tiles` in the manifest's column `path`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag, BagInfo
from pams_mil.data.bags.layouts.hdf5 import positive, refuse_hollow
from pams_mil.errors import BagError, listing, needs_extra

SUFFIX = ".zarr"
_CODECS = {"bytes", "blosc", "crc32c", "gzip", "lz4", "sharding_indexed", "shuffle", "transpose", "zlib", "zstd"}


def is_store(path: Path) -> bool:
    """Whether a folder is a LazySlide store with features, rather than an image or something else in Zarr."""
    return path.name.lower().endswith(SUFFIX) and (path / "tables").is_dir()


def store_of(path: Path) -> Path | None:
    """The store that a path is, or leads into; None when it is not one.

    >>> store_of(Path("features/case.h5")) is None
    True
    """
    return next((place for place in (path, *path.parents) if is_store(place)), None)


def read_store(path: Path) -> Bag:
    """The bag of a store, or of the table or aggregation inside of it that the path names."""
    store = store_of(path)
    if store is None:
        raise BagError(f"{path} is not a store of LazySlide: it has no folder 'tables'.")
    root = open_group(store)
    inside = path.relative_to(store).parts
    # The path may name a table inside of the store: case.zarr/tables/<key>[/varm/<vector>].
    key = inside[1] if len(inside) > 1 and inside[0] == "tables" else _only_table(store)
    try:
        table = root["tables"][key]
        region = str(table.attrs.get("region", "tiles"))
        # LazySlide calls a table <encoder>_<region>.
        encoder = key.removesuffix(f"_{region}")
        facts = _facts(root.attrs, region)
        if len(inside) > 3 and inside[2] == "varm":
            # Stored as [d, k], one column per vector of the slide.
            vectors = _values(table["varm"][inside[3]], path).T
            return Bag(np.ascontiguousarray(vectors), info=BagInfo(encoder=encoder, layout="lazyslide slide"))
        features = _values(table["X"], path)
        ids = _values(table["obs"][str(table.attrs.get("instance_key", "tile_id"))], path)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise BagError(f"{store} has no features where LazySlide keeps them (tables/{key}): {error!r}.") from error
    coords = _places(store, region, ids)
    return Bag(features, coords, BagInfo(encoder=encoder, layout="lazyslide", **facts))


def open_group(store: Path) -> Any:
    """The root group of a store, opened for reading."""
    with needs_extra("Reading LazySlide's stores", package="zarr", extra="lazyslide"):
        import zarr  # noqa: PLC0415  optional
    try:
        return zarr.open_group(str(store), mode="r", use_consolidated=False)
    except Exception as error:  # damaged metadata raise what json and zarr raise
        raise BagError(f"{store} is not a readable Zarr store: {error!r}. Write it again.") from error


def read_parquet(path: Path) -> Any:
    """A parquet table with all its metadata."""
    with needs_extra("Reading LazySlide's tiles", package="pyarrow", extra="lazyslide"):
        import pyarrow  # noqa: PLC0415  optional
        import pyarrow.parquet as parquet  # noqa: PLC0415
    try:
        return parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise BagError(f"{path} cannot be read as the table of tiles: {error}.") from error


def _only_table(store: Path) -> str:
    names = sorted(place.name for place in (store / "tables").iterdir() if (place / "X").exists())
    if len(names) == 1:
        return names[0]
    if not names:
        raise BagError(f"{store} holds no tile features; extract them with LazySlide first.")
    raise BagError(
        f"{store} holds features of several kinds: {listing(names)}. Name one for every slide in a column 'path', e.g. "
        f"{store.name}/tables/{names[0]}."
    )


def _values(array: Any, path: Path) -> AnyArray:
    """The values of a Zarr array: numbers behind plain compression, and no more than its files can hold.

    Some codecs of Zarr 2 unpickle, which runs whatever the file says.
    """
    if not hasattr(array, "shape"):
        raise BagError(f"{path} keeps its features sparsely; expected a dense array [n, d].")
    metadata = array.metadata.to_dict()
    chain = [*(metadata.get("codecs") or ()), *(metadata.get("filters") or ()), metadata.get("compressor")]
    # Objects in zarr 3.0.
    described = [codec if isinstance(codec, dict) else codec.get_config() for codec in chain if codec]
    names = [str(about.get("name", about.get("id"))) for about in described]
    odd = [name for name in names if name.removeprefix("numcodecs.") not in _CODECS]
    if odd or array.dtype.kind not in "fiu":
        raise BagError(
            f"{path} keeps values of type {array.dtype} behind {listing(odd) or 'plain codecs'}; expected numbers "
            f"behind {listing(sorted(_CODECS), most=20)}. It was not decoded."
        )
    refuse_hollow(array, int(array.nbytes_stored()), f"{path} declares")
    values: AnyArray = np.asarray(array[...])
    return values


def _facts(attributes: Any, region: str) -> dict[str, Any]:
    """Tile size and scale as the store states them; what it does not say stays unknown."""
    spec = dict(attributes.get("tile_spec") or {}).get(region) or {}
    width, down, mpp = (positive(spec, name) for name in ("width", "base_downsample", "mpp"))
    return {
        "tile_px": None if width is None else round(width),
        "tile_px0": None if width is None or down is None else width * down,
        "mpp": mpp,
        "level0_mpp": positive(attributes.get("slide_properties") or {}, "mpp"),
    }


def _places(store: Path, region: str, ids: AnyArray) -> AnyArray:
    """Where the tiles of these ids lie; joined by id, because rows of the two tables need not be in the same order."""
    file = store / "shapes" / region / "shapes.parquet"
    if not file.is_file():
        raise BagError(f"{store} has no tiles called {region!r} (expected {file.relative_to(store)}).")
    table = read_parquet(file)
    missing = [name for name in ("tile_id", "x", "y") if name not in table.column_names]
    if missing:
        raise BagError(f"{file} lacks the columns {listing(missing)}; found {listing(table.column_names)}.")
    known, x, y = (table[name].to_numpy() for name in ("tile_id", "x", "y"))
    row_of = {tile: row for row, tile in enumerate(known.tolist())}
    if len(row_of) != len(known):
        raise BagError(f"{file} names a tile_id twice; the features cannot be distinguished.")
    rows = [row_of[tile] for tile in ids.ravel().tolist() if tile in row_of]
    if len(rows) < ids.size:
        raise BagError(f"{store} has features of {ids.size - len(rows)} tiles that {region!r} does not list.")
    coords: AnyArray = np.stack([x[rows], y[rows]], axis=1)
    return coords
