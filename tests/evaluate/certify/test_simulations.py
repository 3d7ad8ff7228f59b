"""The guarantees, simulated: 2,000 calibrations each, and the same test under sabotage, where it must fail."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.evaluate.certify.models import FLAT
from tests.evaluate.certify.world import SIZES, alpha_for, realized, world

from pams_mil.evaluate.certify import bounds, certify
from pams_mil.evaluate.certify.bounds import Bound, Guarantee, certified_bound, smallest_kappa
from pams_mil.evaluate.certify.miss_losses import UNITS
from pams_mil.evaluate.certify.monitor import find_violation
from pams_mil.evaluate.predictions.predictions import Predictions

pytestmark = pytest.mark.slow
# the package exports the function of the same name
monitoring = sys.modules["pams_mil.evaluate.certify.monitor"]


def keeps_the_mean(rates, alpha):
    return rates.mean() <= alpha + 3 * rates.std() / np.sqrt(len(rates))


def keeps_the_confidence(rates, alpha, delta):
    return (rates > alpha).mean() <= delta + 3 * np.sqrt(delta * (1 - delta) / len(rates))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("unit", UNITS)
def test_on_average_at_most_alpha_is_missed(n, unit):
    alpha = alpha_for(Guarantee())
    rates = realized(n, alpha, Guarantee(), unit)
    assert keeps_the_mean(rates, alpha)
    assert rates.mean() >= alpha - 2.5 / (n + 1)  # and not far less, so the bound is not vacuous


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("unit", UNITS)
def test_with_confidence_the_bound_is_rarely_exceeded(n, unit):
    alpha = alpha_for(Guarantee(0.9))
    rates = realized(n, alpha, Guarantee(0.9), unit)
    assert keeps_the_confidence(rates, alpha, 0.1)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("guarantee", [Guarantee(), Guarantee(0.9)], ids=["mean", "0.9"])
def test_the_upper_end_of_the_spread_is_one(n, unit, guarantee):
    """Of the shipped systems at most 5 % miss more than the certificate says 95 % stay below, on average over them."""
    one, rng = world(), np.random.default_rng(n + 1)
    alpha, risk, beyond = alpha_for(guarantee), one.risk(unit), []
    for _ in range(1000):
        rows, whose = one.draw(rng, n)
        bound = certified_bound(one.take(rows, whose).miss_losses(unit), alpha, guarantee)
        if isinstance(bound, Bound):
            beyond.append(risk.mean(bound.kappa) > bound.spread.high)
    assert np.mean(beyond) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / len(beyond))


@pytest.mark.parametrize("n", [50, 200])
def test_at_a_boundary(n):
    rates = realized(n, 0.1, Guarantee(), "case", boundary=2)
    assert keeps_the_mean(rates, 0.1)
    assert rates.mean() >= 0.03


def test_the_function_that_users_call_gives_the_same_kappa():
    one, rng = world(), np.random.default_rng(3)
    for _ in range(20):
        rows, whose = one.draw(rng, 50)
        slides = one.take(rows, whose)
        model = Predictions(
            "m", FLAT, [f"s{i}" for i in range(len(rows))], slides.rank, slides.rank, one.probabilities[rows],
            [f"p{w}" for w in whose],
        )  # fmt: skip
        curve = slides.miss_losses()
        assert certify(model, alpha=0.1).kappa == smallest_kappa(curve, 0.1, Guarantee())


@pytest.mark.parametrize("n", SIZES)
def test_sabotage_slides_treated_as_patients(n):
    rates = realized(n, 0.1, Guarantee(), "slide", as_patients=True)
    assert not keeps_the_mean(rates, 0.1)
    rates = realized(n, 0.2, Guarantee(0.9), "slide", as_patients=True)
    assert not keeps_the_confidence(rates, 0.2, 0.1)


@pytest.mark.parametrize("n", SIZES)
def test_sabotage_the_next_patient_is_forgotten(n, monkeypatch):
    monkeypatch.setattr(bounds, "expected_bound", lambda total, curve: np.asarray(total) / (curve.mass + 1))
    assert not keeps_the_mean(realized(n, 0.1, Guarantee(), "case"), 0.1)


@pytest.mark.parametrize("n", [19, 50])
def test_sabotage_calibration_patients_that_chose_the_epoch(n):
    """Thirty epochs, equally good; the one that misses least on the calibration patients is certified on them."""
    epochs = [world(seed=10 + epoch, patients=4000) for epoch in range(30)]
    risks = [epoch.risk("case") for epoch in epochs]
    rng, rates = np.random.default_rng(0), {"chosen": [], "fixed": []}
    for _ in range(500):
        rows, whose = epochs[0].draw(rng, n)
        curves = [epoch.take(rows, whose).miss_losses() for epoch in epochs]
        best = int(np.argmin([float(curve.total(1.0)) for curve in curves]))
        for name, number in (("chosen", best), ("fixed", 0)):
            rates[name].append(risks[number].mean(smallest_kappa(curves[number], 0.1, Guarantee())))
    assert keeps_the_mean(np.asarray(rates["fixed"]), 0.1)
    assert not keeps_the_mean(np.asarray(rates["chosen"]), 0.1)


def called_violated(n, unit, level, *, new, worse=1.0, runs=1000):
    """The share of systems calibrated on n patients whose bound on average is ever called violated.

    New patients are drawn from where the calibration patients came from, and miss `worse` times as often.
    """
    one, rng, violated = world(), np.random.default_rng(n), 0
    risk = one.risk(unit)
    for _ in range(runs):
        bound = certified_bound(one.take(*one.draw(rng, n)).miss_losses(unit), 0.1, Guarantee())
        losses = rng.choice(risk.losses(bound.kappa), new)
        losses = np.where(rng.random(new) < worse - 1, 1.0, losses) if worse > 1 else losses
        violated += find_violation(losses, bound, Guarantee(), unit, level)[0] is not None
    return violated / runs


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("unit", UNITS)
def test_a_guarantee_that_holds_is_called_violated_at_most_at_the_level(n, unit):
    for level in (0.01, 0.05):
        assert called_violated(n, unit, level, new=2000) <= level + 3 * np.sqrt(level * (1 - level) / 1000)


@pytest.mark.parametrize("n", SIZES)
def test_sabotage_calibration_sampling_error_is_ignored(n, monkeypatch):
    monkeypatch.setattr(monitoring, "risk_limit", lambda bound, unit, delta: bound.alpha)
    assert called_violated(n, "case", 0.05, new=2000) > 0.1


@pytest.mark.parametrize("n", [19, 50])
def test_sabotage_calibration_sampling_error_at_95_percent_whatever_the_level(n, monkeypatch):
    monkeypatch.setattr(monitoring, "risk_limit", lambda bound, unit, delta: bound.spread.high)
    assert called_violated(n, "case", 0.01, new=10_000) > 0.01 + 3 * np.sqrt(0.01 * 0.99 / 1000)


@pytest.mark.parametrize("unit", UNITS)
def test_twenty_points_more_misses_are_found_within_400_patients(unit):
    assert called_violated(200, unit, 0.01, new=400, worse=1.2, runs=200) > 0.8


def test_a_fold_named_before_keeps_the_bound_and_the_best_of_five_does_not():
    """Five folds with networks and validation patients of their own: whoever picks the smallest κ picks luck."""
    folds, rng, alpha = [world(seed) for seed in range(5)], np.random.default_rng(0), 0.1
    risks, named, best = [one.risk("case") for one in folds], [], []
    for _ in range(1000):
        kappas = [smallest_kappa(one.take(*one.draw(rng, 50)).miss_losses("case"), alpha, Guarantee()) for one in folds]
        rates = [risk.mean(kappa) for risk, kappa in zip(risks, kappas, strict=True)]
        named.append(rates[0])
        best.append(rates[int(np.argmin(kappas))])
    assert keeps_the_mean(np.array(named), alpha)
    assert not keeps_the_mean(np.array(best), alpha)
