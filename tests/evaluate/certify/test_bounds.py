"""The bounds: against plain loops, against scipy and MAPIE, and at their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.reference import certify as reference

from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify import bounds
from pams_mil.evaluate.certify.bounds import (
    Bound,
    Guarantee,
    Shortfall,
    beta_spread,
    certified_bound,
    smallest_kappa,
)
from pams_mil.evaluate.certify.miss_losses import LossCurve, MissLoss, SlideReach

UNITS = ["case", "slide"]


def loops(slides):
    return slides.reach.tolist(), slides.rank.tolist(), slides.patient.tolist()


def patients(n, *, kappa=(), zero_one=True):
    """n patients of whom the first are missed up to the given κ."""
    return LossCurve.of(kappa, np.ones(len(kappa)), np.arange(len(kappa)), np.ones(n), zero_one=zero_one)


@st.composite
def cases(draw):
    """reach [n, R] with ties and ∞, ranks and patients of slides."""
    ranks, slides = draw(st.integers(2, 4)), draw(st.integers(1, 14))
    value = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 8.0, math.inf])
    reach = [[0.0, *sorted(draw(st.lists(value, min_size=ranks - 1, max_size=ranks - 1)))] for _ in range(slides)]
    rank = draw(st.lists(st.integers(0, ranks - 1), min_size=slides, max_size=slides))
    patient = draw(st.lists(st.integers(0, 5), min_size=slides, max_size=slides))
    numbers = {whose: number for number, whose in enumerate(dict.fromkeys(patient))}
    return SlideReach(np.asarray(reach), np.asarray(rank), np.asarray([numbers[whose] for whose in patient]))


@given(cases(), st.sampled_from(UNITS), st.sampled_from([0.05, 0.1, 0.25, 0.4, 0.5, 0.75]), st.data())
@settings(max_examples=300, deadline=None)
def test_the_smallest_kappa_on_average_is_the_loops(slides, unit, alpha, data):
    boundary = data.draw(st.sampled_from([None, *range(1, slides.reach.shape[1])]))
    curve = slides.miss_losses(unit, boundary)
    slow = reference.smallest_kappa_on_average(*loops(slides), alpha, unit=unit, boundary=boundary)
    found = smallest_kappa(curve, alpha, Guarantee())
    if slow is None or found is None:
        assert slow == found
    else:  # the smallest κ at which anything changes; the same losses mean the same bound
        assert curve.total(slow) == pytest.approx(curve.total(found))
        assert found <= slow


@given(cases(), st.sampled_from(UNITS))
def test_losses_are_those_of_the_loops_and_never_grow(slides, unit):
    curve = slides.miss_losses(unit)
    kappas = [0.0, 0.1, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0, 7.0, 8.0, 9.0, math.inf]
    totals = curve.total(kappas)
    slow = [sum(loss for loss, _ in reference.patient_losses(*loops(slides), kappa, unit=unit)) for kappa in kappas]
    np.testing.assert_allclose(totals, slow, atol=1e-12)
    assert (np.diff(totals) <= 1e-12).all()
    assert totals[-1] == 0
    for kappa in kappas:
        each = [loss for loss, _ in reference.patient_losses(*loops(slides), kappa, unit=unit)]
        np.testing.assert_allclose(curve.losses(kappa), each, atol=1e-12)


@given(cases())
def test_a_slide_given_twice_changes_nothing_for_cases(slides):
    one = slides.miss_losses()
    rows = np.concatenate([np.arange(len(slides.rank)), [0, 0]])
    two = SlideReach(slides.reach[rows], slides.rank[rows], slides.patient[rows]).miss_losses()
    assert (one.kappa == two.kappa).all()
    assert one.n == two.n


@given(cases(), st.floats(0.5, 0.99), st.sampled_from(UNITS))
@settings(deadline=None)
def test_more_confidence_never_gives_a_smaller_kappa(slides, confidence, unit):
    curve = slides.miss_losses(unit)
    found = [smallest_kappa(curve, 0.6, Guarantee(level)) for level in (confidence, (1 + confidence) / 2)]
    assert found[1] is None or (found[0] is not None and found[0] <= found[1])


def test_alpha_that_is_met_exactly_is_met():
    for n, misses, alpha in ((19, 1, 0.1), (99, 6, 0.07), (99, 28, 0.29), (999, 56, 0.057), (29, 2, 0.1)):
        curve = patients(n, kappa=[1.0] * misses + [0.5] * 3)
        assert smallest_kappa(curve, alpha, Guarantee()) == 0.5, (n, misses, alpha)
        assert smallest_kappa(patients(n, kappa=[1.0] * (misses + 1)), alpha, Guarantee()) == 1.0


@pytest.mark.parametrize(("alpha", "needed"), [(0.1, 9), (0.05, 19), (0.02, 49), (0.01, 99), (0.07, 14), (0.3, 3)])
def test_patients_needed_on_average(alpha, needed):
    assert Guarantee().patients_needed(alpha, patients(3)) == needed
    assert smallest_kappa(patients(needed), alpha, Guarantee()) == 0.0
    assert smallest_kappa(patients(needed - 1), alpha, Guarantee()) is None


@given(st.integers(1, 400), st.floats(0.001, 0.5), st.data())
@settings(deadline=None)
def test_clopper_and_pearson_are_scipys(n, delta, data):
    k = data.draw(st.integers(0, n))
    theirs = stats.binomtest(k, n).proportion_ci(confidence_level=1 - 2 * delta, method="exact").high
    assert bounds.clopper_pearson(k, n, delta) == pytest.approx(theirs, rel=1e-9)


@given(st.integers(1, 60), st.floats(0.01, 0.5), st.data())
@settings(deadline=None)
def test_clopper_and_pearson_are_the_loops(n, delta, data):
    k = data.draw(st.integers(0, n))
    assert bounds.clopper_pearson(k, n, delta) == pytest.approx(reference.clopper_pearson(k, n, delta), abs=1e-9)


@given(st.integers(1, 80), st.floats(0, 1), st.floats(0.01, 0.9))
@settings(deadline=None)
def test_hoeffding_and_bentkus_are_the_loops(n, mean, alpha):
    assert bounds.hoeffding_bentkus(mean, n, alpha) == pytest.approx(
        reference.hoeffding_bentkus(mean, n, alpha), rel=1e-7, abs=1e-12
    )


def test_hoeffding_and_bentkus_are_mapies():
    methods = pytest.importorskip("mapie.risk_control.methods")
    rng = np.random.default_rng(0)
    for n in (1, 7, 50, 400):
        for alpha in (0.02, 0.1, 0.5):
            mean = np.concatenate([rng.random(200), alpha * rng.random(200), [0.0, 1.0]])
            theirs = methods.compute_hoeffding_bentkus_p_value(mean, n, alpha)[:, 0]
            np.testing.assert_allclose(bounds.hoeffding_bentkus(mean, n, alpha), np.minimum(1, theirs), rtol=1e-7)


def test_conformal_risk_control_is_mapies():
    methods = pytest.importorskip("mapie.risk_control.methods")
    rng = np.random.default_rng(0)
    losses = np.sort(rng.random((40, 25)) < np.linspace(0.6, 0, 25), axis=1)[:, ::-1].astype(float)
    theirs, bound = methods.get_r_hat_plus(losses[:, :, None], np.arange(25), "crc", None, None, 0.0)
    np.testing.assert_allclose(bounds.expected_bound(losses.sum(0), patients(40)), bound.ravel(), rtol=1e-12)
    np.testing.assert_allclose(theirs.ravel(), losses.mean(0))


@pytest.mark.parametrize(
    ("alpha", "delta", "needed"), [(0.1, 0.1, 22), (0.05, 0.1, 45), (0.05, 0.05, 59), (0.02, 0.05, 149)]
)
def test_patients_needed_with_confidence(alpha, delta, needed):
    guarantee = Guarantee(1 - delta)
    assert guarantee.patients_needed(alpha, patients(0)) == needed == math.ceil(math.log(delta) / math.log(1 - alpha))
    assert smallest_kappa(patients(needed), alpha, guarantee) == 0.0
    assert smallest_kappa(patients(needed - 1), alpha, guarantee) is None
    least = guarantee.smallest_alpha(patients(needed))
    assert least == pytest.approx(1 - delta ** (1 / needed))


def test_losses_that_are_no_counts_use_hoeffding_and_bentkus():
    curve = patients(60, kappa=[1.0, 2.0], zero_one=False)
    for total in (0.0, 1.0, 2.0, 10.0):
        p = bounds.hoeffding_bentkus(total / 60, 60, 0.1)
        assert Guarantee(0.9).accepts(total, curve, 0.1) == (p <= 0.1)


def test_one_patient_and_no_patient():
    assert smallest_kappa(patients(1, kappa=[3.0]), 0.5, Guarantee()) == 3.0
    assert smallest_kappa(patients(1), 0.49, Guarantee()) is None
    found = certified_bound(patients(0), 0.05, Guarantee(), MissLoss(at="SCC", rank=2))
    assert isinstance(found, Shortfall)
    assert (found.n, found.smallest_alpha, found.needed) == (0, 1.0, 19)
    assert "takes 19, that is 19 more" in found.words


def test_only_the_extreme_may_do():
    """Two of 29 patients are never called high enough at a finite κ, and α = 5 % allows none or one."""
    found = certified_bound(patients(29, kappa=[math.inf, math.inf, 1.0]), 0.05, Guarantee())
    assert isinstance(found, Bound)
    assert found.kappa == math.inf
    assert found.observed == 0.0


@pytest.mark.parametrize("n", [19, 50, 200])
def test_the_spread_is_that_of_order_statistics(n):
    rng = np.random.default_rng(n)
    alpha, guarantee = 0.1, Guarantee()
    rates = []
    for _ in range(2000):
        scores = rng.random(n)  # κ at which each patient is found, uniform: the miss rate at κ is 1 − κ
        kappa = smallest_kappa(patients(n, kappa=scores), alpha, guarantee)
        rates.append(1 - kappa)
    bound = certified_bound(patients(n, kappa=rng.random(n)), alpha, guarantee)
    low, high = np.quantile(rates, [0.05, 0.95])
    assert bound.spread.low == pytest.approx(low, abs=0.012)
    assert bound.spread.high == pytest.approx(high, abs=0.012)
    assert np.mean(rates) == pytest.approx(bound.spread.mean, abs=0.005)
    assert np.mean(rates) <= alpha + 3 * np.std(rates) / math.sqrt(2000)


def test_a_system_that_cannot_miss_as_much_as_was_allowed_is_not_said_to():
    """5 of 100 patients are urgent and 9 may be missed: κ is 0, and 5 % are missed, not 5.5 % to 15 %."""
    bound = certified_bound(patients(100, kappa=[2.0] * 5), 0.1, Guarantee())
    assert (bound.kappa, bound.observed) == (0.0, 0.05)
    assert (bound.spread.low, bound.spread.high) == (0.0, beta_spread(9, 100).high)
    assert "miss between 0 and 15 %" in bound.sentence("on average", "case", 0.0)


def test_the_spread_of_weighted_patients_is_that_of_as_many_whole_patients():
    """(Σ w)² / Σ w² = 36/18 = 2 patients' worth; α = 0.75 allows (k·3 + 4)/(6 + 4) ≤ 0.75, so k = 1: Beta(2, 1)."""
    curve = LossCurve.of([], [], [], [4.0, 1.0, 1.0], worst=4.0)
    bound = certified_bound(curve, 0.75, Guarantee())
    assert bound.spread == beta_spread(1, 2, exact=False)
    assert "upper end" in bound.spread.how


def test_the_spread_of_the_documented_table():
    assert [round(100 * value) for value in (beta_spread(1, 19).low, beta_spread(1, 19).high)] == [2, 23]
    assert beta_spread(3, 3).high == 1.0


@pytest.mark.parametrize("kappa", [[math.nan], [-1.0]])
def test_steps_that_are_no_numbers_are_refused(kappa):
    with pytest.raises(ParameterError, match="Every step"):
        patients(1, kappa=kappa)


def test_a_loss_that_grows_is_refused():
    with pytest.raises(ParameterError, match="must not grow"):
        LossCurve.of([1.0], [-0.5], [0], [1.0])


@pytest.mark.parametrize("value", ["median", "0", 1.0, "nan", 1.5])
def test_what_is_no_guarantee(value):
    with pytest.raises(ParameterError, match="'mean' or a confidence"):
        Guarantee.of(value)
