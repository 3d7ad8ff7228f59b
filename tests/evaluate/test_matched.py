"""Models at the same operating point: against resamples and swaps done by hand, and by what the numbers must mean."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluate.test_compare import twins
from tests.strategies import predictions

from pams_mil import ClassHierarchy
from pams_mil.atomic import strict_json
from pams_mil.evaluate import decision_path
from pams_mil.evaluate.matched import _Measure, matched
from pams_mil.evaluate.operating_points import KAPPAS, PARTIAL, operating_points, patient_coins, patient_draws
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics import operating_curve, urgency_auc
from pams_mil.metrics.kappa_path import DecisionPath
from pams_mil.metrics.operating import CurveResampler, class_shares

TREE = ClassHierarchy.load("bracs")


def by_hand(model: Predictions, false_alarms: float, missed: float) -> list[float]:
    """What is compared, from the curve of plain predictions."""
    curve = operating_curve(model.target, model.probabilities, model.hierarchy)
    costs = []
    for kappa in KAPPAS:
        lost, raised = curve.at(kappa)
        costs.append(raised + kappa * lost)
    return [
        float(curve.missed_at(false_alarms)),
        float(curve.false_alarms_at(missed)),
        urgency_auc(model.target, model.probabilities, model.hierarchy),
        urgency_auc(model.target, model.probabilities, model.hierarchy, max_false_alarms=PARTIAL),
        *costs,
    ]


@settings(max_examples=30)
@given(predictions(most_rows=20), st.floats(0, 0.9), st.floats(0, 0.9), st.integers(0, 2**32 - 1))
def test_a_resample_is_the_curve_of_the_repeated_slides(model, false_alarms, missed, seed):
    """The dial is chosen anew: a resample is measured exactly as a file with those slides would be."""
    tree = model.hierarchy
    resampler = CurveResampler(decision_path(model.probabilities, tree), model.target)
    (weights,) = patient_draws(model.patient, seed, 3)
    assert weights.shape == (3, len(model))
    shares = class_shares(model.target, weights, tree.ranks())
    found = _Measure(false_alarms, missed)(resampler, weights, shares)
    for row, counts in zip(found, weights, strict=True):
        repeated = model.take(np.repeat(np.arange(len(model)), counts))
        assert row.tolist() == pytest.approx(by_hand(repeated, false_alarms, missed), nan_ok=True, abs=1e-9)


def test_a_swap_exchanges_the_probabilities_of_whole_patients():
    one, two = twins(rows=60, patients=20)
    ranks = TREE.ranks()
    reach = np.concatenate([decision_path(model.probabilities, TREE).reach for model in (one, two)])
    both = CurveResampler(DecisionPath(reach, ranks), np.tile(one.target, 2))
    (coins,) = patient_coins(one.patient, 7, 5)
    shares = class_shares(one.target, np.ones((1, 60)), ranks)
    found = _Measure(0.2, 0.1)(both, np.concatenate([1 - coins, coins], axis=1), shares)
    for row, coin in zip(found, coins, strict=True):
        assert all(len(set(coin[one.patient == patient])) == 1 for patient in set(one.patient.tolist()))
        mixed = replace(one, probabilities=np.where(coin[:, None] == 1, two.probabilities, one.probabilities))
        assert row.tolist() == pytest.approx(by_hand(mixed, 0.2, 0.1), abs=1e-9)


def test_observed_values_are_those_of_the_curves_at_the_references_own_point():
    one, two = twins()
    found = matched(one, two, resamples=50, swaps=50)
    ranks = TREE.ranks()
    own = np.mean(ranks[one.predicted] > ranks[one.target])
    assert found.at_false_alarms == own
    assert found.missed.candidate == pytest.approx(by_hand(two, own, 0)[0])
    assert found.missed.reference == pytest.approx(by_hand(one, own, 0)[0])
    assert found.missed.reference <= np.mean(ranks[one.predicted] < ranks[one.target])  # with no more false alarms
    assert found.missed.difference == found.missed.candidate - found.missed.reference
    given_share = matched(one, two, false_alarms=0.05, resamples=0, swaps=10)
    assert given_share.missed.reference == pytest.approx(by_hand(one, 0.05, 0)[0])
    assert np.isnan(given_share.missed.interval).all()


def test_another_dial_on_the_same_model_is_no_difference():
    """The honest finding as a test: deciding with κ = 5 looks safer, and at equal false alarms is the same model."""
    one, _ = twins(rows=300, patients=100)
    urgent = replace(one, name="urgent", predicted=decision_path(one.probabilities, TREE).calls(5.0))
    found = matched(one, urgent, resamples=100, swaps=100)
    for gap in (found.missed, found.false_alarms, found.urgency_auc, *found.at_kappa.values()):
        assert gap.difference == 0
        assert gap.interval == (0, 0)
        assert gap.p_value == 1
    assert found.candidate_cheaper == ()


def test_a_better_model_is_better_at_equal_false_alarms():
    one, _ = twins(rows=300, patients=150)
    sharper = 0.5 * one.probabilities + 0.5 * np.eye(7)[one.target] * np.random.default_rng(0).random((300, 1))
    better = replace(one, name="better", probabilities=sharper / sharper.sum(1, keepdims=True))
    found = matched(one, better, resamples=200, swaps=200)
    assert found.missed.difference < 0
    assert found.missed.interval[1] < 0
    assert found.missed.p_value == pytest.approx(1 / 201)
    assert found.false_alarms.difference < 0
    assert found.urgency_auc.difference > 0
    back = matched(better, one, resamples=200, swaps=200)
    assert back.urgency_auc.difference == pytest.approx(-found.urgency_auc.difference)
    assert found.candidate_cheaper[0][0] <= 1 <= found.candidate_cheaper[-1][1]


def test_p_values_are_uniform_when_the_models_are_alike():
    p_values = [
        matched(*twins(seed, rows=90, patients=30), resamples=2, swaps=200).missed.p_value for seed in range(80)
    ]
    assert 0.4 < np.mean(p_values) < 0.62
    assert np.mean(np.array(p_values) < 0.05) < 0.12


def test_one_patient_settles_nothing():
    one, two = twins(rows=40, patients=1)
    assert matched(one, two, resamples=20, swaps=50).missed.p_value == 1


def test_models_without_probabilities_have_no_curve():
    one, two = twins()
    assert matched(one, replace(two, probabilities=None)) is None
    assert operating_points(replace(two, probabilities=None)) is None


def test_json_is_strict_and_names_the_gap():
    found = matched(*twins(), level=0, resamples=20, swaps=20)
    read = json.loads(strict_json(found.to_json()), parse_constant=pytest.fail)
    assert {"difference", "ci", "p", "at_false_alarms", "urgency_auc", "false_alarms"} <= set(read)
    assert read["difference"] == pytest.approx(read["candidate"] - read["reference"])


def test_progress_grows_to_one():
    seen: list[float] = []
    matched(*twins(), resamples=30, swaps=30, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_points_of_one_model():
    one, _ = twins(rows=200, patients=60)
    found = operating_points(one, resamples=200)
    assert found.urgency_auc.value == urgency_auc(one.target, one.probabilities, TREE)
    assert found.urgency_auc.interval[0] < found.urgency_auc.value < found.urgency_auc.interval[1]
    assert found.decided == pytest.approx(
        found.argmax, abs=0.02
    )  # equal probabilities: the file takes the milder class
    curve = operating_curve(one.target, one.probabilities, TREE)
    assert found.missed_at[0.2].value == pytest.approx(float(curve.missed_at(0.2)))
    assert found.false_alarms_at[0.1].value == pytest.approx(float(curve.false_alarms_at(0.1)))
    assert (found.band.low <= found.band.high).all()
    inside = curve.missed_at(found.band.false_alarms)
    assert np.mean((found.band.low <= inside) & (inside <= found.band.high)) > 0.9
    read = json.loads(strict_json(found.to_json()), parse_constant=pytest.fail)
    assert set(read["missed_at"]) == {"0.1", "0.2", "0.3"}
    assert len(read["curve"]["kappa"]) == len(read["curve"]["missed"]) == len(read["curve"]["false_alarms"])
    assert operating_points(one, resamples=0).band is None


def test_long_curves_are_thinned_in_reports_only():
    one, _ = twins(rows=2000, patients=500)
    found = operating_points(one, resamples=0)
    assert len(found.curve.kappa) > 1500
    shown = found.to_json()["curve"]
    assert 900 < len(shown["kappa"]) < 1100
    assert 1.0 in shown["kappa"]
    assert shown["missed"][-1] == 0
    assert shown["false_alarms"][0] == 0


@pytest.mark.parametrize("rows", [1, 2])
def test_hardly_any_slides(rows):
    one, two = (model.take(np.arange(rows)) for model in twins())
    assert matched(one, two, resamples=20, swaps=20) is not None
    assert operating_points(one, resamples=20).n == rows


def test_only_one_class_is_undefined_and_said_as_such():
    one, two = twins()
    one, two = (replace(model, target=np.full(len(model), 3)) for model in (one, two))
    found = matched(one, two, resamples=20, swaps=20)
    assert np.isnan(found.urgency_auc.difference)
    assert found.urgency_auc.p_value is None
    assert np.isnan(operating_points(one, resamples=20).urgency_auc.value)
