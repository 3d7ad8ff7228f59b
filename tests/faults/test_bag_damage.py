"""One flipped bit or a missing end in a bag file or a pack: an error that names the file, or identical data."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.data import writers

from pams_mil.data import Bag, BagInfo, Manifest, Pack, SlideRecord, read_bag, write_bag, write_pack
from pams_mil.errors import BagError

FLIPS, CUTS = 500, 100
INFO = BagInfo(encoder="uni", tile_px=256, tile_px0=512.0, mpp=0.5, layout="pams")


def _bags() -> dict[str, Bag]:
    return {f"slide-{n}": Bag(*writers.numbers(14, 9, seed=n), INFO) for n in range(3)}


def _same(first: Bag, second: Bag) -> bool:
    return (
        first.info == second.info
        and first.features.dtype == second.features.dtype
        and np.array_equal(first.features, second.features)
        and second.coords_px0 is not None
        and np.array_equal(first.coords_px0, second.coords_px0)
    )


def _damages(content: bytes, seed: int) -> list[bytes]:
    """The content with single bits flipped at random places, and cut short at random places."""
    generator = np.random.default_rng(seed)
    damaged = []
    for place in generator.integers(0, 8 * len(content), FLIPS).tolist():
        copy = bytearray(content)
        copy[place // 8] ^= 1 << (place % 8)
        damaged.append(bytes(copy))
    return damaged + [content[:cut] for cut in generator.integers(0, len(content), CUTS).tolist()]


def _outcomes(path: Path, content: bytes, read: Callable[[], bool], seed: int) -> dict[str, int]:
    outcome = {"raised": 0, "identical": 0, "different": 0, "nameless": 0}
    for damaged in _damages(content, seed):
        path.write_bytes(damaged)
        try:
            outcome["identical" if read() else "different"] += 1
        except BagError as error:
            outcome["raised" if path.name in str(error) else "nameless"] += 1
    path.write_bytes(content)
    assert read()
    return outcome


def test_bag_file(tmp_path: Path) -> None:
    bag = Bag(*writers.numbers(100, 16), INFO)
    path = tmp_path / "slide-0.h5"
    write_bag(path, bag)
    outcome = _outcomes(path, path.read_bytes(), lambda: _same(bag, read_bag(path)), seed=1)
    assert outcome["different"] == outcome["nameless"] == 0
    assert outcome["raised"] >= CUTS + 150


@pytest.fixture
def pack(tmp_path: Path) -> tuple[Path, dict[str, Bag]]:
    bags = _bags()
    for name, bag in bags.items():
        write_bag(tmp_path / "in" / f"{name}.h5", bag)
    write_pack(tmp_path / "cohort.pack", Manifest(tuple(SlideRecord(n, n, "N") for n in bags)), tmp_path / "in")
    return tmp_path / "cohort.pack", bags


@pytest.mark.parametrize("name", ["shard-00000.safetensors", "pack.json"])
def test_pack(pack: tuple[Path, dict[str, Bag]], name: str) -> None:
    folder, bags = pack

    def read() -> bool:
        opened = Pack(folder)
        return list(opened) == list(bags) and all(_same(bag, opened.read(slide)) for slide, bag in bags.items())

    outcome = _outcomes(folder / name, (folder / name).read_bytes(), read, seed=2)
    assert outcome["different"] == outcome["nameless"] == 0
    assert outcome["raised"] >= CUTS + FLIPS // 2


def test_damage_in_one_bag_leaves_the_others_readable(pack: tuple[Path, dict[str, Bag]]) -> None:
    folder, bags = pack
    shard = folder / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[content.index(Pack(folder).read("slide-1").features.tobytes()) + 7] ^= 16
    shard.write_bytes(content)
    opened = Pack(folder)
    with pytest.raises(BagError, match="'slide-1' is damaged"):
        opened.read("slide-1")
    for name in ("slide-0", "slide-2"):
        assert _same(bags[name], opened.read(name))


def test_a_missing_shard_is_named(pack: tuple[Path, dict[str, Bag]]) -> None:
    folder, _ = pack
    shutil.move(folder / "shard-00000.safetensors", folder / "elsewhere")
    with pytest.raises(BagError, match=r"shard-00000"):
        Pack(folder).read("slide-0")


def test_a_shard_cut_short_after_opening_does_not_crash(pack: tuple[Path, dict[str, Bag]]) -> None:
    folder, bags = pack
    opened = Pack(folder)
    assert len(opened) == len(bags)
    shard = folder / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:300])
    with pytest.raises(BagError, match="cut short"):
        opened.read("slide-2")
