"""MSCE's inverse and implied cost: against the loss they undo, against loops, and by hand."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from tests.reference import calibration as reference

from pams_mil.atomic import plain
from pams_mil.errors import ParameterError
from pams_mil.evaluate.decisions.debias import TrainingBias, msce_posterior
from pams_mil.evaluate.decisions.decide import least_risk, most_probable, redecide
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.severity import implied_cost, loss_weight

THREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])
seeds = st.integers(0, 10_000)


def flat(classes):
    return ClassHierarchy.flat([f"c{index}" for index in range(classes)])


def minimizer(eta, M):
    """The softmax of least expected MSCE, found without knowing any of the closed forms."""

    def loss(z):
        log_p = z - z.max() - math.log(np.exp(z - z.max()).sum())
        p = np.exp(log_p)
        weight = M @ p
        slope = p * (-(eta * log_p) @ M) - p * (-(eta * log_p) @ weight) - eta * weight + p * (eta @ weight)
        return -(eta * weight * log_p).sum(), slope

    found = minimize(loss, np.log(eta), jac=True, method="BFGS", options={"gtol": 1e-12, "maxiter": 5000})
    p = np.exp(found.x - found.x.max())
    return p / p.sum()


def constant_weight_minimizer(eta, M):
    """p ∝ η w(p) by iteration: where the gradient of −w ln p_t with w held constant vanishes."""
    p = eta
    for _ in range(2000):
        p = eta * (M @ p)
        p = p / p.sum()
    return p


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 7), st.sampled_from(["product", "power", "random"]))
def test_recovers_the_posterior_that_msce_was_minimized_for(seed, classes, kind):
    random = np.random.default_rng(seed)
    eta = random.dirichlet(np.ones(classes)) * 0.98 + 0.02 / classes
    M = 1 + random.random((classes, classes)) * 3 if kind == "random" else loss_weight(flat(classes), distance=kind)
    p = minimizer(eta, M)
    assert max(map(abs, reference.msce_gradient(p, eta, M))) < 1e-7
    restored = msce_posterior(p[None], M)
    assert not restored.fell_back.any()
    np.testing.assert_allclose(restored.probabilities[0], eta, atol=1e-6)


@settings(max_examples=40)
@given(seeds, st.integers(2, 7))
def test_recovers_the_posterior_with_a_constant_weight(seed, classes):
    eta = np.random.default_rng(seed).dirichlet(np.ones(classes))
    M = loss_weight(flat(classes))
    p = constant_weight_minimizer(eta, M)
    np.testing.assert_allclose(msce_posterior(p[None], M, detach_weight=True).probabilities[0], eta, atol=1e-6)


@settings(max_examples=60)
@given(seeds, st.integers(2, 7))
def test_is_the_null_vector(seed, classes):
    """The linear system of the fast code has the null vector of the printed matrix as its solution."""
    random = np.random.default_rng(seed)
    M = loss_weight(flat(classes), alpha=1 + 2 * random.random() + 1e-3)
    p = random.dirichlet(np.ones(classes), size=4) * 0.999 + 0.001 / classes
    found = msce_posterior(p, M)
    for row, posterior in zip(p, found.probabilities, strict=True):
        np.testing.assert_allclose(posterior, reference.null_vector(row, M), atol=1e-9)
        assert max(map(abs, reference.msce_gradient(row, posterior, M))) < 1e-9


def test_by_hand():
    """η = (.61, .12, .18, .09) becomes p = (.31, .11, .32, .26): the most probable class moves two classes up."""
    M = loss_weight(flat(4))
    eta = np.array([0.61, 0.12, 0.18, 0.09])
    p = minimizer(eta, M)
    np.testing.assert_allclose(p, [0.31, 0.11, 0.32, 0.26], atol=0.005)
    np.testing.assert_allclose(msce_posterior(p[None], M).probabilities[0], eta, atol=1e-6)


def test_all_ones_are_cross_entropy_and_change_nothing():
    p = np.random.default_rng(0).dirichlet(np.ones(5), size=20)
    np.testing.assert_allclose(msce_posterior(p, np.ones((5, 5))).probabilities, p, atol=1e-15)


def test_certain_rows_stay_certain():
    p = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1e-30, 1 - 2e-30, 1e-30]])
    restored = msce_posterior(p, loss_weight(THREE)).probabilities
    assert np.isfinite(restored).all()
    np.testing.assert_allclose(restored, p, atol=1e-12)


def test_falls_back_where_no_posterior_fits():
    """Calling the first class costs nearly nothing whatever is true: an even softmax is then no minimum at all."""
    M = np.full((6, 6), 10.0)
    M[:, 0] = 0.01
    p = np.array([np.full(6, 1 / 6), [0.01, 0.95, 0.01, 0.01, 0.01, 0.01]])
    assert min(reference.null_vector(p[0], M)) < -0.01
    restored = msce_posterior(p, M)
    assert restored.fell_back.tolist() == [True, False]
    simple = msce_posterior(p, M, detach_weight=True).probabilities
    np.testing.assert_array_equal(restored.probabilities[0], simple[0])
    assert np.abs(restored.probabilities[1] - simple[1]).max() > 1e-3


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(2, 12), st.floats(1.05, 50))
def test_the_weights_of_pams_never_need_the_fallback(seed, classes, alpha):
    p = np.random.default_rng(seed).dirichlet(np.ones(classes), size=200)
    assert not msce_posterior(p, loss_weight(flat(classes), alpha=alpha)).fell_back.any()


@settings(max_examples=40)
@given(st.floats(1.05, 30), st.booleans())
def test_implied_cost_is_exact_for_two_classes(m, detach_weight):
    """Where the minimizer is (½, ½), the cost says that both calls are equally dear."""
    M = np.array([[1.0, 1.0], [m, 1.0]])
    cost = implied_cost(M, detach_weight=detach_weight)
    eta = msce_posterior([[0.5, 0.5]], M, detach_weight=detach_weight).probabilities[0]
    assert eta[1] * cost[1, 0] == pytest.approx(eta[0] * cost[0, 1])
    if not detach_weight:
        assert cost[1, 0] == pytest.approx(1 + (m - 1) * (1 + math.log(2)) / 2)


@pytest.mark.parametrize(("m", "threshold"), [(1.6, 0.40), (3.2, 0.26), (4.8, 0.19), (8.0, 0.13)])
def test_thresholds_of_two_classes(m, threshold):
    """Where the minimizer, searched numerically, crosses one half."""
    M = np.array([[1.0, 1.0], [m, 1.0]])
    found = brentq(lambda share: minimizer(np.array([1 - share, share]), M)[1] - 0.5, 0.02, 0.98)
    assert found == pytest.approx(threshold, abs=0.005)
    assert found == pytest.approx(1 / (1 + implied_cost(M)[1, 0]), abs=1e-6)


def test_implied_cost_decides_nearly_as_msce():
    random = np.random.default_rng(0)
    M = loss_weight(flat(6))
    eta = random.dirichlet(np.ones(6), size=300)
    p = np.stack([minimizer(row, M) for row in eta])
    agree = (least_risk(eta, implied_cost(M)) == most_probable(p)).mean()
    assert agree > 0.93
    assert (most_probable(eta) == most_probable(p)).mean() < 0.6


def test_implied_cost_of_custom_weights_uses_their_diagonal():
    M = np.array([[2.0, 3.0], [5.0, 1.0]])
    cost = implied_cost(M)
    eta = msce_posterior([[0.5, 0.5]], M).probabilities[0]
    assert eta[1] * cost[1, 0] == pytest.approx(eta[0] * cost[0, 1])
    with pytest.raises(ParameterError, match="cost must be"):
        implied_cost(3.0)


def model(p, tree=THREE):
    return Predictions(
        name="m", hierarchy=tree, slide_ids=[f"s{row}" for row in range(len(p))],
        target=np.zeros(len(p), dtype=np.int64), predicted=np.argmax(p, 1), probabilities=np.asarray(p),
    )  # fmt: skip


def test_redecide_can_remove_the_bias_first():
    eta = np.random.default_rng(1).dirichlet(np.ones(3), size=30)
    p = np.stack([minimizer(row, loss_weight(THREE)) for row in eta])
    after = redecide(model(p), debias=True)
    np.testing.assert_allclose(after.probabilities, eta, atol=1e-6)
    assert after.predicted.tolist() == eta.argmax(1).tolist()
    assert "bias of training removed (MSCE)" in after.notes[-1]
    drift = np.array([0.5, 1.0, 2.0])
    drifted = eta * drift / (eta * drift).sum(1, keepdims=True)
    known = redecide(model(drifted), debias=TrainingBias(drift=drift), rule="risk")
    np.testing.assert_allclose(known.probabilities, eta, atol=1e-12)
    assert known.predicted.tolist() == redecide(model(eta), rule="risk").predicted.tolist()


def test_strengths_reach_from_nothing_to_all():
    p = np.random.default_rng(2).dirichlet(np.ones(3), size=10)
    bias = TrainingBias(severity=loss_weight(THREE), drift=np.array([0.5, 1.0, 2.0]))
    np.testing.assert_allclose(bias.remove(p, msce=0, remix=0), p, atol=1e-12)
    once = TrainingBias(severity=bias.severity).remove(p)
    np.testing.assert_allclose(bias.remove(p), TrainingBias(drift=bias.drift).remove(once), atol=1e-12)
    again = TrainingBias.from_json(plain(bias))
    np.testing.assert_array_equal(again.remove(p), bias.remove(p))
    np.testing.assert_allclose(TrainingBias().remove(p), p, atol=1e-12)
    assert (TrainingBias().describe(), bias.describe()) == ("nothing", "MSCE and the class drift of the remix")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: msce_posterior([[0.5, 0.5]], [[0.0, 1.0], [1.0, 0.0]]), "severity must hold numbers above 0"),
        (lambda: msce_posterior([[0.5, np.nan]], np.ones((2, 2))), "row 0 is"),
        (lambda: msce_posterior([[0.5, 0.5]], np.ones((3, 3))), "2 x 2"),
        (lambda: TrainingBias(drift=np.array([0.0, 2.0])), "a class that was never trained on cannot be restored"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ParameterError, match=message):
        call()


def test_needs_no_torch():
    code = "import sys, pams_mil.evaluate.decisions.debias, pams_mil.remix.drift; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
