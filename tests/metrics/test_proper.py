"""Scores of probabilities: against loops, scikit-learn, scipy and dcurves, and by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import operating as reference
from tests.strategies import predictions, trees

from pams_mil.atomic import plain
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import (
    boundary_calibration,
    brier,
    net_benefit,
    nll,
    normalized_cost,
    operating_curve,
    rps,
    worklist_c_index,
)
from pams_mil.metrics.operating import class_shares
from pams_mil.metrics.proper import boundary_names, wilson

TWO = ClassHierarchy.flat(["benign", "malignant"])
THREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])
BRACS = ClassHierarchy.load("bracs")


@given(predictions(most_rows=25))
def test_the_ranked_probability_score_equals_loops(model):
    tree, true, p = model.hierarchy, model.target, model.probabilities
    ranks = tree.ranks().tolist()
    if ranks[-1] > ranks[0]:
        assert rps(true, p, tree) == pytest.approx(reference.rps(true.tolist(), p.tolist(), ranks))
    else:
        assert math.isnan(rps(true, p, tree))


@given(trees(most_classes=8), st.integers(0, 2**32 - 1), st.integers(1, 20))
def test_the_worklist_equals_loops(tree, seed, rows):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, tree.num_classes(), rows)
    p = rng.multinomial(8, np.full(tree.num_classes(), 1 / tree.num_classes()), rows) / 8  # equal scores are common
    expected = reference.c_index(true.tolist(), p.tolist(), tree.ranks().tolist())
    assert worklist_c_index(true, p, tree) == pytest.approx(math.nan if expected is None else expected, nan_ok=True)


def test_log_likelihood_and_brier_score_are_scikit_learns():
    rng = np.random.default_rng(0)
    true, p = rng.integers(0, 7, 200), rng.dirichlet(np.ones(7), 200)
    assert nll(true, p, BRACS) == pytest.approx(sklearn.metrics.log_loss(true, p, labels=range(7)))
    y, q = rng.integers(0, 2, 50), rng.random(50)
    two = np.stack([1 - q, q], 1)
    assert brier(y, two, TWO) == pytest.approx(2 * sklearn.metrics.brier_score_loss(y, q))
    assert rps(y, two, TWO) == pytest.approx(sklearn.metrics.brier_score_loss(y, q))
    assert math.isfinite(nll([1], [[1.0, 0.0]], TWO))


def test_two_classes_give_the_auc_as_worklist():
    rng = np.random.default_rng(1)
    y, q = rng.integers(0, 2, 80), rng.random(80).round(1)
    assert worklist_c_index(y, np.stack([1 - q, q], 1), TWO) == pytest.approx(sklearn.metrics.roc_auc_score(y, q))


def test_wilson_is_scipys():
    for events, n in ((0, 5), (3, 10), (10, 10)):
        expected = scipy.stats.binomtest(events, n).proportion_ci(method="wilson")
        assert [float(bound) for bound in wilson(events, n)] == pytest.approx([expected.low, expected.high], abs=1e-9)


def test_calibration_at_the_boundaries_by_hand():
    p = [[0.5, 0.25, 0.25], [0.0, 0.5, 0.5], [0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]
    found = boundary_calibration([0, 2, 1, 0], p, THREE, groups=2)
    assert [boundary.at_least for boundary in found] == ["atypical", "malignant"]
    assert found[0].n.tolist() == [4, 2, 2]
    assert found[0].predicted.tolist() == [0.5625, 0.25, 0.875]
    assert found[0].observed.tolist() == [0.5, 0.0, 1.0]
    assert (found[0].low <= found[0].observed).all()
    assert (found[0].observed <= found[0].high).all()
    assert plain(found[0])["predicted"] == [0.5625, 0.25, 0.875]
    assert boundary_names(BRACS) == ["PB", "UDH", "FEA / ADH", "DCIS", "IC"]


def test_net_benefit_is_that_of_dcurves():
    """Values from dcurves 1.1.7, stored with their input; the package itself needs pandas and statsmodels."""
    stored = json.loads((Path(__file__).parents[1] / "data" / "net_benefit.json").read_text())
    score = np.asarray(stored["s"])
    kappas = 1 / np.asarray(stored["thresholds"]) - 1
    (found,) = net_benefit(stored["y"], np.stack([1 - score, score], 1), TWO, kappas)
    assert found.model == pytest.approx(stored["model"], abs=1e-12)
    assert found.always == pytest.approx(stored["all"], abs=1e-12)
    assert found.prevalence == pytest.approx(np.mean(stored["y"]))


def test_expected_cost_is_that_of_the_calls():
    rng = np.random.default_rng(2)
    true, p = rng.integers(0, 7, 100), rng.dirichlet(np.ones(7), 100)
    curve = operating_curve(true, p, BRACS)
    shares = class_shares(true, np.ones(100), BRACS.ranks())
    for kappa in (0.5, 1.0, 4.0):
        missed, alarms = curve.at(kappa)
        ranks = BRACS.ranks()
        constants = [np.mean(ranks[true] < rank) + kappa * np.mean(ranks[true] > rank) for rank in set(ranks.tolist())]
        cost = alarms + kappa * missed
        assert normalized_cost([cost], shares, kappa)[0] == pytest.approx(cost / min(constants))
    assert np.isnan(normalized_cost([0.5, 0.5], np.array([0.0, 1.0]), [1, 2])).all()


@pytest.mark.parametrize("kappas", [[0], [-1], [math.inf], [math.nan]])
def test_kappas_must_be_finite_and_positive(kappas):
    with pytest.raises(ParameterError, match="kappas must be finite numbers above 0"):
        net_benefit([0], [[1.0, 0.0]], TWO, kappas)


def test_labels_and_rows_must_match():
    for score in (nll, brier, rps, worklist_c_index, boundary_calibration):
        with pytest.raises(ParameterError, match="as many labels as rows"):
            score([0], [[1.0, 0.0]] * 2, TWO)
    with pytest.raises(ParameterError, match="as many labels as rows"):
        net_benefit([0], [[1.0, 0.0]] * 2, TWO, [1])
    with pytest.raises(ParameterError, match="groups"):
        boundary_calibration([0], [[1.0, 0.0]], TWO, groups=0)
