"""Operating curves: against scikit-learn with two classes, against loops with many, and at their ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import operating as reference
from tests.strategies import predictions

from pams_mil.errors import ParameterError
from pams_mil.evaluate import decision_path
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import operating_curve, urgency_auc
from pams_mil.metrics.operating import class_shares, constant_calls, constant_hull, exact_curve

TWO = ClassHierarchy.flat(["benign", "malignant"])
THREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])
BRACS = ClassHierarchy.load("bracs")
binary = st.tuples(st.integers(0, 2**32 - 1), st.integers(2, 60), st.sampled_from([1, 2, 8]))


def two_classes(seed, rows, digits):
    """Scores with ties, 0 and 1 among them."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 2, rows)
    true[:2] = 0, 1
    score = np.clip(rng.random(rows) * 1.2 - 0.1 + 0.3 * true, 0, 1).round(digits)
    return true, np.stack([1 - score, score], 1)


@given(binary)
def test_two_classes_give_scikit_learns_auc_and_roc(case):
    true, p = two_classes(*case)
    assert urgency_auc(true, p, TWO) == pytest.approx(sklearn.metrics.roc_auc_score(true, p[:, 1]), abs=1e-12)
    fpr, tpr, _ = sklearn.metrics.roc_curve(true, p[:, 1], drop_intermediate=False)
    curve = operating_curve(true, p, TWO)
    share = true.mean()
    ours = np.stack([curve.false_alarms, curve.missed], 1)
    theirs = np.stack([fpr * (1 - share), (1 - tpr) * share], 1)
    assert np.unique(ours.round(12), axis=0) == pytest.approx(np.unique(theirs.round(12), axis=0), abs=1e-12)


@given(binary, st.floats(0.01, 0.99))
def test_two_classes_give_scikit_learns_partial_auc(case, most):
    true, p = two_classes(*case)
    ours = urgency_auc(true, p, TWO, max_false_alarms=most * float(np.mean(true == 0)))
    assert ours == pytest.approx(sklearn.metrics.roc_auc_score(true, p[:, 1], max_fpr=most), abs=1e-12)


@given(predictions(most_rows=25))
def test_every_point_is_what_the_calls_at_that_kappa_make(model):
    tree = model.hierarchy
    for level in range(tree.num_levels):
        true, _, p = model.at(level)
        ranks = tree.ranks(level).tolist()
        curve, path = operating_curve(true, p, tree, level), decision_path(p, tree, level=level)
        assert curve.missed[0] == pytest.approx(np.mean(tree.ranks(level)[true] > ranks[0]))
        assert curve.false_alarms[0] == 0
        for kappa, missed, alarms in zip(curve.kappa[1:], curve.missed[1:], curve.false_alarms[1:], strict=True):
            expected = reference.rates(true.tolist(), path.calls(kappa).tolist(), ranks)
            assert (missed, alarms) == pytest.approx(expected, abs=1e-12)
        assert (np.diff(curve.missed) <= 0).all()
        assert (np.diff(curve.false_alarms) >= 0).all()
        assert curve.missed[-1] == 0


@given(predictions(most_rows=25))
def test_the_area_equals_loops(model):
    tree, true, p = model.hierarchy, model.target, model.probabilities
    curve, path = operating_curve(true, p, tree), decision_path(p, tree)
    ranks = tree.ranks().tolist()
    kappas = [k for k in curve.kappa.tolist() if k >= 0]
    points = [(curve.missed[0], 0.0), *(reference.rates(true.tolist(), path.calls(k).tolist(), ranks) for k in kappas)]
    chance = reference.no_information_area(true.tolist(), ranks)
    value = urgency_auc(true, p, tree)
    if chance <= 1e-12:
        assert math.isnan(value)
    else:
        assert value == pytest.approx(1 - reference.area(points) / (2 * chance), abs=1e-9)


@given(predictions(most_rows=25), st.integers(0, 2**32 - 1))
def test_weights_count_cases_several_times(model, seed):
    weights = np.random.default_rng(seed).integers(0, 4, len(model))
    if not weights.any():
        weights[0] = 1
    repeated = model.take(np.repeat(np.arange(len(model)), weights))
    tree = model.hierarchy
    weighted = urgency_auc(model.target, model.probabilities, tree, weights=weights)
    assert weighted == pytest.approx(urgency_auc(repeated.target, repeated.probabilities, tree), nan_ok=True)
    curve = exact_curve(decision_path(model.probabilities, tree), model.target, weights)
    plain = operating_curve(repeated.target, repeated.probabilities, tree)
    for share in (0.0, 0.1, 0.3, 1.0):
        assert curve.missed_at(share) == pytest.approx(plain.missed_at(share))
        assert curve.false_alarms_at(share) == pytest.approx(plain.false_alarms_at(share))


def test_no_information_is_a_half_and_perfection_one():
    rng = np.random.default_rng(0)
    true = rng.choice(7, 500, p=[0.3, 0.05, 0.2, 0.1, 0.1, 0.05, 0.2])
    shares = np.bincount(true, minlength=7) / 500
    assert urgency_auc(true, np.tile(shares, (500, 1)), BRACS) == pytest.approx(0.5, abs=1e-12)
    assert urgency_auc(true, np.eye(7)[true], BRACS) == 1.0
    soft = 0.9 * np.eye(7)[true] + 0.1 * shares
    assert urgency_auc(true, soft, BRACS) == pytest.approx(1.0)
    for constant in ([0.5, 0.5], [0.9, 0.1], [0.0, 1.0]):
        assert urgency_auc([0, 1, 1], [constant] * 3, TWO) == 0.5


def test_other_constants_than_the_class_shares_never_beat_a_half():
    rng = np.random.default_rng(1)
    for _ in range(50):
        true = rng.integers(0, 3, 40)
        assert urgency_auc(true, np.tile(rng.dirichlet(np.ones(3)), (40, 1)), THREE) <= 0.5 + 1e-12


def test_all_cases_equally_urgent_is_undefined():
    assert math.isnan(urgency_auc([1, 1], [[0.2, 0.3, 0.5]] * 2, THREE))
    tied = [BRACS.index("FEA"), BRACS.index("ADH")]
    assert math.isnan(urgency_auc(tied, np.full((2, 7), 1 / 7), BRACS))


def test_by_hand():
    p = [[0.6, 0.1, 0.3], [0.0, 2 / 3, 1 / 3], [0.2, 0.0, 0.8]]
    curve = operating_curve(["benign", "atypical", "malignant"], p, THREE, labels=THREE.names())
    path = decision_path(p, THREE)
    assert path.rises(0)[1] == (pytest.approx(1 + 0.3 / 0.4), 2)
    assert path.rises(1) == [(0.0, 1), (pytest.approx(2.0), 2)]
    assert path.rises(2)[1] == (pytest.approx(0.25), 2)
    assert curve.kappa.tolist() == pytest.approx([-math.inf, 0, 0.25, 1, 1.75, 2, math.inf])
    assert (3 * curve.missed).tolist() == pytest.approx([2, 1, 0, 0, 0, 0, 0])
    assert (3 * curve.false_alarms).tolist() == pytest.approx([0, 0, 0, 0, 1, 2, 2])
    assert curve.at(1.0) == (0, 0)
    assert curve.at(1.8) == (0, pytest.approx(1 / 3))


def test_between_two_points_the_curve_is_a_mix():
    true = [0, 0, 1, 1]
    p = [[0.5, 0.5]] * 4
    curve = operating_curve(true, p, TWO)
    assert curve.missed_at([0.0, 0.125, 0.5, 0.9]).tolist() == [0.5, 0.375, 0, 0]
    assert curve.false_alarms_at([0.0, 0.25, 0.5, 0.7]).tolist() == [0.5, 0.25, 0, 0]


@given(predictions(most_rows=25), st.floats(0, 1))
def test_a_dial_for_given_false_alarms_raises_no_more_on_the_same_slides(model, share):
    curve = operating_curve(model.target, model.probabilities, model.hierarchy)
    kappa = curve.kappa_at(share)
    reached = curve.at(kappa)[1]
    assert reached <= share or kappa == 0
    beyond = curve.false_alarms[curve.kappa > kappa]
    assert beyond.size == 0 or beyond[0] > share


def test_constant_calls_and_their_hull():
    shares = class_shares(np.array([0, 1, 1, 2]), np.ones(4), THREE.ranks())
    assert shares.tolist() == [0.25, 0.5, 0.25]
    assert [values.tolist() for values in constant_calls(shares)] == [[0.75, 0.25, 0], [0, 0.25, 0.75]]
    missed, alarms = constant_hull(np.array([0.45, 0.1, 0.45]))  # the middle class is too rare to pay
    assert missed.tolist() == pytest.approx([0.55, 0.1, 0])  # on the line between the others
    assert alarms.tolist() == pytest.approx([0, 0.45, 0.55])


def test_the_hull_is_the_best_mix_of_two_constant_calls():
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 8, 25):
        shares = rng.dirichlet(np.full(size, 0.3), 20)
        shares[0], shares[1, 1:] = 1 / size, 0.0
        missed, alarms = constant_calls(shares)
        hull, _ = constant_hull(shares)
        for row in range(20):
            assert hull[row].tolist() == pytest.approx(reference.lower_hull(missed[row], alarms[row]), abs=1e-12)


def test_what_is_refused():
    with pytest.raises(ParameterError, match="as many labels as rows"):
        operating_curve([0], [[1.0, 0.0]] * 2, TWO)
    with pytest.raises(ParameterError, match="at least one"):
        operating_curve([], np.zeros((0, 2)), TWO)
    with pytest.raises(ParameterError, match="max_false_alarms"):
        urgency_auc([0, 1], [[1.0, 0.0]] * 2, TWO, max_false_alarms=0)
    with pytest.raises(ParameterError, match="weights must be 2"):
        urgency_auc([0, 1], [[1.0, 0.0]] * 2, TWO, weights=[0, 0])
