"""Watching a promise: alarms when it is broken, rarely when it is kept, however often one looks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluate.certify.models import FLAT, TREE, model
from tests.reference import certify as reference

from pams_mil.errors import CertificateError, ParameterError
from pams_mil.evaluate.certify import certify, monitor, monitor_unlabelled
from pams_mil.evaluate.certify.betting import STAKES, first_alarm, log_wealth, lower_bound
from pams_mil.evaluate.certify.breakpoint_drift import breakpoint_drift


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


def test_a_broken_promise_is_found_soon():
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
    found = breakpoint_drift(before, now, shuffles=5)
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


@pytest.mark.parametrize("unit", ["case", "slide", "rate"])
@pytest.mark.parametrize("guarantee", ["mean", 0.9])
def test_new_patients_like_the_old_ones_and_unlike_them(unit, guarantee):
    made = certify(
        model(500, hierarchy=FLAT, seed=0), alpha=0.1, at={"malignant": 0.15}, unit=unit, guarantee=guarantee,
        most_slides=3,
    )  # fmt: skip
    same = monitor(made, model(200, hierarchy=FLAT, seed=1))
    assert not same.is_broken
    assert same.drift.p_value > 0.01
    worse = monitor(made, model(400, hierarchy=FLAT, seed=2, shift=-2.0))
    assert worse.is_broken
    assert worse.drift.p_value < 0.01
    check = worse.checks[0]
    assert check.at_least > check.promise.alpha
    assert "The promise is broken" in check.words
    assert "first seen after" in check.words
    assert worse.to_json()["broken"] is True


def test_bad_luck_in_calibration_is_told_from_a_change():
    """The miss rate of the shipped system is 16 %: above the promised 10 %, not above what 19 patients leave open."""
    made = certify(model(19, hierarchy=FLAT, seed=0), alpha=0.1)
    p = np.tile([0.0, 0.0, 1.0], (3000, 1))
    missed = np.arange(3000) % 25 < 4
    p[missed] = [1.0, 0.0, 0.0]
    from pams_mil.evaluate.predictions import Predictions

    new = Predictions("new", FLAT, [f"n{i}" for i in range(3000)], np.full(3000, 2), p.argmax(1), p)
    check = monitor(made, new).checks[0]
    assert check.observed == 0.16
    assert check.state == "above α, within the luck of calibration"
    assert "luck of calibration explains up to 22.6 %" in check.words


def test_patients_beyond_the_most_slides_are_left_out_and_said_to_be():
    made = certify(model(200, hierarchy=FLAT, most=2), alpha=0.2, unit="rate")
    found = monitor(made, model(100, hierarchy=FLAT, most=5, seed=4))
    assert "patients with more than 2 slides are left out" in found.notes[0]
    assert found.checks[0].n < 100


def test_a_rate_is_bounded_in_missed_slides_also_where_patients_have_few_of_the_most_slides():
    """Of 5 slides that a patient may have, these have 1 or 2: without a miss the rate is above 0 and nothing more."""
    made = certify(model(400, hierarchy=FLAT, most=5), alpha=0.2, unit="rate")
    sure = model(300, hierarchy=FLAT, most=2, skill=50.0)
    check = monitor(made, sure).checks[0]
    assert check.observed == 0
    assert check.at_least == 0

    slides, missed = np.array([1, 2, 2, 1, 5] * 60), np.array([1, 1, 0, 0, 2] * 60)
    losses, weights = missed / 5, slides / 5
    bound = lower_bound(losses, 0.05, weights)
    assert bound < missed.sum() / slides.sum() < 2 * bound
    for rate in (0.99 * bound, 1.01 * bound):  # the test of one rate, with losses moved and scaled into [0, 1]
        scaled = (missed + rate * (5 - slides)) / 5
        np.testing.assert_allclose(np.exp(log_wealth(losses, rate, weights)), reference.wealth(scaled, rate, STAKES))
        assert (first_alarm(losses, rate, 0.05, weights) is not None) == (rate < bound)


def test_no_patient_at_the_boundary_is_said():
    made = certify(model(100, hierarchy=FLAT), at={"malignant": 0.1})
    found = monitor(made, model(20, hierarchy=FLAT, prior=[1, 0, 0]))
    assert found.checks[0].state == "no patients"
    assert "nothing can be said" in found.checks[0].words


def test_without_labels_and_with_other_classes():
    made = certify(model(200, hierarchy=FLAT), alpha=0.1)
    new = model(100, hierarchy=FLAT, seed=9, shift=-1.5)
    found = monitor_unlabelled(made, new.probabilities, list(new.patient_ids))
    assert found.checks == ()
    assert found.drift.p_value < 0.01
    with pytest.raises(CertificateError, match="for the classes of"):
        monitor(made, model(20, hierarchy=TREE))
