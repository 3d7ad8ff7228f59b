"""Splits are patient-disjoint, complete, stratified to within one patient, and a function of seed and slides."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold
from tests.data.cohorts import TREE, manifests

from pams_mil.data import Manifest, SlideRecord
from pams_mil.data.manifest.manifest import most_urgent
from pams_mil.data.splits import Split, split_folds, split_once, write_split
from pams_mil.errors import ManifestError, ParameterError
from pams_mil.hierarchy import ClassHierarchy


def _patient_classes(manifest: Manifest) -> dict[str, int]:
    found: dict[str, list[int]] = {}
    for record, target in zip(manifest, manifest.targets(TREE).tolist(), strict=True):
        found.setdefault(record.patient_id, []).append(target)
    return {patient: most_urgent(targets, TREE) for patient, targets in found.items()}


def _check_disjoint_and_complete(manifest: Manifest, split: Split) -> None:
    for fold in split.folds:
        assert len(fold) == len(manifest)
        assert set(fold) <= {"train", "val", "test"}
        homes: dict[str, set[str]] = {}
        for record, name in zip(manifest, fold, strict=True):
            homes.setdefault(record.patient_id, set()).add(name)
        assert all(len(names) == 1 for names in homes.values())


def _check_within_one_patient(manifest: Manifest, fold: tuple[str, ...], fractions: dict[str, float]) -> None:
    classes = _patient_classes(manifest)
    home = {record.patient_id: name for record, name in zip(manifest, fold, strict=True)}
    totals = Counter(classes.values())
    for name, fraction in fractions.items():
        got = Counter(classes[patient] for patient in home if home[patient] == name)
        for target, total in totals.items():
            assert abs(got[target] - fraction * total) < 1 + 1e-9


@settings(max_examples=50)
@given(manifest=manifests(), folds=st.integers(3, 6), seed=st.integers(0, 2**32))
def test_folds(manifest: Manifest, folds: int, seed: int) -> None:
    assume(folds <= len(manifest.patients))
    split = split_folds(manifest, TREE, folds=folds, seed=seed)
    assert len(split.folds) == folds
    _check_disjoint_and_complete(manifest, split)
    for slide in range(len(manifest)):
        assert Counter(fold[slide] for fold in split.folds) == {"test": 1, "val": 1, "train": folds - 2}
    for fold in split.folds:
        _check_within_one_patient(manifest, fold, {"test": 1 / folds, "val": 1 / folds})


@settings(max_examples=50)
@given(
    manifest=manifests(),
    fractions=st.sampled_from([(0.7, 0.1, 0.2), (0.5, 0.25, 0.25), (0.34, 0.33, 0.33)]),
    seed=st.integers(0, 2**32),
)
def test_one_split(manifest: Manifest, fractions: tuple[float, float, float], seed: int) -> None:
    split = split_once(manifest, TREE, fractions=fractions, seed=seed)
    _check_disjoint_and_complete(manifest, split)
    _check_within_one_patient(manifest, split.folds[0], dict(zip(("train", "val", "test"), fractions, strict=True)))


@settings(max_examples=30)
@given(manifest=manifests(), seed=st.integers(0, 99))
def test_the_order_of_the_table_does_not_matter(manifest: Manifest, seed: int) -> None:
    shuffled = list(manifest.records)
    random.Random(seed).shuffle(shuffled)
    assume(len(manifest.patients) >= 4)
    first = split_folds(manifest, TREE, folds=4, seed=seed)
    second = split_folds(Manifest(tuple(shuffled)), TREE, folds=4, seed=seed)
    for one, two in zip(first.folds, second.folds, strict=True):
        named = dict(zip((r.slide_id for r in manifest), one, strict=True))
        assert [named[r.slide_id] for r in shuffled] == list(two)


def test_seeds_differ_and_repeat() -> None:
    manifest = Manifest(tuple(SlideRecord(f"s{n}", f"p{n}", TREE.names()[n % 7]) for n in range(200)))
    made = {seed: split_folds(manifest, TREE, folds=5, seed=seed).folds for seed in range(4)}
    assert len(set(made.values())) == 4
    assert split_folds(manifest, TREE, folds=5, seed=2).folds == made[2]


@settings(max_examples=40)
@given(manifest=manifests(), folds=st.booleans())
def test_held_out_slides_only_test(manifest: Manifest, folds: bool) -> None:
    tagged = {record.patient_id for record in manifest if record.has_tag("mixed")}
    assume(not folds or len(manifest.patients) >= 3)
    make = split_folds if folds else split_once
    options = {"folds": 3} if folds else {}
    if not tagged or len(tagged) == len(manifest.patients):
        with pytest.raises(ManifestError):
            make(manifest, TREE, hold_out_tag="mixed", **options)
        return
    split = make(manifest, TREE, hold_out_tag="mixed", **options)
    _check_disjoint_and_complete(manifest, split)
    for fold in split.folds:
        assert all(name == "test" for r, name in zip(manifest, fold, strict=True) if r.patient_id in tagged)
    assert split.held_out == sum(r.has_tag("mixed") for r in manifest)
    assert split.held_out + split.followed == sum(r.patient_id in tagged for r in manifest)


def test_wrong_settings_are_refused() -> None:
    manifest = Manifest((SlideRecord("a", "p", "N", tags=("mixed",)), SlideRecord("b", "q", "N")))
    with pytest.raises(ParameterError, match="at least 3"):
        split_folds(manifest, TREE, folds=2)
    with pytest.raises(ParameterError, match="sum 1"):
        split_once(manifest, TREE, fractions=(0.5, 0.2, 0.2))
    with pytest.raises(ManifestError, match="Did you mean 'mixed'"):
        split_once(manifest, TREE, hold_out_tag="mixd")


def test_same_seed_same_bytes_and_the_manifest_carries_the_folds(tmp_path: Path) -> None:
    manifest = Manifest(tuple(SlideRecord(f"s{n}", f"p{n // 3}", TREE.names()[n % 7]) for n in range(90)))
    split = split_folds(manifest, TREE, folds=3, seed=5)
    for name in ("one", "two"):
        write_split(tmp_path / name, manifest, TREE, split, is_folds=True)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["manifest.csv", "splits_0.csv", "splits_1.csv", "splits_2.csv"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    for fold in range(3):
        again = Manifest.read(tmp_path / "one" / "manifest.csv", fold=fold)
        clam = Manifest.read(tmp_path / "one" / "manifest.csv", splits=tmp_path / "one" / f"splits_{fold}.csv")
        assert tuple(r.split for r in again) == tuple(r.split for r in clam) == split.folds[fold]


@pytest.mark.parametrize("is_folds", [True, False])
def test_folds_of_an_earlier_split_are_not_carried_on_and_other_columns_are(tmp_path: Path, is_folds: bool) -> None:
    old = {"fold_7": "train", "fold_notes": "by hand"}
    manifest = Manifest(tuple(SlideRecord(f"s{n}", f"p{n}", TREE.names()[n % 7], extra=old) for n in range(30)))
    split = split_folds(manifest, TREE, folds=3) if is_folds else split_once(manifest, TREE)
    write_split(tmp_path, manifest, TREE, split, is_folds=is_folds)
    header = (tmp_path / "manifest.csv").read_text().splitlines()[0].split(",")
    new = ["fold_0", "fold_1", "fold_2"] if is_folds else []
    assert [name for name in header if name.startswith("fold_")] == ["fold_notes", *new]


def _slide_imbalance(parts: np.ndarray, targets: np.ndarray, folds: int) -> float:
    counts = np.array([[np.sum((parts == p) & (targets == c)) for c in np.unique(targets)] for p in range(folds)])
    ideal = counts.sum(axis=0) / folds
    return float((((counts - ideal) ** 2) / ideal).sum())


def test_cric_is_split_by_block_and_as_evenly_as_scikit_learn(cric: Path) -> None:
    hierarchy = ClassHierarchy.load("bethesda")
    manifest = Manifest.read(cric / "labels.csv")
    split = split_folds(manifest, hierarchy, folds=5, seed=0)
    _check_disjoint_and_complete(manifest, split)
    targets = manifest.targets(hierarchy)
    tests = np.array(split.folds) == "test"
    ours = _slide_imbalance(tests.argmax(axis=0), targets, 5)
    groups = [record.patient_id for record in manifest]
    peers = []
    for seed in range(3):
        parts = np.zeros(len(manifest), int)
        peer = StratifiedGroupKFold(5, shuffle=True, random_state=seed)
        for number, (_, test) in enumerate(peer.split(targets, targets, groups)):
            parts[test] = number
        peers.append(_slide_imbalance(parts, targets, 5))
    assert ours <= np.median(peers)


def test_a_calibration_part_that_some_folds_lack_is_counted_in_all(tmp_path: Path) -> None:
    manifest = Manifest(tuple(SlideRecord(f"s{i}", f"p{i}", "N") for i in range(4)))
    folds = (("train", "calib", "val", "test"), ("train", "train", "test", "val"))
    for order in (folds, folds[::-1]):
        written = write_split(tmp_path / order[0][1], manifest, TREE, Split(order), is_folds=True)
        assert [counts["calib"]["N"] for counts in written.counts] == [names.count("calib") for names in order]


def test_more_folds_than_patients_are_refused() -> None:
    slides = [SlideRecord(f"s{row}", f"p{row}", TREE.classes[row % 2]) for row in range(8)]
    with pytest.raises(ParameterError, match="9 folds need at least as many patients, found 8"):
        split_folds(Manifest(tuple(slides)), TREE, folds=9)
