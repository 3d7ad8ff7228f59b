"""Planted lesions: counts of the paper's cohorts, labels by the rule, and features that hold what they claim."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pams_mil.cohorts.synthetic import COUNTS, Synthetic
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy

SMALL = Synthetic(scale=0.1, width=16)


def test_the_tables_of_the_paper() -> None:
    totals = {name: [sum(part.values()) for part in table.values()] for name, table in COUNTS.items()}
    assert totals == {"bracs": [395, 65, 87], "colon": [3190, 678, 866]}
    assert len(Synthetic()) == 547
    assert Synthetic(classes="colon").counts()["test"]["TA"] == 300
    assert Synthetic(classes="isup").counts()["train"] == dict.fromkeys(ClassHierarchy.load("isup").names(), 20)


@pytest.mark.parametrize("classes", ["bracs", "colon", "bethesda"])
def test_labels_follow_the_rule_and_counts(classes: str) -> None:
    maker = replace(SMALL, classes=classes)
    hierarchy = ClassHierarchy.load(classes)
    slides = list(maker.slides())
    assert len(slides) == len(maker)
    for split, expected in maker.counts().items():
        assert Counter(s.record.label for s in slides if s.record.split == split) == expected
    for slide in slides:
        found = [hierarchy.index(label) for label in slide.instance_labels if label != "background"]
        target = hierarchy.index(slide.record.label)
        assert target in found
        assert not hierarchy.outranks()[found, target].any()
        assert 50 <= slide.bag.num_instances <= 400
        assert ("mixed" in slide.record.tags) == (len(set(found)) > 1)


def test_lesions_lie_along_their_direction() -> None:
    hierarchy = ClassHierarchy.load("bracs")
    maker = replace(SMALL, separation=6.0)
    directions = maker.directions(hierarchy)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
    along, across = [], []
    for slide in maker.slides():
        rows = slide.bag.features @ directions[: hierarchy.num_classes()].T
        for row, label in zip(rows, slide.instance_labels, strict=True):
            if label != "background":
                along.append(row[hierarchy.index(label)])
            else:
                across.append(np.abs(row).mean())
    assert abs(np.mean(along) - 6.0) < 0.3
    assert np.mean(across) < 4.0


def test_same_seed_same_cohort() -> None:
    assert [s.bag.digest for s in SMALL.slides()] == [s.bag.digest for s in SMALL.slides()]
    assert next(SMALL.slides()).bag.digest != next(replace(SMALL, seed=1).slides()).bag.digest


@pytest.mark.parametrize("change", [{"width": 1}, {"smallest": 900}, {"lesion": 0.9}, {"scale": 0.0}, {"mixed": -0.1}])
def test_wrong_settings_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        replace(SMALL, **change)
