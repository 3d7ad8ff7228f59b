"""The guarantees, simulated: 2,000 calibrations each, and the same test under sabotage, where it must fail."""

from __future__ import annotations

import numpy as np
import pytest
from tests.evaluate.certify.models import FLAT
from tests.evaluate.certify.world import SIZES, alpha_for, realized, world

from pams_mil.evaluate.certify import certify, expected
from pams_mil.evaluate.certify.miss_losses import UNITS, miss_losses
from pams_mil.evaluate.certify.promise import Guarantee, Promise, make_promise, smallest_kappa
from pams_mil.evaluate.predictions import Predictions

pytestmark = pytest.mark.slow


def keeps_the_mean(rates, alpha):
    return rates.mean() <= alpha + 3 * rates.std() / np.sqrt(len(rates))


def keeps_the_confidence(rates, alpha, delta):
    return (rates > alpha).mean() <= delta + 3 * np.sqrt(delta * (1 - delta) / len(rates))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("unit", UNITS)
def test_on_average_at_most_alpha_is_missed(n, unit):
    alpha = alpha_for(Guarantee(), unit, n)
    rates = realized(n, alpha, Guarantee(), unit)
    assert keeps_the_mean(rates, alpha)
    if unit != "rate":
        assert rates.mean() >= alpha - 2.5 / (n + 1)  # and not far less, so it is no empty promise


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("unit", UNITS)
def test_with_confidence_the_promise_is_rarely_broken(n, unit):
    alpha = alpha_for(Guarantee(0.9), unit, n)
    rates = realized(n, alpha, Guarantee(0.9), unit)
    assert keeps_the_confidence(rates, alpha, 0.1)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("guarantee", [Guarantee(), Guarantee(0.9)], ids=["mean", "0.9"])
def test_the_upper_end_of_the_spread_is_one(n, unit, guarantee):
    """Of the shipped systems at most 5 % miss more than the certificate says 95 % stay below, on average over them."""
    one, rng = world(), np.random.default_rng(n + 1)
    alpha, risk, beyond = alpha_for(guarantee, unit, n), one.risk(unit), []
    for _ in range(1000):
        rows, whose = one.draw(rng, n)
        curve = miss_losses(one.dial.reach[rows], one.dial.rank[rows], whose, unit=unit, most_slides=5)
        made = make_promise(curve, alpha, guarantee)
        if isinstance(made, Promise):
            beyond.append(risk.mean(made.kappa) > made.spread.high)
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
        dial = one.dial
        found = Predictions(
            "m", FLAT, [f"s{i}" for i in range(len(rows))], dial.rank[rows], dial.rank[rows], one.probabilities[rows],
            [f"p{w}" for w in whose],
        )  # fmt: skip
        curve = miss_losses(dial.reach[rows], dial.rank[rows], whose)
        assert certify(found, alpha=0.1).kappa == smallest_kappa(curve, 0.1, Guarantee())


@pytest.mark.parametrize("n", SIZES)
def test_sabotage_slides_treated_as_patients(n):
    rates = realized(n, 0.1, Guarantee(), "slide", as_patients=True)
    assert not keeps_the_mean(rates, 0.1)
    rates = realized(n, 0.2, Guarantee(0.9), "slide", as_patients=True)
    assert not keeps_the_confidence(rates, 0.2, 0.1)


@pytest.mark.parametrize("n", SIZES)
def test_sabotage_the_next_patient_is_forgotten(n, monkeypatch):
    monkeypatch.setattr(expected, "expected_bound", lambda total, curve: np.asarray(total) / (curve.mass + 1))
    assert not keeps_the_mean(realized(n, 0.1, Guarantee(), "case"), 0.1)


@pytest.mark.parametrize("n", [19, 50])
def test_sabotage_calibration_patients_that_chose_the_epoch(n):
    """Thirty epochs, equally good; the one that misses least on the calibration patients is certified on them."""
    epochs = [world(seed=10 + epoch, patients=4000) for epoch in range(30)]
    risks = [epoch.risk("case") for epoch in epochs]
    rng, rates = np.random.default_rng(0), {"chosen": [], "fixed": []}
    for _ in range(500):
        rows, whose = epochs[0].draw(rng, n)
        curves = [miss_losses(e.dial.reach[rows], e.dial.rank[rows], whose) for e in epochs]
        best = int(np.argmin([float(curve.total(1.0)) for curve in curves]))
        for name, number in (("chosen", best), ("fixed", 0)):
            rates[name].append(risks[number].mean(smallest_kappa(curves[number], 0.1, Guarantee())))
    assert keeps_the_mean(np.asarray(rates["fixed"]), 0.1)
    assert not keeps_the_mean(np.asarray(rates["chosen"]), 0.1)
