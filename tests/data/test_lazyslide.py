"""LazySlide's stores, joined by tile id. wsidata 0.12.0 itself wrote the fixture: fixtures/make_lazyslide_store.txt."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

from pams_mil.data import Manifest, Pack, SlideRecord, read_bag, write_pack
from pams_mil.data.doctor import diagnose
from pams_mil.errors import BagError, MissingExtraError
from pams_mil.hierarchy import ClassHierarchy

FIXTURE = Path(__file__).parent / "fixtures" / "lazyslide-store.zip"
ORDER = [5, 0, 11, 3, 1, 2, 4, 6, 7, 8, 9, 10]
"""The tile ids of the features' rows, as they were shuffled when the store was made."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with zipfile.ZipFile(FIXTURE) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "case-1.zarr"


def test_features_are_joined_to_their_tiles_by_id(store: Path) -> None:
    bag = read_bag(store)
    assert bag.features.dtype == np.float32
    assert bag.features[:, 0].tolist() == [float(tile) for tile in ORDER]
    places = np.array([[x, y] for y in range(64, 448, 128) for x in range(128, 640, 128)])
    assert np.array_equal(bag.coords_px0, places[ORDER])
    info = bag.info
    assert (info.layout, info.encoder, info.tile_px, info.tile_px0, info.mpp, info.level0_mpp) == (
        "lazyslide", "uni", 64, 128.0, 1.0, 0.5,
    )  # fmt: skip


def test_the_order_of_the_tiles_does_not_matter(store: Path) -> None:
    before = read_bag(store)
    file = store / "shapes/tiles/shapes.parquet"
    table = pq.read_table(file)
    pq.write_table(table.take(np.arange(len(table))[::-1].copy()), file)
    after = read_bag(store)
    assert np.array_equal(before.coords_px0, after.coords_px0)
    assert np.array_equal(before.features, after.features)


def test_the_features_of_the_whole_slide(store: Path) -> None:
    bag = read_bag(store / "tables/uni_tiles/varm/agg_slide")
    assert np.allclose(bag.features, [[5.5, 5.6, 5.7, 5.8]])
    assert (bag.info.layout, bag.info.encoder) == ("lazyslide slide", "uni")


def test_a_cohort_of_stores(store: Path) -> None:
    manifest = Manifest((SlideRecord("case-1", "p", "a"), SlideRecord("case-2", "q", "b")))
    found = diagnose(manifest, ClassHierarchy.flat(["a", "b"]), features=store.parent)
    assert [facts.rows for facts in found.bags] == [12]
    kinds = {problem.kind: problem for problem in found.problems}
    assert kinds["missing bag"].slides == ("case-2",)
    assert "'uni' (1024 features) is named, but there are 4" in kinds["encoder and width"].message


def test_several_encoders_in_one_store_are_named_by_path(store: Path) -> None:
    shutil.copytree(store / "tables/uni_tiles", store / "tables/conch_tiles")
    with pytest.raises(BagError, match=r"several kinds: 'conch_tiles', 'uni_tiles'.*case-1\.zarr/tables/conch_tiles"):
        read_bag(store)
    manifest = Manifest((SlideRecord("case-1", "p", "a", path="case-1.zarr/tables/conch_tiles"),))
    found = diagnose(manifest, ClassHierarchy.flat(["a", "b"]), features=store.parent)
    assert [facts.info.encoder for facts in found.bags] == ["conch"]


def drop_a_tile(store: Path) -> None:
    file = store / "shapes/tiles/shapes.parquet"
    pq.write_table(pq.read_table(file).slice(0, 11), file)


def drop_all_tiles(store: Path) -> None:
    file = store / "shapes/tiles/shapes.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)


def name_tiles_by_text(store: Path) -> None:
    file = store / "shapes/tiles/shapes.parquet"
    table = pq.read_table(file)
    place = table.column_names.index("tile_id")
    pq.write_table(table.set_column(place, "tile_id", [[f"tile {row}" for row in range(len(table))]]), file)


def name_a_tile_twice(store: Path) -> None:
    file = store / "shapes/tiles/shapes.parquet"
    table = pq.read_table(file)
    pq.write_table(table.take([0, 0, *range(2, 12)]), file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_a_tile, "features of 1 tiles"),
        (drop_all_tiles, "features of 12 tiles"),
        (name_tiles_by_text, "features of 12 tiles"),
        (name_a_tile_twice, "names a tile_id twice"),
        (lambda store: (store / "shapes/tiles/shapes.parquet").unlink(), "no tiles called 'tiles'"),
        (lambda store: (store / "shapes/tiles/shapes.parquet").write_bytes(b"PAR1"), "cannot be read as the table"),
        (lambda store: (store / "tables/uni_tiles/obs/tile_id/zarr.json").unlink(), "no features where LazySlide"),
        (lambda store: (store / "zarr.json").write_text("{"), "not a readable Zarr store"),
        (lambda store: shutil.rmtree(store / "tables/uni_tiles/X"), "no tile features"),
    ],
)
def test_what_is_torn_is_named(store: Path, damage, message: str) -> None:
    damage(store)
    with pytest.raises(BagError, match=message):
        read_bag(store)


def test_an_array_that_declares_more_than_it_holds_is_refused(store: Path) -> None:
    meta = store / "tables/uni_tiles/X/zarr.json"
    meta.write_text(meta.read_text().replace("12,", "1200000000,", 1))
    with pytest.raises(BagError, match="but stores"):
        read_bag(store)


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def put(group, name: str, values: np.ndarray, chunks: tuple[int, ...]) -> None:
    """As every zarr 3 can; `create_array(data=...)` came later."""
    group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=chunks)[...] = values


def test_a_store_of_zarr_2(store: Path, tmp_path: Path) -> None:
    old = zarr.open_group(tmp_path / "old.zarr", mode="w", zarr_format=2)
    old.attrs["tile_spec"] = {"tiles": {"width": 64, "mpp": 1.0, "base_downsample": 2.0}}
    table = old.create_group("tables/uni_tiles")
    table.attrs.update({"region": "tiles", "instance_key": "tile_id"})
    bag = read_bag(store)
    put(table, "X", bag.features, (5, 4))
    put(table, "obs/tile_id", np.array(ORDER), (len(ORDER),))
    shutil.copytree(store / "shapes", tmp_path / "old.zarr/shapes", dirs_exist_ok=True)
    again = read_bag(tmp_path / "old.zarr")
    assert np.array_equal(again.features, bag.features)
    assert np.array_equal(again.coords_px0, bag.coords_px0)
    assert (again.info.tile_px0, again.info.level0_mpp) == (128.0, None)


@pytest.mark.parametrize(
    ("codec", "message"),
    [({"id": "pickle", "protocol": 5}, "pickle"), ({"id": "bz2", "level": 1}, "behind 'bz2'; expected numbers")],
)
def test_values_behind_other_codecs_are_not_decoded(tmp_path: Path, codec, message: str) -> None:
    old = zarr.open_group(tmp_path / "old.zarr", mode="w", zarr_format=2)
    table = old.create_group("tables/uni_tiles")
    put(table, "X", np.zeros((12, 4), np.float32), (12, 4))
    meta = tmp_path / "old.zarr/tables/uni_tiles/X/.zarray"
    about = json.loads(meta.read_text())
    meta.write_text(json.dumps(about | {"compressor": codec}))
    (tmp_path / "old.zarr/tables/uni_tiles/X/0.0").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    with pytest.raises(BagError, match=message):
        read_bag(tmp_path / "old.zarr")
    assert not (tmp_path / "ran").exists()


def test_without_zarr_the_extra_is_named(store: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zarr", None)
    with pytest.raises(MissingExtraError, match=r"pams-mil\[lazyslide\]"):
        read_bag(store)


def test_a_pack_of_stores_follows_what_changes_inside_of_them(store: Path) -> None:
    folder = store.parent
    manifest = Manifest((SlideRecord("case-1", "p", "N"),))
    packed = write_pack(folder / "p", manifest, folder)
    assert packed.source_bytes == sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    features = zarr.open_group(str(store), mode="r+", use_consolidated=False)["tables"]["uni_tiles"]["X"]
    features[...] = features[...] + 1
    assert write_pack(folder / "p", manifest, folder).kept_shards == 0
    assert np.array_equal(Pack(folder / "p").read("case-1").features, read_bag(store).features)
