"""Monitoring a guarantee: alarms when it is violated, rarely when it holds, however often one looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluate.certify.models import FLAT, TREE, model
from tests.reference import certify as reference

from pams_mil import ClassHierarchy
from pams_mil.errors import CertificateError, ParameterError
from pams_mil.evaluate.certify import certify, monitor
from pams_mil.evaluate.certify.monitor import STAKES, breakpoint_drift, first_alarm, log_wealth, lower_bound


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.01, 1))
def test_wealth_is_the_loops(losses, mean):
    np.testing.assert_allclose(np.exp(log_wealth(losses, mean)), reference.wealth(losses, mean, STAKES), rtol=1e-9)


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=40), st.floats(0.02, 0.98))
@settings(deadline=None)
def test_the_lower_bound_is_what_was_ever_rejected(losses, mean):
    bound = lower_bound(losses, 0.05)
    rejected = first_alarm(losses, mean, 0.05) is not None
    if abs(bound - mean) > 1e-9:
        assert rejected == (mean < bound)
    assert bound <= lower_bound([*losses, 0.0], 0.05) + 1e-12  # it holds at all times, so it never falls


def test_looking_after_every_patient_raises_few_false_alarms():
    """Ville: the chance of ever alarming is at most the level, here over 400 patients and with a mean of exactly α."""
    rng = np.random.default_rng(0)
    alarms = [first_alarm(rng.random(400) < 0.1, 0.1, 0.05) is not None for _ in range(1000)]
    assert np.mean(alarms) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)


def test_sabotage_a_test_at_a_fixed_time_looked_at_often_alarms_too_often():
    """The same level without the correction for looking: a binomial p-value after every patient."""
    from scipy import stats

    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        misses = np.cumsum(rng.random(400) < 0.1)
        looks = np.arange(10, 401)
        wrong += bool((stats.binom.sf(misses[9:] - 1, looks, 0.1) <= 0.05).any())
    assert wrong / 200 > 0.1


def test_a_violated_bound_is_found_soon():
    rng = np.random.default_rng(1)
    after = [first_alarm(rng.random(400) < 0.3, 0.1, 0.05) for _ in range(50)]
    assert all(after)
    assert np.median(after) < 60


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_distance_is_the_loops(seed):
    rng = np.random.default_rng(seed)
    before, now = (rng.integers(0, 4, (rng.integers(1, 9), 2)).astype(float) for _ in range(2))
    before[rng.random(before.shape) < 0.2] = np.inf
    found = breakpoint_drift(before, now, level=0.5, shuffles=5)
    assert found.distance == pytest.approx(reference.largest_distance(before.tolist(), now.tolist()))


def test_drift_is_found_where_there_is_some_and_rarely_where_there_is_none():
    rng = np.random.default_rng(0)
    quiet = [
        breakpoint_drift(rng.random((40, 3)), rng.random((25, 3)), shuffles=200, seed=seed).p_value
        for seed in range(150)
    ]
    assert np.mean(np.asarray(quiet) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)
    assert breakpoint_drift(rng.random((40, 3)), rng.random((40, 3)) ** 3).p_value < 0.01
    with pytest.raises(ParameterError, match="two tables"):
        breakpoint_drift(np.ones((3, 2)), np.ones((3, 1)))
    with pytest.raises(ParameterError, match="found none"):
        breakpoint_drift(np.full((3, 2), np.nan), np.ones((3, 2)))


@pytest.mark.parametrize("unit", ["case", "slide"])
@pytest.mark.parametrize("guarantee", ["mean", 0.9])
def test_new_patients_like_the_old_ones_and_unlike_them(unit, guarantee):
    made = certify(
        model(500, hierarchy=FLAT, seed=0), alpha=0.1, at={"malignant": 0.15}, unit=unit, guarantee=guarantee
    )
    same = monitor(made, model(200, hierarchy=FLAT, seed=1))
    assert not same.is_violated
    assert same.drift.p_value > 0.01
    worse = monitor(made, model(400, hierarchy=FLAT, seed=2, shift=-2.0))
    assert worse.is_violated
    assert worse.drift.p_value < 0.01
    check = worse.checks[0]
    assert check.at_least > check.bound.alpha
    assert "The guarantee is violated" in check.words
    assert "first seen after" in check.words
    assert worse.to_json()["violated"] is True


def test_calibration_sampling_error_is_not_taken_for_a_change():
    """The miss rate of the shipped system is 16 %: above the certified 10 %, not above what 19 patients leave open."""
    made = certify(model(19, hierarchy=FLAT, seed=0), alpha=0.1)
    p = np.tile([0.0, 0.0, 1.0], (3000, 1))
    missed = np.arange(3000) % 25 < 4
    p[missed] = [1.0, 0.0, 0.0]
    from pams_mil.evaluate.predictions.predictions import Predictions

    new = Predictions("new", FLAT, [f"n{i}" for i in range(3000)], np.full(3000, 2), p.argmax(1), p)
    check = monitor(made, new).checks[0]
    assert check.observed == 0.16
    assert check.state == "above α, within calibration sampling error"
    assert "calibration sampling error explains up to 26 %" in check.words


def test_no_patient_at_the_boundary_is_said():
    made = certify(model(100, hierarchy=FLAT), at={"malignant": 0.1})
    found = monitor(made, model(20, hierarchy=FLAT, seed=9, prior=[1, 0, 0]))
    assert found.checks[0].state == "no patients"
    assert "nothing can be said" in found.checks[0].words


def test_without_labels_and_with_other_classes():
    made = certify(model(200, hierarchy=FLAT), alpha=0.1)
    new = model(100, hierarchy=FLAT, seed=9, shift=-1.5)
    found = monitor(made, replace(new, target=np.full(len(new), -1)))
    assert found.checks == ()
    assert found.drift.p_value < 0.01
    with pytest.raises(CertificateError, match="for the classes of"):
        monitor(made, model(20, hierarchy=TREE, seed=9))


def test_a_level_outside_of_0_to_1_is_refused():
    certificate = certify(model(60), alpha=0.2)
    for level in (0.0, 1.0, 2.0):
        with pytest.raises(ParameterError, match="level must be a probability"):
            monitor(certificate, model(60, seed=1), level=level)


def test_equally_urgent_classes_have_nothing_to_compare():
    tied = ClassHierarchy.of([["a", "b", "c"]])
    certificate = certify(model(60, hierarchy=tied), alpha=0.2)
    with pytest.raises(ParameterError, match="at least one of each"):
        monitor(certificate, model(60, seed=1, hierarchy=tied))
