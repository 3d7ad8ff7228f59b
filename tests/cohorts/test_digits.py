"""The digits cohort: the most urgent digit is the label, no image is in two splits, and it tells methods apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from pams_mil.cohorts.cohort_writer import CohortSlide, write_cohort
from pams_mil.cohorts.digits import Digits, image_pools
from pams_mil.data import Manifest, read_bag
from pams_mil.data.examine import examine_manifest
from pams_mil.discover import load
from pams_mil.errors import OutputError, ParameterError
from pams_mil.hierarchy import ClassHierarchy

TREE = ClassHierarchy.load("digits")
SMALL = Digits(train=35, val=14, test=21)


def test_no_image_is_in_two_splits() -> None:
    pools = image_pools(load_digits().target, seed=3)
    rows = [row for split in pools.values() for part in split.values() for row in part.tolist()]
    assert sorted(rows) == list(range(1797))
    for split, share in (("train", 0.6), ("val", 0.15), ("test", 0.25)):
        for digit in range(10):
            count = int((load_digits().target == digit).sum())
            assert abs(len(pools[split][digit]) - share * count) <= 1


def test_without_noise_instances_are_images_of_their_split() -> None:
    images, digits = load_digits(return_X_y=True)
    home: dict[bytes, set[str]] = {}
    pools = image_pools(digits, seed=0)
    for split, part in pools.items():
        for rows in part.values():
            for row in rows:
                home.setdefault((images[row] / 16).astype(np.float32).tobytes(), set()).add(split)
    for slide in replace(SMALL, noise=0.0).slides():
        for row in slide.bag.features:
            assert slide.record.split in home[row.tobytes()]


def test_labels_follow_the_rule() -> None:
    slides = list(SMALL.slides())
    ranks = TREE.ranks()
    for slide in slides:
        found = [TREE.index(label) for label in slide.instance_labels if label != "background"]
        target = TREE.index(slide.record.label)
        assert target in found
        assert max(ranks[found]) == ranks[target]
        assert len({int(index) for index in found if ranks[index] == ranks[target]}) == 1  # ties never meet
        assert ("mixed" in slide.record.tags) == (len(set(found)) > 1)
        assert len(slide.instance_labels) == slide.bag.num_instances
    assert 0.3 < sum("mixed" in slide.record.tags for slide in slides) / len(slides) < 0.8
    for split, count in (("train", 35), ("val", 14), ("test", 21)):
        labels = Counter(slide.record.label for slide in slides if slide.record.split == split)
        assert set(labels.values()) == {count // 7}


def test_same_seed_same_cohort() -> None:
    first, second, other = (list(maker.slides()) for maker in (SMALL, SMALL, replace(SMALL, seed=1)))
    assert [slide.bag.digest for slide in first] == [slide.bag.digest for slide in second]
    assert [slide.record for slide in first] == [slide.record for slide in second]
    assert not {slide.bag.digest for slide in first} & {slide.bag.digest for slide in other}


def test_written_cohorts_are_complete_and_clean(tmp_path: Path) -> None:
    write_cohort(tmp_path / "c", SMALL.slides(), total=len(SMALL))
    manifest = Manifest.read(tmp_path / "c" / "manifest.csv")
    assert len(manifest) == 70
    assert examine_manifest(manifest, TREE) == []
    assert manifest.select("val").records[0].tags in ((), ("mixed",))
    made: dict[str, CohortSlide] = {slide.record.slide_id: slide for slide in SMALL.slides()}
    for record in manifest:
        bag = read_bag(tmp_path / "c" / "h5_files" / f"{record.slide_id}.h5")
        np.testing.assert_array_equal(bag.features, made[record.slide_id].bag.features)
        assert bag.info.encoder == "digit-pixels"
    truth = (tmp_path / "c" / "instance_labels.csv").read_text().splitlines()
    assert truth[0] == "slide_id,row,label"
    assert len(truth) == 1 + sum(slide.bag.num_instances for slide in made.values())
    with pytest.raises(OutputError, match="already holds a cohort"):
        write_cohort(tmp_path / "c", SMALL.slides(), total=len(SMALL))


@pytest.mark.parametrize("change", [{"train": 3}, {"findings": 0}, {"smallest": 5}, {"mixed": 1.5}, {"noise": -1.0}])
def test_wrong_settings_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        replace(SMALL, **change)


def _accuracy(slides: list[CohortSlide], seed: int) -> tuple[float, int, int]:
    """Test accuracy, over-calls and under-calls of AB-MIL with cross-entropy, at the best validation epoch."""
    parts = {
        split: [
            (torch.from_numpy(s.bag.features), TREE.index(s.record.label)) for s in slides if s.record.split == split
        ]
        for split in ("train", "val", "test")
    }
    torch.manual_seed(seed)
    model = load("models", "abmil")(in_features=64, num_classes=7)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, weight_decay=1e-4)
    best: tuple[float, list[tuple[int, int]]] = (-1.0, [])
    for _ in range(25):
        model.train()
        for number in torch.randperm(len(parts["train"])).tolist():
            features, target = parts["train"][number]
            optimizer.zero_grad()
            functional.cross_entropy(model(features).logits, torch.tensor([target])).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            score = float(np.mean([int(model(x).logits.argmax()) == y for x, y in parts["val"]]))
            if score > best[0]:
                best = (score, [(int(model(x).logits.argmax()), y) for x, y in parts["test"]])
    pairs = best[1]
    over, under = sum(p > y for p, y in pairs), sum(p < y for p, y in pairs)
    return 1 - (over + under) / len(pairs), over, under


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hard_enough_and_wrong_in_both_directions(seed: int) -> None:
    accuracy, over, under = _accuracy(list(Digits(seed=seed).slides()), seed)
    assert 0.55 <= accuracy <= 0.85
    assert min(over, under) >= 5
