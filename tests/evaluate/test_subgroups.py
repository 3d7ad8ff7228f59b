"""Subgroups: counts against loops, a test that holds its level with clustered patients and case mix, and has power."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.test_audit import run
from tests.reference import subgroups as reference

from pams_mil import ClassHierarchy
from pams_mil.errors import ParameterError
from pams_mil.evaluate.predictions.join import join_seeds
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions
from pams_mil.evaluate.subgroups import (
    chi_squared,
    deals_of_groups,
    expected_events,
    subgroups,
)

TREE = ClassHierarchy.of(["normal", "atypia", "cancer"])


def sample(seed, patients=120, slides=2, sites=3, *, bad_site=None, mix=False):
    """Slides of patients at sites; all slides of an unlucky patient are missed; site 0 may see more cancer."""
    random = np.random.default_rng(seed)
    site = random.integers(0, sites, patients)
    weight = np.where(mix & (site == 0), 0.9, 0.1 if mix else 0.3)
    label = np.where(random.random(patients) < weight, 2, random.integers(0, 2, patients))
    unlucky = random.random(patients) < np.where((bad_site is not None) & (site == bad_site), 0.6, 0.25)
    target = np.repeat(label, slides)
    predicted = np.where(np.repeat(unlucky, slides) & (target > 0), target - 1, target)
    people = [f"p{number}" for number in np.repeat(np.arange(patients), slides)]
    tags = {"site": [f"site {number}" for number in np.repeat(site, slides)]}
    ids = [f"s{number}" for number in range(patients * slides)]
    return Predictions("model", TREE, ids, target, predicted, patient_ids=people, tags=tags)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=30))
def test_counts_and_statistic_are_those_of_the_loops(rows):
    event, target, group = (np.array(column) for column in zip(*rows, strict=True))
    expected = expected_events(event, target)
    found = reference.observed_and_expected(event, target, group)
    for number, (seen, wanted) in found.items():
        assert event[group == number].sum() == seen
        assert expected[group == number].sum() == pytest.approx(wanted)
    assert chi_squared(event, expected, group, 4) == pytest.approx(reference.statistic(event, target, group))


def test_deals_keep_patients_whole_and_classes_alike():
    model = sample(0, mix=True)
    group = np.array([int(cell[-1]) for cell in model.tags["site"]])
    for dealt in deals_of_groups(group, model.patient, model.target, seed=1, deals=20):
        assert all(len(set(dealt[model.patient == patient])) == 1 for patient in range(model.num_patients))
        for label in range(3):
            own = model.target == label
            assert np.bincount(dealt[own], minlength=3).tolist() == np.bincount(group[own], minlength=3).tolist()
    crossed = np.tile([0, 1], 120)  # every patient on both scanners: rows of labels are exchanged, which are all alike
    for dealt in deals_of_groups(crossed, model.patient, model.target, seed=1, deals=3):
        assert dealt.tolist() == crossed.tolist()


def test_every_group_is_counted_and_small_ones_say_so():
    model = sample(3, patients=200, sites=2)
    cells = list(model.tags["site"])
    cells[:4] = ["", "", "tiny", "tiny"]
    model = Predictions(
        "model",
        TREE,
        model.slide_ids,
        model.target,
        model.predicted,
        patient_ids=model.patient_ids,
        tags={"site": cells},
    )
    (found,) = subgroups([model], ["site"], resamples=50)
    assert [group.name for group in found.groups] == ["site 0", "site 1", "tiny", "unknown"]
    assert sum(group.slides for group in found.groups) == 400
    assert [group.too_small for group in found.groups] == [False, False, True, True]
    assert found.worst.name in ("site 0", "site 1")
    assert any("Too few patients" in sentence and "'tiny', 'unknown'" in sentence for sentence in found.sentences)
    assert sum(group.missed.count for group in found.groups) == (model.predicted < model.target).sum()
    assert found.p_false_alarms is None  # there are none
    with pytest.raises(ParameterError, match="no column 'sit'"):
        subgroups([model], ["sit"])


def test_a_bad_site_is_found_and_named():
    (found,) = subgroups([sample(1, patients=300, bad_site=1)], ["site"], resamples=500)
    assert found.p_missed < 0.01
    assert found.worst.name == "site 1"
    assert "differ beyond chance" in " ".join(found.sentences)
    group = found.groups[1]
    low, high = group.missed.share.interval
    assert low < group.missed.share.value < high
    assert group.missed.count > 1.3 * group.missed.expected


@pytest.mark.slow
def test_the_test_holds_its_level_and_ignoring_patients_or_classes_would_not():
    kept, slides_alone, classes_mixed = [], [], []
    for seed in range(300):
        model = sample(seed, patients=80, slides=4, mix=True)
        (found,) = subgroups([model], ["site"], resamples=99, seed=seed)
        kept.append(found.p_missed <= 0.05)
        loose = Predictions("m", TREE, model.slide_ids, model.target, model.predicted, tags=model.tags)
        slides_alone.append(subgroups([loose], ["site"], resamples=99, seed=seed)[0].p_missed <= 0.05)
        # sabotage: expected without classes, dealt without classes
        group = np.array([int(cell[-1]) for cell in model.tags["site"]])
        event = model.predicted < model.target
        flat = np.full(len(event), event.mean())
        seen = chi_squared(event, flat, group, 3)
        same = np.zeros_like(model.target)
        random = [
            chi_squared(event, flat, d, 3) for d in deals_of_groups(group, model.patient, same, seed=seed, deals=99)
        ]
        classes_mixed.append((np.sum(np.array(random) >= seen) + 1) / 100 <= 0.05)
    assert np.mean(kept) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
    assert np.mean(slides_alone) > 0.2
    assert np.mean(classes_mixed) > 0.1


@pytest.mark.slow
def test_intervals_cover_with_clustered_slides():
    random, inside, naive = np.random.default_rng(0), [], []
    from pams_mil.metrics.proper import wilson

    def interval(event, seed):
        people = [f"p{number}" for number in np.repeat(np.arange(len(event) // 4), 4)]
        target, tags = np.ones(len(event), int), {"site": ["one"] * len(event)}
        ids = [f"s{row}" for row in range(len(event))]
        model = Predictions("m", TREE, ids, target, target - event, patient_ids=people, tags=tags)
        return subgroups([model], ["site"], resamples=400, seed=seed)[0].groups[0].missed.share.interval

    for seed in range(1000):
        unlucky = random.random(60) < 0.2
        event = np.repeat(unlucky, 4) & (random.random(240) < 0.9)
        low, high = interval(event, seed)
        inside.append(low <= 0.18 <= high)
        plain = wilson(event.sum(), 240)
        naive.append(plain[0] <= 0.18 <= plain[1])
    assert np.mean(inside) > 0.93
    assert np.mean(naive) < 0.8
    assert interval(np.zeros(40, int), 0)[1] > 0.25  # ten patients, not forty slides


def test_networks_are_chance_in_every_group():
    one = sample(1, patients=100)
    other = replace(one, predicted=np.where(np.arange(len(one)) % 7 == 0, 0, one.predicted))
    (found,) = subgroups([join_seeds("method", {"0": one, "1": other})], ["site"], resamples=50)
    for group in found.groups:
        of_group = np.array([cell == group.name for cell in one.tags["site"]])
        own = [(seed.predicted < seed.target)[of_group].mean() for seed in (one, other)]
        assert group.missed.share.seeds == pytest.approx(own)
        assert group.missed.share.varied == "patients and networks"
        assert group.slides == of_group.sum()  # each once, not once per seed
        assert group.missed.count / group.slides == pytest.approx(group.missed.share.value)


def test_command_page_and_json_agree(tmp_path):
    model = sample(1, patients=200, bad_site=1)
    write_predictions(tmp_path / "m.csv", model)
    (tmp_path / "classes.yaml").write_text("name: c\nclasses: [normal, atypia, cancer]\n")
    arguments = (tmp_path / "m.csv", "--classes", tmp_path / "classes.yaml", "--by", "site", "--out", tmp_path / "out")
    scores = json.loads(run(*arguments, "--json").stdout)
    (found,) = scores["subgroups"]
    assert found["worst"] == "site 1"
    page = (tmp_path / "out" / "report.html").read_text()
    worst = next(group for group in found["groups"] if group["name"] == "site 1")
    assert f"{100 * worst['missed']['share']['value']:.1f} %" in page
    assert "model by site" not in page  # named after the file
    assert "m by site" in page
    shown = " ".join(run(*arguments).output.split())
    assert f"misses most at site site 1: {100 * worst['missed']['share']['value']:.1f} %" in shown
