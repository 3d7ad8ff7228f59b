"""Intervals, tests and fits against statsmodels, where it has the quantity."""

from __future__ import annotations

import numpy as np
import pytest

from pams_mil import ClassHierarchy
from pams_mil.evaluate import contrasts, estimate
from pams_mil.evaluate.certify.bounds import clopper_pearson
from pams_mil.evaluate.decisions.softmax_fit import fit_softmax
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics import quadratic_kappa
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.proper import wilson
from pams_mil.metrics.resampling import holm, percentile_interval

pytest.importorskip("statsmodels")
from statsmodels.discrete.discrete_model import Logit
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

TREE = ClassHierarchy.flat(["N", "UDH", "ADH", "DCIS", "IC"])


def test_holm():
    draws = np.random.default_rng(0)
    for count in (1, 2, 7, 30):
        p = np.round(draws.random(count) ** 3, 2)  # some are equal, some 0
        np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1], atol=1e-12)


def test_binomial_bounds():
    for n in (1, 5, 22, 400):
        k = np.arange(n + 1)
        for delta in (0.01, 0.05, 0.1):
            upper = proportion_confint(k, n, alpha=2 * delta, method="beta")[1]
            np.testing.assert_allclose(clopper_pearson(k, n, delta), upper, rtol=1e-8)
        np.testing.assert_allclose(wilson(k, n), proportion_confint(k, n, method="wilson"), atol=1e-6)


def test_weighted_kappa_of_two_readers():
    draws = np.random.default_rng(1)
    for _ in range(5):
        first = draws.integers(0, 5, 80)
        second = np.clip(first + draws.integers(-1, 2, 80), 0, 4)
        table = np.zeros((5, 5))
        np.add.at(table, (first, second), 1)
        assert quadratic_kappa(first, second, TREE) == pytest.approx(cohens_kappa(table, wt="quadratic").kappa)


def test_a_temperature_is_a_logistic_regression_without_intercept():
    draws = np.random.default_rng(2)
    logit = draws.normal(0, 2, 300)
    label = (draws.random(300) < 1 / (1 + np.exp(-0.6 * logit))).astype(int)
    features = np.stack([np.zeros_like(logit), logit], axis=1)[:, :, None]
    fitted = fit_softmax(features, np.eye(2)[label], np.ones(1))
    expected = Logit(label, logit[:, None]).fit(disp=0)
    assert fitted.theta[0] == pytest.approx(expected.params[0], rel=1e-6)
    assert fitted.value == pytest.approx(-expected.llf / len(label), rel=1e-9)


def test_swaps_of_patients_with_one_slide_are_mcnemars_exact_test():
    """Accuracy differs by discordant pairs alone, and swapping patients flips their signs."""
    draws, swaps = np.random.default_rng(3), 20_000
    seen = []
    for gain in (0.05, 0.15, 0.3):
        target = draws.integers(0, 5, 60)
        right = draws.random((2, 60)) < np.array([[0.5], [0.5 + gain]])
        calls = np.where(right, target, (target + 1) % 5)
        models = [Predictions(name, TREE, [f"s{i}" for i in range(60)], target, call)
                  for name, call in zip("ab", calls, strict=True)]  # fmt: skip
        found = contrasts(models[0], models[1], [METRICS["acc"]], resamples=0, swaps=swaps)["acc"].p_value
        table = [[int(((right[0] == a) & (right[1] == b)).sum()) for b in (True, False)] for a in (True, False)]
        exact = mcnemar(table, exact=True).pvalue
        assert abs(found - exact) < 5 * np.sqrt(exact * (1 - exact) / swaps) + 2 / swaps
        seen.append(exact)
    assert min(seen) < 0.05 < max(seen)


def test_nothing_missed_is_not_shown_to_be_nothing():
    slides, patients = [f"s{row}" for row in range(240)], [f"p{row // 2}" for row in range(240)]
    target = np.arange(240) % 5
    model = Predictions("right", TREE, slides, target, target, None, patients)
    scores = estimate(model, [METRICS["missed_rate"], METRICS["acc"]], resamples=100)
    end = 1 - 0.025 ** (1 / 120)  # 120 patients, none of whom is missed
    assert scores["missed_rate"].interval == pytest.approx((0.0, end))
    assert scores["acc"].interval == pytest.approx((1 - end, 1.0))
    assert proportion_confint(0, 120, alpha=0.05, method="beta") == pytest.approx((0.0, end))
    # Sabotage: percentiles of resamples say that a miss is impossible.
    assert percentile_interval(np.zeros(100)) == (0.0, 0.0)
