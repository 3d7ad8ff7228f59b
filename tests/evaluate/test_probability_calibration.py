"""Probability calibration: against scikit-learn, a general optimizer and loops; what it recovers and refuses."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from tests.reference import calibration as reference

from pams_mil.atomic import plain
from pams_mil.errors import ParameterError
from pams_mil.evaluate.decisions.debias import TrainingBias
from pams_mil.evaluate.decisions.probability_calibration import (
    ProbabilityCalibration,
    cross_calibrated,
    fit_probability_calibration,
)
from pams_mil.evaluate.decisions.softmax_fit import fit_softmax
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.severity import loss_weight

SCIKIT_LEARN = tuple(int(part) for part in sklearn.__version__.split(".")[:2])

seeds = st.integers(0, 10_000)


def flat(classes):
    return ClassHierarchy.flat([f"c{index}" for index in range(classes)])


def sample(seed, n, classes, *, temperature=1.0, offset=0.0):
    """Truth drawn from a posterior, and what a network says that is too sure by T and leans by b."""
    random = np.random.default_rng(seed)
    z = random.normal(size=(n, classes)) * 1.5
    eta = softmax(z, axis=1)
    truth = (eta.cumsum(1) < random.random((n, 1))).sum(1).clip(0, classes - 1)
    return softmax(temperature * (z - offset), axis=1), truth


class Said(ClassifierMixin, BaseEstimator):
    """A classifier whose features are its logits."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X):
        return X

    def predict(self, X):
        return self.classes_[X.argmax(1)]


@pytest.mark.skipif(SCIKIT_LEARN < (1, 8), reason="scikit-learn scales temperatures from 1.8 on")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_temperature_is_scikit_learns(seed, temperature):
    p, truth = sample(seed, 150, 4, temperature=temperature)
    X = np.log(p)
    oracle = CalibratedClassifierCV(FrozenEstimator(Said().fit(X, truth)), method="temperature", ensemble=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle.fit(X, truth)
    found = fit_probability_calibration(p, truth, flat(4), prior_slides=0)
    beta = float(oracle.calibrated_classifiers_[0].calibrators[0].beta_)
    assert 1 / found.temperature == pytest.approx(beta, rel=1e-4)  # its search stops at such a tolerance
    np.testing.assert_allclose(found(p), oracle.predict_proba(X), atol=1e-4)
    assert reference.nll(p, truth, found.temperature, [0.0] * 4) <= reference.nll(p, truth, 1 / beta, [0.0] * 4) + 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_temperature_is_that_of_probmetrics(seed):
    """By bisection, where ours is Newton's method."""
    calibrators = pytest.importorskip("probmetrics.calibrators")
    p, truth = sample(seed, 120, 5, temperature=2.0)
    oracle = calibrators.get_calibrator("temp-scaling").fit(p, truth)
    found = fit_probability_calibration(p, truth, flat(5), prior_slides=0)
    np.testing.assert_allclose(found(p), oracle.predict_proba(p), atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(2, 5))
def test_no_other_temperature_fits_better(seed, classes):
    """A general optimizer that knows only the loop over the definition finds the same minimum."""
    p, truth = sample(seed, 60, classes, temperature=1.7, offset=0.3 * np.arange(classes))
    tree, none = flat(classes), np.zeros(classes)
    truth[:classes] = np.arange(classes)

    place = np.ones(1)
    for _ in range(3):  # restarted where it stopped: its simplex may collapse before the minimum
        other = minimize(
            lambda theta: reference.nll(p, truth, 1 / max(theta[0], 1e-6), none), place, method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000},
        )  # fmt: skip
        place = other.x
    found = fit_probability_calibration(p, truth, tree, prior_slides=0)
    value = reference.nll(p, truth, found.temperature, none)
    assert value <= other.fun + 1e-10
    assert value == pytest.approx(-np.log(found(p)[np.arange(60), truth]).mean())
    if other.success:
        assert value == pytest.approx(other.fun, abs=1e-6)


def test_recovers_the_temperature_from_many_slides():
    p, truth = sample(3, 40_000, 5, temperature=2.5)
    assert fit_probability_calibration(p, truth, flat(5)).temperature == pytest.approx(2.5, rel=0.03)


def test_the_drift_of_the_remix_is_found_where_it_is_and_not_where_it_is_not():
    """Under pure label shift all of the drift is due (τ = 1); without a shift, none."""
    drift = np.array([0.5, 0.8, 1.4, 1.7])
    natural, truth = sample(5, 20_000, 4)
    drifted = natural * drift / (natural * drift).sum(1, keepdims=True)
    bias = TrainingBias(drift=drift)
    due = fit_probability_calibration(drifted, truth, flat(4), bias=bias)
    assert due.strengths["remix"] == pytest.approx(1.0, abs=0.1)
    np.testing.assert_allclose(due(drifted), natural, atol=0.02)
    none = fit_probability_calibration(natural, truth, flat(4), bias=bias)
    assert none.strengths["remix"] == pytest.approx(0.0, abs=0.1)
    half = natural * drift**0.5 / (natural * drift**0.5).sum(1, keepdims=True)
    found = fit_probability_calibration(half, truth, flat(4), bias=bias)
    assert found.strengths["remix"] == pytest.approx(0.5, abs=0.1)


def test_what_msce_did_is_found_where_it_is_and_not_where_it_is_not():
    tree = flat(4)
    bias = TrainingBias(severity=loss_weight(tree))
    said, truth = sample(6, 20_000, 4)
    restored = bias.remove(said)  # what such a network would have meant
    random = np.random.default_rng(7)
    meant = (restored.cumsum(1) < random.random((len(restored), 1))).sum(1).clip(0, 3)
    due = fit_probability_calibration(said, meant, tree, bias=bias)
    assert due.strengths["msce"] == pytest.approx(1.0, abs=0.05)
    assert due.temperature == pytest.approx(1.0, abs=0.05)
    none = fit_probability_calibration(said, truth, tree, bias=bias)
    assert none.strengths["msce"] == pytest.approx(0.0, abs=0.05)


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_bounded_strengths_are_the_best_of_a_grid(seed):
    """No pair of strengths on a grid over [0, 1]², with the rest fitted, scores better."""
    tree = flat(3)
    p, truth = sample(seed, 40, 3, temperature=1.5, offset=np.random.default_rng(seed).normal(size=3))
    if len(set(truth.tolist())) < 2:
        return
    bias = TrainingBias(severity=loss_weight(tree), drift=np.array([0.5, 1.0, 1.8]))
    found = fit_probability_calibration(p, truth, tree, bias=bias, prior_slides=2)
    assert all(0 <= strength <= 1 for strength in found.strengths.values())
    target = np.eye(3)[truth] + 2 / 40 * p

    def score(q):
        return -(target * np.log(q)).sum() / target.sum()

    best = score(found(p))
    for msce in np.linspace(0, 1, 5):
        for remix in np.linspace(0, 1, 5):
            moved = bias.remove(p, msce=msce, remix=remix)
            assert best <= fit_softmax(np.log(moved)[:, :, None], target, np.ones(1)).value + 1e-9


@given(seeds, st.integers(2, 6))
@settings(max_examples=25, deadline=None)
def test_a_temperature_keeps_the_order_and_never_scores_worse(seed, classes):
    p, truth = sample(seed, 50, classes, temperature=2.0)
    truth[:2] = [0, 1]
    found = fit_probability_calibration(p, truth, flat(classes), prior_slides=0)
    q = found(p)
    np.testing.assert_allclose(q.sum(1), 1.0)
    assert (q.argsort(1, kind="stable") == p.argsort(1, kind="stable")).all()
    assert reference.nll(p, truth, found.temperature, [0.0] * classes) <= reference.nll(p, truth, 1, [0.0] * classes)


def test_all_correct_slides_have_a_finite_temperature():
    """Without the prior ever sharper probabilities score ever better; with it, one doubtful slide stands against."""
    truth = np.arange(30) % 3
    p = np.full((30, 3), 0.15)
    p[np.arange(30), truth] = 0.7
    found = fit_probability_calibration(p, truth, flat(3))
    assert 0.05 < found.temperature < 0.9
    assert np.isfinite(found(p)).all()
    # by hand: of 31 slides' worth of evidence, 30.7 are for the class that is said
    assert found(p)[0, 0] == pytest.approx(30.7 / 31, abs=1e-6)
    with pytest.raises(ParameterError, match="no finite answer"):
        fit_probability_calibration(p, truth, flat(3), prior_slides=0)


def test_certain_and_right_stays_as_it_is():
    truth = np.arange(20) % 2
    p = np.eye(2)[truth]
    found = fit_probability_calibration(p, truth, flat(2))
    assert np.isfinite(found.temperature)
    np.testing.assert_allclose(found(p), p, atol=1e-12)


def test_certain_and_sometimes_wrong_is_cooled_down():
    truth = np.arange(40) % 2
    said = truth.copy()
    said[:8] = 1 - said[:8]
    found = fit_probability_calibration(np.eye(2)[said], truth, flat(2), prior_slides=0)
    assert found(np.eye(2))[0, 0] == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 3}, "3 slides are too few to calibrate probabilities on; expected at least 10"),
        (
            {"truth": np.zeros(30, dtype=int)},
            "All 30 slides are 'c0'; probability calibration needs",
        ),
        ({"truth": np.full(30, 3)}, "targets must be from 0 to 2, found 3 to 3"),
        ({"nan": True}, "row 4 is"),
        ({"truth": np.arange(31) % 3}, "found (31,) and (30, 3)"),
    ],
)
def test_refusals(change, message):
    p, truth = sample(0, change.get("n", 30), 3)
    if change.get("nan"):
        p[4, 1] = np.nan
    with pytest.raises(ParameterError, match=re.escape(message)):
        fit_probability_calibration(p, change.get("truth", truth), flat(3))


def test_probabilities_that_say_nothing_are_refused():
    """Wrong as often as possible: the best temperature would be negative."""
    truth = np.arange(60) % 3
    p = np.full((60, 3), 0.45)
    p[np.arange(60), truth] = 0.1
    with pytest.raises(ParameterError, match="say nothing about these slides"):
        fit_probability_calibration(p, truth, flat(3))


def test_a_class_without_validation_slides_is_calibrated_by_the_others():
    p, truth = sample(1, 80, 4)
    truth[truth == 3] = 2
    found = fit_probability_calibration(p, truth, flat(4))
    assert np.isfinite(found(p)).all()


def test_cross_calibration_never_fits_on_the_patient_it_scores():
    """A patient whose labels are all turned over is calibrated exactly as before."""
    p, truth = sample(9, 120, 3, temperature=2.0)
    patients = np.arange(120) // 6
    before = cross_calibrated(p, truth, patients, flat(3), folds=20)
    other = truth.copy()
    other[patients == 7] = (other[patients == 7] + 1) % 3
    after = cross_calibrated(p, other, patients, flat(3), folds=20)
    np.testing.assert_array_equal(before[patients == 7], after[patients == 7])
    assert np.abs(before - after).max() > 1e-6


def test_round_trip_through_json():
    tree = flat(3)
    p, truth = sample(2, 100, 3)
    bias = TrainingBias(severity=loss_weight(tree), drift=np.array([0.5, 1.0, 1.8]), detach_weight=True)
    found = fit_probability_calibration(p, truth, tree, bias=bias)
    again = ProbabilityCalibration.from_json(json.loads(json.dumps(plain(found))))
    np.testing.assert_array_equal(again(p), found(p))
    assert again.describe() == found.describe()
    assert found.describe().startswith("T = ")
    assert "(remix)" in found.describe()


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_newton_ends_where_the_gradient_is_zero(seed):
    random = np.random.default_rng(seed)
    features, truth = random.normal(size=(40, 3, 4)), random.dirichlet(np.ones(3), size=40)
    found = fit_softmax(features, truth, np.zeros(4))

    def loss(theta):
        total = 0.0
        for rows, weights in zip(features, truth, strict=True):
            q = reference.softmax([sum(a * b for a, b in zip(row, theta, strict=True)) for row in rows])
            total -= sum(weight * np.log(share) for weight, share in zip(weights, q, strict=True))
        return total / truth.sum()

    assert found.value == pytest.approx(loss(found.theta))
    for direction in np.eye(4):
        assert (loss(found.theta + 1e-4 * direction) - loss(found.theta - 1e-4 * direction)) / 2e-4 < 1e-6
        assert loss(found.theta + 0.1 * direction) > found.value
        assert loss(found.theta - 0.1 * direction) > found.value
