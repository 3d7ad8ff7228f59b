"""Metrics of probabilities: AUC, calibration, expected class and cost, against loops and other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from tests.reference import metrics as reference
from tests.strategies import predictions

from pams_mil import ClassHierarchy
from pams_mil.errors import ParameterError
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics import calibration_error, expected_class_of_errors, expected_cost, macro_auc
from pams_mil.metrics.probability import OrderedProbabilities, class_aucs, class_columns


def classes(count: int) -> ClassHierarchy:
    return ClassHierarchy.flat("abcdefg"[:count])


@given(predictions(most_rows=25))
def test_auc_counts_won_pairs(model: Predictions):
    true, scores = model.target, model.probabilities
    expected = [reference.auc(true.tolist(), scores.tolist(), c) for c in range(scores.shape[1])]
    assert class_aucs(true, scores) == pytest.approx(expected, nan_ok=True)
    found = macro_auc(true, OrderedProbabilities(scores), model.hierarchy)
    assert found == pytest.approx(reference.macro_auc(true.tolist(), scores.tolist()), nan_ok=True)


@given(predictions())
def test_auc_agrees_with_scikit_learn_on_the_present_classes(model: Predictions):
    true, scores = model.target, model.probabilities
    for c, value in enumerate(class_aucs(true, scores)):
        if 0 < np.sum(true == c) < len(true):
            assert value == pytest.approx(sklearn.metrics.roc_auc_score(true == c, scores[:, c]))
        else:
            assert math.isnan(value)


def test_macro_auc_is_scikit_learns_when_all_classes_are_present():
    rng = np.random.default_rng(0)
    true, scores = rng.permutation(np.arange(200) % 5), rng.dirichlet(np.ones(5), 200).round(2)
    scores /= scores.sum(1, keepdims=True)
    expected = sklearn.metrics.roc_auc_score(true, scores, multi_class="ovr", average="macro")
    assert macro_auc(true, scores, classes(5)) == pytest.approx(expected)


def test_auc_of_one_class_only_is_undefined():
    assert math.isnan(macro_auc(np.array([1, 1]), np.array([[0.5, 0.5], [0.1, 0.9]]), classes(2)))


@given(predictions())
def test_expected_class_of_errors(model: Predictions):
    arguments = model.target.tolist(), model.predicted.tolist(), model.probabilities.tolist()
    expected = [reference.expected_class_of_errors(*arguments, c) for c in range(model.hierarchy.num_classes())]
    found = expected_class_of_errors(
        model.target, model.predicted, OrderedProbabilities(model.probabilities), model.hierarchy
    )
    assert found == pytest.approx(expected, nan_ok=True)


@given(predictions())
def test_expected_cost(model: Predictions):
    cost = np.random.default_rng(1).random((model.hierarchy.num_classes(),) * 2)
    expected = reference.expected_cost(model.target.tolist(), model.probabilities.tolist(), cost.tolist())
    found = expected_cost(model.target, OrderedProbabilities(model.probabilities), model.hierarchy, cost)
    assert found == pytest.approx(expected)


def test_calibration_error_agrees_with_torchmetrics():
    from torchmetrics.functional.classification import multiclass_calibration_error

    for seed in range(10):
        rng = np.random.default_rng(seed)
        true, scores = rng.integers(0, 4, 300), rng.dirichlet(np.ones(4), 300)
        expected = multiclass_calibration_error(torch.tensor(scores), torch.tensor(true), num_classes=4, n_bins=15)
        assert calibration_error(true, scores, classes(4)) == pytest.approx(float(expected), abs=1e-6)


def test_calibration_error_by_hand():
    scores = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [1.0, 0.0]])
    true = np.array([0, 1, 1, 0])
    assert calibration_error(true, scores, classes(2), bins=10) == pytest.approx((2 * 0.4 + 0.4 + 0) / 4)


@pytest.mark.parametrize(
    ("true", "scores", "message"),
    [
        (np.array([0]), np.array([[0.5, 0.5], [1, 0]]), "found 1 and 2"),
        (np.array([], dtype=int), np.empty((0, 2)), "at least one, found 0 and 0"),
        (np.array([0]), np.array([0.5]), r"found shape \(1,\)"),
        (np.array([2]), np.array([[0.5, 0.5]]), "row 0: 2 is not a class; expected 0 to 1, least urgent first"),
        (["a", "c"], np.array([[0.5, 0.5]] * 2), "row 1: .*'c' is not a class"),
        ([0.5, 1.0], np.array([[0.5, 0.5]] * 2), "row 0: 0.5 is not a class"),
        ([[0], [1]], np.array([[0.5, 0.5]] * 2), "flat list"),
    ],
)
def test_shapes_are_checked(true: np.ndarray, scores: np.ndarray, message: str):
    for function in (macro_auc, calibration_error):
        with pytest.raises(ParameterError, match=message):
            function(true, scores, classes(2))
    with pytest.raises(ParameterError, match="cost must be 2 x 2"):
        expected_cost(np.array([0]), np.array([[0.5, 0.5]]), classes(2), np.ones((3, 3)))


def test_columns_sorted_by_name_are_never_taken_for_columns_in_order_of_urgency():
    """scikit-learn's `predict_proba` beside labels that are names was scored .695 instead of .998."""
    from pams_mil.metrics import operating_curve, rps, urgency_auc
    from pams_mil.metrics.kappa_path import decision_path
    from pams_mil.metrics.probability import check_probabilities

    tree = ClassHierarchy.of(["normal", "hyperplasia", "atypia", "cancer"])
    random = np.random.default_rng(0)
    target = random.integers(0, 4, 300)
    p = random.dirichlet(np.ones(4), 300) * 0.4 + 0.6 * np.eye(4)[target]
    names = [tree.names()[index] for index in target]
    by_name = sorted(tree.names())
    alphabetical = p[:, [tree.index(name) for name in by_name]]
    expected = urgency_auc(target, p, tree)
    assert urgency_auc(names, p, tree) == expected  # clearly in the order of urgency
    for score in (urgency_auc, operating_curve, rps):
        with pytest.raises(ParameterError, match="labels="):
            score(names, alphabetical, tree)
    assert urgency_auc(names, alphabetical, tree, labels=by_name) == expected
    with pytest.raises(ParameterError, match="which column"):  # chance says nothing about the order
        urgency_auc(names, random.dirichlet(np.ones(4), 300), tree)

    class Frame:
        def __init__(self, columns):
            self.columns = columns

        def to_numpy(self):
            return alphabetical

    # Numbers are positions in the order of urgency: nothing to check where columns have no names, but their order.
    for score in (urgency_auc, operating_curve, rps, macro_auc, calibration_error):
        with pytest.raises(ParameterError, match="labels="):
            score(target, alphabetical, tree)
    assert urgency_auc(target, alphabetical, tree, labels=by_name) == expected
    assert urgency_auc(target, Frame(by_name), tree) == expected
    assert urgency_auc(target, Frame(by_name).to_numpy()[:, np.argsort(np.argsort(tree.names()))], tree) == expected
    # Numbers of a LabelEncoder beside named columns: every class would be another one.
    encoded = np.array([by_name.index(name) for name in names])
    for table in (Frame(by_name), Frame([f"p_{name}" for name in by_name])):
        with pytest.raises(ParameterError, match="Give y_true as names"):
            urgency_auc(encoded, table, tree)
    with pytest.raises(ParameterError, match="Give y_true as names"):
        urgency_auc(encoded, alphabetical, tree, labels=by_name)
    assert urgency_auc(target, p, tree, labels=np.arange(4)) == expected  # `classes_` of a classifier on numbers
    assert urgency_auc(target, p[:, ::-1], tree, labels=np.arange(4)[::-1]) == expected
    assert macro_auc(names, Frame(by_name), tree) == macro_auc(target, p, tree)
    assert urgency_auc(torch.tensor(target), torch.tensor(p, requires_grad=True), tree) == expected
    with pytest.raises(ParameterError, match="expected an array in the order of urgency"):
        check_probabilities(Frame(by_name))
    assert decision_path(Frame(by_name), tree).reach.tolist() == decision_path(p, tree).reach.tolist()
    assert urgency_auc(names, Frame(by_name), tree) == expected
    assert urgency_auc(names, Frame([f"p_{name}" for name in by_name]), tree) == expected
    with pytest.raises(ParameterError, match="expected one for each class"):
        urgency_auc(names, Frame(["a", *by_name[1:]]), tree)
    with pytest.raises(ParameterError, match="labels="):
        urgency_auc(names, Frame([0, 1, 2, 3]), tree)  # numbers name no class


def test_numbers_are_names_where_classes_are_named_by_numbers():
    """Grades 1 to 5 were read as positions by metrics, and as grades by audits."""
    import pams_mil as pams

    grades = ClassHierarchy.flat(["1", "2", "3", "4", "5"])
    random = np.random.default_rng(0)
    target = random.integers(0, 4, 200)
    p = 0.5 * np.eye(5)[target] + 0.5 * random.dirichlet(np.ones(5), 200)
    spelled = [grades.names()[index] for index in target]
    assert pams.metrics.urgency_auc(target + 1, p, grades) == pams.metrics.urgency_auc(spelled, p, grades)
    assert pams.metrics.accuracy(target + 1, spelled, grades) == 1.0
    report = pams.audit(target + 1, p, grades, resamples=0)
    assert report.predictions[0].target.tolist() == target.tolist()
    table, order = class_columns(p, grades, labels=[1, 2, 3, 4, 5])
    assert (table.tolist(), order) == (p.tolist(), [0, 1, 2, 3, 4])
    with pytest.raises(ParameterError, match=r"row 0: .*'0' is not a class"):
        pams.metrics.urgency_auc(target * 0, p, grades)
