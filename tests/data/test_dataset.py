"""The training dataset gives the same data in any number of workers, however they are started."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from tests.data import writers
from tests.data.cohorts import TREE, feature_folder
from torch.utils.data import DataLoader

from pams_mil.data import BagDataset, BagSample, Manifest, Pack, write_pack
from pams_mil.data.bags.bag import Bag
from pams_mil.data.bags.dataset import BagCache, keep_bags
from pams_mil.data.bags.store import FeatureFolder
from pams_mil.data.manifest.manifest import bag_sources
from pams_mil.errors import BagError


@pytest.fixture(params=["folder", "pack"])
def cohort(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Manifest, Path]:
    manifest = feature_folder(tmp_path)
    if request.param == "folder":
        return manifest, tmp_path / "h5_files"
    write_pack(tmp_path / "p", manifest, tmp_path / "h5_files")
    return manifest, tmp_path / "p"


def _same(first: BagSample, second: BagSample) -> None:
    assert first[1:4] == second[1:4]
    assert torch.equal(first.features, second.features)


def test_items(cohort: tuple[Manifest, Path]) -> None:
    manifest, features = cohort
    dataset = BagDataset(manifest, TREE, features, with_coords=True)
    assert len(dataset) == 6
    assert dataset.targets == tuple(range(6))
    for number, sample in enumerate(dataset):
        values, coords = writers.numbers(40 + number, 12, seed=number)
        assert (sample.slide_id, sample.patient_id, sample.target) == (f"s{number}", f"p{number // 2}", number)
        assert torch.equal(sample.features, torch.from_numpy(values))
        assert torch.equal(sample.coords_px0, torch.from_numpy(coords))
    _same(dataset[-1], dataset[5])
    with pytest.raises(IndexError):
        dataset[6]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores, on purpose
@pytest.mark.parametrize(
    ("workers", "method", "cohort"),
    [
        *((workers, "fork", kind) for workers in (1, 3) for kind in ("folder", "pack")),
        (1, "spawn", "pack"),
        *(pytest.param(2, "spawn", kind, marks=pytest.mark.slow) for kind in ("folder", "pack")),
    ],
    indirect=["cohort"],
)
def test_workers_do_not_change_data(cohort: tuple[Manifest, Path], workers: int, method: str) -> None:
    manifest, features = cohort
    dataset = BagDataset(manifest, TREE, features, cache_bytes=10_000)
    alone = [dataset[number] for number in range(len(dataset))]
    context = multiprocessing.get_context(method)
    loader = DataLoader(dataset, collate_fn=keep_bags, num_workers=workers, multiprocessing_context=context)
    for expected, (sample,) in zip(alone, loader, strict=True):
        _same(expected, sample)


def test_pickling_leaves_cache_and_handles_behind(cohort: tuple[Manifest, Path]) -> None:
    manifest, features = cohort
    dataset = BagDataset(manifest, TREE, features, cache_bytes=1 << 20)
    before = len(pickle.dumps(dataset))
    for number in range(6):
        dataset[number]
    again = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < before + 5000
    _same(again[2], dataset[2])


def test_the_cache_keeps_to_its_budget_and_cannot_be_altered(cohort: tuple[Manifest, Path]) -> None:
    manifest, features = cohort
    budget = 2 * 45 * 12 * 4
    dataset = BagDataset(manifest, TREE, features, cache_bytes=budget)
    clean = [dataset[number].features.clone() for number in range(6)]
    held = dataset._held
    assert 0 < len(held) < 6
    sizes = [bag.features.nbytes + bag.coords_px0.nbytes for bags in held.values() for bag in bags]
    assert sum(sizes) == dataset.cache.nbytes <= budget
    for number in range(6):
        dataset[number].features.zero_()
    for number in range(6):
        assert torch.equal(dataset[number].features, clean[number])


def test_a_full_cache_reads_no_file_twice(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    dataset = BagDataset(manifest, TREE, tmp_path / "h5_files", cache_bytes=1 << 20)
    first = [dataset[number] for number in range(6)]
    for path in (tmp_path / "h5_files").iterdir():
        path.unlink()
    for expected, sample in zip(first, dataset, strict=False):
        _same(expected, sample)


def test_precision(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    write_pack(tmp_path / "p", manifest, tmp_path / "h5_files", dtype="float16")
    assert BagDataset(manifest, TREE, tmp_path / "p")[0].features.dtype == torch.float32
    assert BagDataset(manifest, TREE, tmp_path / "p", dtype=None)[0].features.dtype == torch.float16


def test_cases_can_be_merged(cohort: tuple[Manifest, Path]) -> None:
    manifest, features = cohort
    sources = bag_sources(manifest, TREE, merge_cases=True)
    dataset = BagDataset(manifest, TREE, features, sources=sources, with_coords=True)
    slides = BagDataset(manifest, TREE, features)
    assert [(s.slide_id, s.target) for s in dataset] == [("p0", 1), ("p1", 3), ("p2", 5)]
    for number in range(3):
        pair = [slides[2 * number].features, slides[2 * number + 1].features]
        assert torch.equal(dataset[number].features, torch.cat(pair))
        assert dataset[number].coords_px0.shape == (len(torch.cat(pair)), 2)


def test_damage_is_found_at_the_first_read(cohort: tuple[Manifest, Path]) -> None:
    manifest, features = cohort
    if features.name == "p":
        shard = features / "shard-00000.safetensors"
        content = bytearray(shard.read_bytes())
        content[content.index(Pack(features).read("s0").features.tobytes())] ^= 1
        shard.write_bytes(content)
    else:
        values, coords = writers.numbers(40)
        values[0, 0] = np.nan
        writers.clam(features / "s0.h5", values, coords)
    with pytest.raises(BagError, match="s0"):
        BagDataset(manifest, TREE, features)[0]


def test_datasets_that_share_a_cache_read_a_file_once_until_it_changes(
    cohort: tuple[Manifest, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, features = cohort
    reads: list[str] = []
    for kind in (FeatureFolder, Pack):

        def count(self: Any, record: Any, *, verify: bool = True, of: Any = kind.read) -> Bag:
            reads.append(record.slide_id)
            return of(self, record, verify=verify)

        monkeypatch.setattr(kind, "read", count)
    cache = BagCache(1 << 20)
    first = list(BagDataset(manifest, TREE, features, cache=cache))
    again = list(BagDataset(manifest, TREE, features, cache=cache))
    assert len(reads) == len(first) == 6
    for one, other in zip(first, again, strict=True):
        _same(one, other)
        other.features.zero_()
    for one, other in zip(first, BagDataset(manifest, TREE, features, cache=cache), strict=False):
        _same(one, other)
    list(BagDataset(manifest, TREE, features, cache=cache, with_coords=True))
    assert len(reads) == 6
    assert cache.nbytes <= cache.limit
    assert len(pickle.loads(pickle.dumps(cache))) == 0


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    cache = BagCache(1 << 20)
    before = BagDataset(manifest, TREE, tmp_path / "h5_files", cache=cache)[0]
    path = tmp_path / "h5_files" / f"{before.slide_id}.h5"
    with h5py.File(path, "r+") as file:
        file["features"][...] = file["features"][...] + 1
    after = BagDataset(manifest, TREE, tmp_path / "h5_files", cache=cache)[0]
    assert torch.equal(after.features, before.features + 1)
