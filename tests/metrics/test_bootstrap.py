"""The bootstrap is a bootstrap of patients: each shortcut equals drawing patients and counting their slides."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from tests.reference import metrics as reference
from tests.strategies import predictions, random_predictions

from pams_mil import ClassHierarchy
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics import bootstrap
from pams_mil.metrics.bootstrap import (
    AucResampler,
    Patterns,
    auc_samples,
    holm,
    interval,
    label_samples,
    multiplicities,
)
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.metric import LabelMetrics


def codes(model: Predictions) -> np.ndarray:
    return model.target * model.hierarchy.num_classes() + model.predicted


def cells_of_patients(model: Predictions) -> dict[int, tuple[int, ...]]:
    """Cell counts of every patient, by looping over the slides."""
    size = model.hierarchy.num_classes() ** 2
    found: dict[int, list[int]] = {}
    for patient, code in zip(model.patient.tolist(), codes(model).tolist(), strict=True):
        found.setdefault(patient, [0] * size)[code] += 1
    return {patient: tuple(counts) for patient, counts in found.items()}


@given(predictions())
def test_patterns_group_exactly_the_patients_with_equal_cells(model: Predictions):
    patterns = Patterns.of(model.patient, codes(model), size=model.hierarchy.num_classes() ** 2)
    found = {tuple(row): count for row, count in zip(patterns.cells.tolist(), patterns.patients.tolist(), strict=True)}
    patients = list(cells_of_patients(model).values())
    assert found == {cells: patients.count(cells) for cells in patients}
    assert len(found) == len(patterns.patients)  # no pattern is listed twice


@given(predictions(), st.integers(0, 1000))
def test_paired_patterns_keep_both_models_together(model: Predictions, seed: int):
    size = model.hierarchy.num_classes() ** 2
    other = np.random.default_rng(seed).integers(0, size, len(model))
    patterns = Patterns.of(model.patient, codes(model), other, size=size)
    assert (patterns.patients @ patterns.cells[:, :size] == np.bincount(codes(model), minlength=size)).all()
    assert (patterns.patients @ patterns.cells[:, size:] == np.bincount(other, minlength=size)).all()
    assert patterns.patients.sum() == model.num_patients
    per_patient = patterns.cells.sum(1) // 2
    assert sorted(np.repeat(per_patient, patterns.patients)) == sorted(np.bincount(model.patient).tolist())


@pytest.mark.parametrize("cost", [0, 10**9], ids=["by pattern", "by patient"])
@given(model=predictions(), seed=st.integers(0, 1000))
def test_resampling_patterns_is_resampling_patients(cost: int, model: Predictions, seed: int):
    """For the same draws, counting the slides of explicitly drawn patients gives the same confusion matrices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "_MULTINOMIAL_COST", cost)
        size = model.hierarchy.num_classes()
        patterns = Patterns.of(model.patient, codes(model), size=size**2)
        draws = patterns.draws(np.random.default_rng(seed), 5)
        counts = patterns.resample(np.random.default_rng(seed), 5)
    by_cells: dict[tuple[int, ...], list[int]] = {}
    for patient, cells in cells_of_patients(model).items():
        by_cells.setdefault(cells, []).append(patient)
    for draw, found in zip(draws, counts, strict=True):
        assert draw.sum() == model.num_patients
        drawn = [by_cells[tuple(cells)][0] for cells, times in zip(patterns.cells.tolist(), draw, strict=True)
                 for _ in range(times)]  # fmt: skip
        rows = np.concatenate([np.flatnonzero(model.patient == patient) for patient in drawn])
        assert (count_cells(model.target[rows], model.predicted[rows], size).ravel() == found).all()


@pytest.mark.parametrize("cost", [0, 10**9], ids=["by pattern", "by patient"])
def test_resamples_have_the_distribution_of_an_explicit_bootstrap(cost: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bootstrap, "_MULTINOMIAL_COST", cost)
    rng = np.random.default_rng(5)
    model = random_predictions(ClassHierarchy.flat(list("abc")), 120, patients=40, rng=rng)
    score = LabelMetrics(model.hierarchy)
    fast = label_samples(score, Patterns.of(model.patient, codes(model), size=9), seed=1, resamples=3000)["ascc"]
    slides = [np.flatnonzero(model.patient == patient) for patient in range(model.num_patients)]
    slow = []
    for _ in range(1500):
        rows = np.concatenate([slides[patient] for patient in rng.integers(0, len(slides), len(slides))])
        slow.append(float(score(count_cells(model.target[rows], model.predicted[rows], 3))["ascc"]))
    assert scipy.stats.ks_2samp(fast, slow).pvalue > 0.01


def test_slides_of_one_patient_make_the_interval_wider():
    """Ten identical slides per patient carry the information of one; a slide bootstrap would not notice."""
    rng = np.random.default_rng(0)
    hierarchy = ClassHierarchy.flat(list("abc"))
    target, predicted = rng.integers(0, 3, 60), rng.integers(0, 3, 60)
    cells = np.repeat(target * 3 + predicted, 10)
    score = LabelMetrics(hierarchy)
    by_patient = label_samples(score, Patterns.of(np.repeat(np.arange(60), 10), cells, size=9), resamples=1000)["acc"]
    by_slide = label_samples(score, Patterns.of(np.arange(600), cells, size=9), resamples=1000)["acc"]
    single = label_samples(score, Patterns.of(np.arange(60), cells[::10], size=9), resamples=1000)["acc"]
    assert by_patient.std() == pytest.approx(single.std(), rel=0.1)
    assert by_patient.std() > 2.5 * by_slide.std()


@pytest.mark.parametrize("entries", [1, 7, 1 << 21])
def test_blocks_change_memory_and_nothing_else(entries: int, monkeypatch: pytest.MonkeyPatch):
    model = random_predictions(ClassHierarchy.flat(list("abc")), 50, patients=20, rng=np.random.default_rng(2))
    patterns = Patterns.of(model.patient, codes(model), codes(model)[::-1], size=9)
    expected = patterns.resample(np.random.default_rng(0), 11), patterns.swap(np.random.default_rng(0), 11)
    monkeypatch.setattr(bootstrap, "_BLOCK_ENTRIES", entries)
    assert sum(bootstrap._blocks(11, len(patterns.cells))) == 11
    assert (patterns.resample(np.random.default_rng(0), 11) == expected[0]).all()
    assert (np.array(patterns.swap(np.random.default_rng(0), 11)) == np.array(expected[1])).all()


@given(predictions(most_rows=30), st.integers(0, 1000))
def test_swaps_exchange_whole_patients(model: Predictions, seed: int):
    size = model.hierarchy.num_classes() ** 2
    other = np.random.default_rng(seed).integers(0, size, len(model))
    first, second = Patterns.of(model.patient, codes(model), other, size=size).swap(np.random.default_rng(seed), 8)
    a, b = np.bincount(codes(model), minlength=size), np.bincount(other, minlength=size)
    assert (first + second == a + b).all()  # nothing is lost or made up
    assert (first.sum(1) == len(model)).all()
    assert (first >= 0).all()
    assert (second >= 0).all()
    if model.num_patients == 1:
        assert all((row == a).all() or (row == b).all() for row in first)


def test_a_swap_of_equal_models_changes_nothing():
    model = random_predictions(ClassHierarchy.flat(list("abc")), 30, patients=9, rng=np.random.default_rng(0))
    first, second = Patterns.of(model.patient, codes(model), codes(model), size=9).swap(np.random.default_rng(0), 4)
    assert (first == second).all()


@given(predictions(most_rows=40), st.integers(0, 1000))
def test_weighted_auc_is_the_auc_of_repeated_rows(model: Predictions, seed: int):
    true, scores = model.target, model.probabilities
    weights = multiplicities(np.random.default_rng(seed), model.num_patients)[model.patient]
    resampler = AucResampler(true, scores)
    assert resampler(np.ones(len(true), dtype=np.int64)) == pytest.approx(
        reference.macro_auc(true.tolist(), scores.tolist()), nan_ok=True
    )
    rows = np.repeat(np.arange(len(true)), weights)
    found = resampler(weights)
    if not len(rows):
        assert math.isnan(found)
        return
    aucs = [
        sklearn.metrics.roc_auc_score(true[rows] == c, scores[rows, c])
        for c in range(scores.shape[1])
        if 0 < np.sum(true[rows] == c) < len(rows)
    ]
    assert found == pytest.approx(np.mean(aucs) if aucs else math.nan, nan_ok=True)


def test_auc_samples_are_paired_and_follow_the_seed():
    model = random_predictions(ClassHierarchy.flat(list("abc")), 80, patients=25, rng=np.random.default_rng(3))
    resampler = AucResampler(model.target, model.probabilities)
    seen: list[float] = []
    both = auc_samples([resampler, resampler], model.patient, seed=4, resamples=20, progress=seen.append)
    assert (both[0] == both[1]).all()
    rng = np.random.default_rng(4)
    for value in both[0]:
        assert value == resampler(multiplicities(rng, model.num_patients)[model.patient])
    assert seen[-1] == 1.0
    assert not (auc_samples([resampler], model.patient, seed=5, resamples=20) == both[0]).all()


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_equals_its_definition(p_values: list[float]):
    found = holm(p_values)
    assert found.tolist() == pytest.approx(reference.holm(p_values))
    assert (found >= np.array(p_values) - 1e-15).all()
    assert (found <= 1).all()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([3.0] * 5, (3.0, 3.0)),
        ([0.0, math.inf], (0.0, 0.0)),
        ([0.0, math.inf, math.inf], (math.nan, math.nan)),
        ([math.nan] * 3, (math.nan, math.nan)),
        ([], (math.nan, math.nan)),
    ],
)
def test_intervals_of_undefined_resamples(samples: list[float], expected: tuple[float, float]):
    assert interval(np.array(samples)) == pytest.approx(expected, nan_ok=True)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """400 studies of 60 patients with correlated slides; the 95 % interval of accuracy must cover about 95 %."""
    hierarchy, rng, hits = ClassHierarchy.flat(["a", "b"]), np.random.default_rng(0), 0
    for study in range(400):
        right = rng.random(60) < 0.7
        code = np.repeat(np.where(right, 0, 1), 3)  # three slides per patient, all right or all wrong
        patterns = Patterns.of(np.repeat(np.arange(60), 3), code, size=4)
        low, high = interval(label_samples(LabelMetrics(hierarchy), patterns, seed=study, resamples=400)["acc"])
        hits += low <= 0.7 <= high
    assert 0.90 <= hits / 400 <= 0.98
