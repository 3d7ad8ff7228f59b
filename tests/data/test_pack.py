"""Packs: bit-equal, random access, resumable, never larger than what they were made from."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tests.data import writers
from tests.data.cohorts import feature_folder

from pams_mil.data import Bag, BagInfo, Manifest, Pack, SlideRecord, read_bag, write_bag, write_pack
from pams_mil.data.bags import pack_writer
from pams_mil.data.bags.pack_reader import is_pack
from pams_mil.data.bags.pack_writer import unpack
from pams_mil.errors import BagError, ManifestError, OutputError, ParameterError


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _assert_equal(first: Bag, second: Bag) -> None:
    assert first.features.dtype == second.features.dtype
    np.testing.assert_array_equal(first.features, second.features)
    for one, two in ((first.coords_px0, second.coords_px0), (first.coords_um, second.coords_um)):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            np.testing.assert_array_equal(one, two)


@settings(max_examples=15)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 90), st.sampled_from(["float16", "float32", "float64"])), min_size=1, max_size=9
    ),
    width=st.integers(1, 33),
    shard=st.sampled_from([1, 5_000, 1 << 26]),
    workers=st.integers(1, 3),
)
def test_round_trip(tmp_path_factory, shapes, width: int, shard: int, workers: int) -> None:
    root = tmp_path_factory.mktemp("pack")
    made = {}
    for number, (rows, dtype) in enumerate(shapes):
        features, coords = writers.numbers(rows, width, dtype, seed=number)
        unit = number % 3
        info = BagInfo(encoder=f"e{number % 2}", mpp=0.5, layout="pams")
        bag = Bag(features, coords if unit == 0 else None, info, coords * 0.25 if unit == 1 else None)
        write_bag(root / "in" / f"s{number}.h5", bag)
        made[f"s{number}"] = bag
    manifest = Manifest(tuple(SlideRecord(name, name, "N") for name in made))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_writer, "SHARD_BYTES", shard)
        done = write_pack(root / "p", manifest, root / "in", workers=workers)
    pack = Pack(root / "p")
    assert list(pack) == list(made)
    assert done.pack_bytes == _size(root / "p") <= _size(root / "in")
    for name in reversed(made):
        _assert_equal(pack.read(name), made[name])
        assert pack.read(name).info == made[name].info
    assert unpack(root / "p", root / "out") == len(made)
    for name, bag in made.items():
        _assert_equal(read_bag(root / "out" / "h5_files" / f"{name}.h5"), bag)


def test_what_a_reader_does_to_a_bag_stays_with_it(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    write_pack(tmp_path / "p", manifest, tmp_path / "h5_files")
    pack = Pack(tmp_path / "p")
    mine = pack.read("s1").features
    before = mine.copy()
    torch.from_numpy(mine).mul_(0)
    assert not mine.any()
    np.testing.assert_array_equal(pack.read("s1").features, before)


def test_a_pack_pickles_as_its_path(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    write_pack(tmp_path / "p", manifest, tmp_path / "h5_files")
    pack = Pack(tmp_path / "p")
    assert len(pack) == 6
    content = pickle.dumps(pack)
    assert len(content) < 500
    _assert_equal(pickle.loads(content).read("s3"), pack.read("s3"))


def test_a_rerun_keeps_what_is_right_and_redoes_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_writer, "SHARD_BYTES", 1)  # one bag per shard
    manifest = feature_folder(tmp_path)
    out = tmp_path / "p"
    assert write_pack(out, manifest, tmp_path / "h5_files").kept_shards == 0
    assert write_pack(out, manifest, tmp_path / "h5_files").kept_shards == 6
    (out / "shard-00002.safetensors").unlink()
    (out / "shard-00004.safetensors").write_bytes((out / "shard-00004.safetensors").read_bytes()[:-5])
    assert write_pack(out, manifest, tmp_path / "h5_files").kept_shards == 4
    features, coords = writers.numbers(50, 12, seed=99)
    writers.clam(tmp_path / "h5_files" / "s0.h5", features, coords)
    assert write_pack(out, manifest, tmp_path / "h5_files").kept_shards == 5
    np.testing.assert_array_equal(Pack(out).read("s0").features, features)
    assert write_pack(out, manifest, tmp_path / "h5_files", dtype="float16").kept_shards == 0
    fewer = Manifest(manifest.records[:3])
    assert write_pack(out, fewer, tmp_path / "h5_files", dtype="float16").kept_shards == 3
    assert sorted(path.name for path in out.iterdir()) == [
        "pack.json",
        *(f"shard-0000{n}.safetensors" for n in range(3)),
    ]


def test_float16_halves_and_overflow_is_refused(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path, rows=400)
    done = write_pack(tmp_path / "p", manifest, tmp_path / "h5_files", dtype="float16")
    assert done.pack_bytes < 0.7 * done.source_bytes
    first = read_bag(tmp_path / "h5_files" / "s0.h5").features
    np.testing.assert_array_equal(Pack(tmp_path / "p").read("s0").features, first.astype(np.float16))
    writers.clam(tmp_path / "h5_files" / "s1.h5", np.full((400, 12), 1e6, np.float32), np.zeros((400, 2), np.int32))
    with pytest.raises(BagError, match="beyond the range of float16"):
        write_pack(tmp_path / "p", manifest, tmp_path / "h5_files", dtype="float16")
    assert not is_pack(tmp_path / "p")


def test_compressed_input_is_not_blown_up(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with h5py.File(tmp_path / "in" / "a.h5", "w") as file:
        file.create_dataset("features", data=np.ones((3000, 64), np.float32), compression="gzip")
    manifest = Manifest((SlideRecord("a", "a", "N"),))
    with pytest.raises(OutputError, match="--allow-larger"):
        write_pack(tmp_path / "p", manifest, tmp_path / "in")
    assert not is_pack(tmp_path / "p")
    assert write_pack(tmp_path / "p", manifest, tmp_path / "in", allow_larger=True).slides == 1


def test_all_missing_bags_are_named_before_anything_is_written(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    for name in ("s1", "s4"):
        (tmp_path / "h5_files" / f"{name}.h5").unlink()
    with pytest.raises(BagError, match=r"2 of 6 slides(.|\n)*'s1'(.|\n)*'s4'"):
        write_pack(tmp_path / "p", manifest, tmp_path / "h5_files")
    assert not (tmp_path / "p").exists()


def test_a_bad_bag_leaves_no_pack(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    features, coords = writers.numbers(20)
    features[3, 3] = np.nan
    writers.clam(tmp_path / "h5_files" / "s5.h5", features, coords)
    with pytest.raises(BagError, match=r"s5\.h5 has 1 features that are not finite"):
        write_pack(tmp_path / "p", manifest, tmp_path / "h5_files")
    assert not is_pack(tmp_path / "p")
    with pytest.raises(BagError, match="not a finished pack"):
        Pack(tmp_path / "p")


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    with pytest.raises(ParameterError, match="dtype"):
        write_pack(tmp_path / "p", manifest, tmp_path / "h5_files", dtype="int8")
    with pytest.raises(OutputError, match="folder of its own"):
        write_pack(tmp_path, manifest, tmp_path / "h5_files")
    assert (tmp_path / "manifest.csv").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        write_pack(tmp_path / "file", manifest, tmp_path / "h5_files")
    with pytest.raises(ManifestError, match="twice"):
        write_pack(tmp_path / "p", Manifest(manifest.records * 2), tmp_path / "h5_files")
    write_pack(tmp_path / "p", manifest, tmp_path / "h5_files")
    with pytest.raises(BagError, match="'s9' is not in the pack"):
        Pack(tmp_path / "p").read("s9")


def test_shards_of_different_packs_do_not_mix(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    write_pack(tmp_path / "a", manifest, tmp_path / "h5_files")
    write_pack(tmp_path / "b", Manifest(manifest.records[:3]), tmp_path / "h5_files")
    shutil.copy(tmp_path / "b" / "shard-00000.safetensors", tmp_path / "a" / "shard-00000.safetensors")
    with pytest.raises(BagError, match="not the shard"):
        Pack(tmp_path / "a").read("s0")


def test_nothing_that_is_nowhere_else_is_overwritten(tmp_path: Path) -> None:
    """The feature files of a finished pack may be gone, and those of another encoder lie where a pack is unpacked."""
    first, second = tmp_path / "first", tmp_path / "second"
    own, other = feature_folder(first), feature_folder(second, width=8)
    write_pack(tmp_path / "p", own, first / "h5_files")
    before = _size(tmp_path / "p")
    for slide in ("s3", "s4", "s5"):
        (second / "h5_files" / f"{slide}.h5").unlink()
    with pytest.raises(OutputError, match=r"3 slides that are neither in the table nor in .*'s3', 's4', 's5'"):
        write_pack(tmp_path / "p", Manifest(other.records[:3]), second / "h5_files")
    assert (is_pack(tmp_path / "p"), _size(tmp_path / "p")) == (True, before)
    with pytest.raises(OutputError, match=r"holds other features of the slide 's0'"):
        unpack(tmp_path / "p", second)
    assert read_bag(second / "h5_files" / "s0.h5").width == 8
    assert unpack(tmp_path / "p", tmp_path / "u") == unpack(tmp_path / "p", tmp_path / "u") == 6


def test_any_tool_opens_a_shard(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    write_pack(tmp_path / "p", manifest, tmp_path / "h5_files")
    tensors = load_file(tmp_path / "p" / "shard-00000.safetensors")
    np.testing.assert_array_equal(tensors["s1.features"], read_bag(tmp_path / "h5_files" / "s1.h5").features)


def test_one_damaged_shard_does_not_hide_the_slides_of_the_others(tmp_path: Path, monkeypatch) -> None:
    manifest = feature_folder(tmp_path)
    monkeypatch.setattr(pack_writer, "SHARD_BYTES", 1)
    write_pack(tmp_path / "p", manifest, tmp_path / "h5_files")
    truncated = tmp_path / "p" / "shard-00002.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:-9])
    pack = Pack(tmp_path / "p")
    for number in (0, 1, 3, 4, 5):
        np.testing.assert_array_equal(
            pack.read(f"s{number}").features, read_bag(tmp_path / "h5_files" / f"s{number}.h5").features
        )
    assert "s1" in pack
    for ask in (lambda: pack.read("s2"), lambda: len(pack), lambda: list(pack), lambda: "s2" in pack):
        with pytest.raises(BagError, match="shard-00002"):
            ask()


def test_one_damaged_bag_does_not_stop_the_unpacking_of_the_others(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    write_pack(tmp_path / "p", manifest, tmp_path / "h5_files")
    shard = tmp_path / "p" / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[content.index(Pack(tmp_path / "p").read("s1").features.tobytes()) + 5] ^= 1
    shard.write_bytes(content)
    with pytest.raises(BagError, match=r"1 of 6 slides(.|\n)*'s1' is damaged"):
        unpack(tmp_path / "p", tmp_path / "u")
    assert sorted(path.stem for path in (tmp_path / "u" / "h5_files").iterdir()) == ["s0", "s2", "s3", "s4", "s5"]
    assert not (tmp_path / "u" / "paths.csv").exists()
