"""Our own bag files: round trips, readable by others, and refused when a byte is not what it was."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.writers import numbers

from pams_mil.data import Bag, BagInfo, read_bag, write_bag
from pams_mil.errors import BagError


def infos() -> st.SearchStrategy[BagInfo]:
    positive = st.none() | st.floats(0.01, 1e4)
    return st.builds(
        BagInfo,
        encoder=st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
        tile_px=st.none() | st.integers(1, 4096),
        tile_px0=positive,
        mpp=positive,
        level0_mpp=positive,
        magnification=positive,
        layout=st.just("pams"),
    )


@settings(max_examples=25)
@given(
    info=infos(),
    rows=st.integers(1, 400),
    width=st.integers(1, 40),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    unit=st.sampled_from(["px0", "um", "none"]),
)
def test_round_trip(tmp_path_factory, info: BagInfo, rows: int, width: int, dtype: str, unit: str) -> None:
    features, coords = numbers(rows, width, dtype)
    bag = Bag(features, coords if unit == "px0" else None, info, coords * 0.5 if unit == "um" else None)
    path = tmp_path_factory.mktemp("bag") / "s.h5"
    digest = write_bag(path, bag)
    back = read_bag(path)
    assert back.info == info
    assert back.digest == digest == bag.digest
    np.testing.assert_array_equal(back.features, features)
    for name in ("coords_px0", "coords_um"):
        first, second = getattr(bag, name), getattr(back, name)
        assert (first is None) == (second is None)
        if first is not None:
            np.testing.assert_array_equal(first, second)


def test_others_read_it_as_clam(tmp_path: Path) -> None:
    features, coords = numbers(50)
    write_bag(tmp_path / "s.h5", Bag(features, coords, BagInfo(encoder="uni", mpp=0.5)))
    with h5py.File(tmp_path / "s.h5") as file:
        np.testing.assert_array_equal(file["features"][:], features)
        np.testing.assert_array_equal(file["coords"][:], coords)
        assert file["features"].fletcher32
        assert file["coords"].fletcher32
        assert file["features"].attrs["mpp"] == 0.5


def test_nothing_that_is_not_finite_is_written(tmp_path: Path) -> None:
    features, _ = numbers(5)
    features[2, 1] = np.nan
    with pytest.raises(BagError, match=r"row 2, column 1"):
        write_bag(tmp_path / "s.h5", Bag(features))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["file", "features"])
def test_a_lost_mark_is_damage_and_not_another_layout(tmp_path: Path, where: str) -> None:
    write_bag(tmp_path / "s.h5", Bag(*numbers(5)))
    with h5py.File(tmp_path / "s.h5", "a") as file:
        if where == "file":
            del file.attrs["pams_bag"]
        else:
            del file["features"].attrs["pams_digest"]
    with pytest.raises(BagError, match="damaged"):
        read_bag(tmp_path / "s.h5")


def test_later_versions_are_refused(tmp_path: Path) -> None:
    write_bag(tmp_path / "s.h5", Bag(*numbers(5)))
    with h5py.File(tmp_path / "s.h5", "a") as file:
        file.attrs["pams_bag"] = file.attrs["pams_bag"].replace('"version": 1', '"version": 2')
    with pytest.raises(BagError, match="later PAMS"):
        read_bag(tmp_path / "s.h5")


@pytest.mark.parametrize(
    ("features", "coords", "message"),
    [
        (np.zeros((0, 3), np.float32), None, "at least one tile"),
        (np.zeros((2, 3), np.int64), None, "floating-point"),
        (np.zeros(3, np.float32), None, r"\[n, d\]"),
        (np.zeros((2, 3), np.float32), np.zeros((3, 2)), "n = 2"),
    ],
)
def test_what_cannot_be_a_bag_cannot_be_made(features: np.ndarray, coords: np.ndarray | None, message: str) -> None:
    with pytest.raises(BagError, match=message):
        Bag(features, coords)


def test_digests_tell_bags_apart() -> None:
    features, coords = numbers(6)
    bag = Bag(features, coords)
    moved = coords.copy()
    moved[0, 0] += 1
    others = [Bag(features, moved), Bag(features), Bag(features, coords, BagInfo(mpp=1.0)), Bag(features[::-1], coords)]
    assert len({other.digest for other in [bag, *others]}) == 5
    assert Bag(features, moved).feature_digest == bag.feature_digest
    assert Bag(np.asfortranarray(features), coords).digest == bag.digest
    assert Bag(features.astype(">f4"), coords).digest == bag.digest
