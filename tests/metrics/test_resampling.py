"""The resampler against plain loops: draws, swaps, weighted sums, intervals and Holm's correction."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import metrics as reference

from pams_mil import ClassHierarchy
from pams_mil.metrics import resampling
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.resampling import Sums, Units, holm, percentile_interval, swap_p_value
from pams_mil.metrics.slides import Slides


@given(st.integers(1, 12), st.integers(0, 1000), st.booleans())
def test_weighted_sums_are_those_of_a_loop_dense_or_sparse(units: int, seed: int, valued: bool):
    rng = np.random.default_rng(seed)
    entries, rows, width = 40, 15, 6
    row, column = rng.integers(0, rows, entries), rng.integers(0, width, entries)
    value = rng.random(entries) if valued else None
    unit, weights = rng.integers(0, units, rows), rng.integers(0, 3, (4, units)).astype(np.float32)
    expected = np.zeros((4, width))
    for entry in range(entries):
        for draw in range(4):
            amount = 1.0 if value is None else value[entry]
            expected[draw, column[entry]] += weights[draw, unit[row[entry]]] * amount
    sums = Sums(row, column, width, value)
    for speed in (0, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resampling, "_DENSE_SPEED", speed)
            assert sums.by_unit(unit, units)(weights) == pytest.approx(expected)
    assert sums.once()[0] == pytest.approx(sums.by_unit(np.zeros(rows, int), 1)(np.ones((1, 1)))[0])


@given(st.integers(1, 9), st.integers(1, 3), st.integers(0, 99))
def test_every_stratum_is_drawn_anew_by_itself(patients: int, strata: int, seed: int):
    stratum = np.arange(patients) % strata
    weights = Units.of(patients, stratum).draws(seed, 20)
    for value in np.unique(stratum):
        assert (weights[:, stratum == value].sum(1) == np.sum(stratum == value)).all()


def test_the_bootstrap_interval_of_a_mean_is_the_textbooks():
    x = np.random.default_rng(0).normal(size=400)
    weights = Units.of(400).draws(1, 4000)
    low, high = percentile_interval(weights @ x / 400)
    expected = scipy.stats.bootstrap((x,), np.mean, method="percentile", n_resamples=4000, rng=2).confidence_interval
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_weighted_aucs_are_scikit_learns():
    rng = np.random.default_rng(0)
    tree = ClassHierarchy.flat(["a", "b", "c"])
    p = rng.dirichlet(np.ones(3), 120).round(2)  # with ties
    p /= p.sum(1, keepdims=True)
    target = np.arange(120) % 3
    weights = rng.integers(1, 4, (3, 120))
    found = METRICS["auc"](Slides(tree, target, p.argmax(1), p))(weights)
    for row, value in zip(weights, found, strict=True):
        aucs = [sklearn.metrics.roc_auc_score(target == c, p[:, c], sample_weight=row) for c in range(3)]
        assert value == pytest.approx(np.mean(aucs))


def test_intervals_of_mostly_undefined_resamples_are_undefined():
    assert np.isnan(percentile_interval(np.array([1.0, np.nan, np.nan]))).all()
    assert percentile_interval(np.array([1.0, 2.0, np.inf])) == pytest.approx((1.025, 1.975))
    assert math.isnan(percentile_interval(np.empty(0))[0])


def test_swap_p_values_count_the_observed_labelling():
    assert swap_p_value(2.0, np.array([1.0, -2.0, 0.0])) == 0.5
    assert swap_p_value(float("nan"), np.zeros(3)) is None
    assert swap_p_value(1.0, np.array([np.nan])) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_the_textbook_procedure(p_values: list[float]):
    assert holm(p_values).tolist() == pytest.approx(reference.holm(p_values))
