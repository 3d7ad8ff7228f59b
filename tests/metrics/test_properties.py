"""What must hold for any model: merging, direction, absent classes, agreement with scikit-learn."""

from __future__ import annotations

import math
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import sklearn.metrics
from hypothesis import assume, given
from tests.strategies import confusions, labels_of, trees_and_levels

from pams_mil import ClassHierarchy, metrics
from pams_mil.errors import ParameterError
from pams_mil.metrics.metric import METRICS, LabelMetrics
from pams_mil.metrics.reduce import ConfusionCells

TREE = ClassHierarchy.flat(["a", "b", "c"])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[LabelMetrics, np.ndarray, np.ndarray]:
    hierarchy, level = draw(trees_and_levels(most_classes=8))
    size = hierarchy.num_classes(level)
    return LabelMetrics(hierarchy, level), draw(confusions(size, errors=True)), draw(confusions(size, errors=True))


@given(pairs())
def test_metrics_of_a_union_are_weighted_means(case: tuple[LabelMetrics, np.ndarray, np.ndarray]):
    score, first, second = case
    one, two, both = score(first), score(second), score(first + second)
    weights = {
        "acc": "total", "ascc": "total", "ecc": "total", "missed_rate": "total", "false_alarm_rate": "total",
        "asmc": "errors", "emc": "errors", "risk": "errors",
    }  # fmt: skip
    for metric, weight in weights.items():
        a, b = (getattr(ConfusionCells.of(S), weight) for S in (first, second))
        assert float(both[metric]) == pytest.approx(float((a * one[metric] + b * two[metric]) / (a + b)), rel=1e-12)
    assert both["severe_errors"] == one["severe_errors"] + two["severe_errors"]


@given(pairs(), st.integers(0, 2**32 - 1))
def test_the_order_of_samples_does_not_matter(case: tuple[LabelMetrics, np.ndarray, np.ndarray], seed: int):
    score, S, _ = case
    true, predicted = labels_of(S)
    shuffled = np.random.default_rng(seed).permutation(len(true))
    found = metrics.confusion_matrix(true[shuffled], predicted[shuffled], score.hierarchy, score.level)
    assert (found == S).all()


@given(pairs())
def test_without_a_penalty_the_asymmetric_metrics_are_the_symmetric_ones(
    case: tuple[LabelMetrics, np.ndarray, np.ndarray],
):
    score, S, _ = case
    found = LabelMetrics(score.hierarchy, score.level, penalty=0.0)(S)
    assert found["ascc"] == found["ecc"]
    assert found["asmc"] == found["emc"]


@given(pairs())
def test_mirrored_errors_tie_symmetrically_and_are_told_apart_asymmetrically(
    case: tuple[LabelMetrics, np.ndarray, np.ndarray],
):
    """Two models with the same accuracy whose errors point in opposite directions; missing urgency must lose."""
    score, S, _ = case
    outranks = score.hierarchy.outranks(score.level)
    missed = np.where(outranks, S + S.T, 0) + np.diag(np.diagonal(S)) + np.where(~outranks & ~outranks.T, S, 0)
    np.fill_diagonal(missed, np.diagonal(S))
    assume((missed * outranks).any())
    false_alarms = np.where(outranks.T, missed.T, np.where(outranks, 0, missed))
    bad, good = score(missed), score(false_alarms)
    assert float(bad["acc"]) == float(good["acc"])
    for metric in ("ecc", "emc"):
        assert float(bad[metric]) == pytest.approx(float(good[metric]), rel=1e-12)
    for metric in ("ascc", "asmc", "risk", "severe_errors", "missed_rate"):
        better = good[metric] > bad[metric] if METRICS[metric].higher_is_better else good[metric] < bad[metric]
        assert better, metric


@given(pairs())
def test_ranges(case: tuple[LabelMetrics, np.ndarray, np.ndarray]):
    score, S, _ = case
    found = score(S)
    assert 0 <= found["acc"] <= found["ascc"] <= found["ecc"] <= 1
    assert 0 < found["asmc"] <= found["emc"] <= 1
    assert found["missed_rate"] + found["false_alarm_rate"] <= 1 - found["acc"] + 1e-12


@given(pairs())
def test_agreement_with_scikit_learn(case: tuple[LabelMetrics, np.ndarray, np.ndarray]):
    score, S, _ = case
    true, predicted = labels_of(S)
    size = len(S)
    found = score(S)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (sklearn.metrics.confusion_matrix(true, predicted, labels=range(size)) == S).all()
        assert float(found["acc"]) == pytest.approx(sklearn.metrics.accuracy_score(true, predicted))
        assert float(found["balanced_acc"]) == pytest.approx(sklearn.metrics.balanced_accuracy_score(true, predicted))
        kappa = sklearn.metrics.cohen_kappa_score(true, predicted, weights="quadratic", labels=range(size))
        recall = sklearn.metrics.recall_score(true, predicted, labels=range(size), average=None, zero_division=np.nan)
    assert float(found["cohen_kappa"]) == pytest.approx(kappa, nan_ok=True, abs=1e-12)
    assert metrics.per_class_recall(true, predicted, score.hierarchy, score.level) == pytest.approx(recall, nan_ok=True)


@given(pairs())
def test_a_class_that_never_occurs_changes_no_severity_metric_of_the_rest(
    case: tuple[LabelMetrics, np.ndarray, np.ndarray],
):
    """The most urgent class is added but never seen: nothing about the others may change, and its recall is NaN."""
    _, S, _ = case
    names = [f"c{index}" for index in range(len(S) + 1)]
    without, with_it = ClassHierarchy.flat(names[:-1]), ClassHierarchy.flat(names)
    larger = np.pad(S, (0, 1))
    one, two = LabelMetrics(without)(S), LabelMetrics(with_it)(larger)
    for metric in one:
        assert float(two[metric]) == pytest.approx(float(one[metric]), nan_ok=True, abs=1e-12), metric
    assert math.isnan(ConfusionCells.of(larger).recalls[-1])


@pytest.mark.parametrize("label", [0, 1, 2])
def test_one_sample(label: int):
    found = {key: float(value) for key, value in LabelMetrics(TREE)(np.diag(np.eye(3, dtype=int)[label])).items()}
    assert (found["acc"], found["balanced_acc"], found["ascc"], found["risk"]) == (1, 1, 1, 0)
    assert found["asmc"] == math.inf
    assert math.isnan(found["cohen_kappa"])


@pytest.mark.parametrize(
    ("true", "predicted", "message"),
    [
        (["a"], ["a", "b"], "equally long, found 1 and 2"),
        ([], [], "empty; a metric needs at least one sample"),
        ([0, 3], [0, 1], "row 1: 3 is not a class; expected 0 to 2"),
        ([-1], [0], "row 0: -1 is not a class; expected 0 to 2"),
        ([0.5], [0.0], "row 0: 0.5 is not a class"),
        ([float("nan")], [0.0], "row 0: nan is not a class"),
        ([[0]], [[0]], "flat list of class names or numbers"),
        ([None], [0], "row 0: None is not a class"),
    ],
)
def test_labels_that_cannot_be_scored(true: list[object], predicted: list[object], message: str):
    for function in (metrics.ascc, metrics.accuracy, metrics.severe_errors, metrics.false_alarm_rate):
        with pytest.raises(ParameterError, match=message):
            function(true, predicted, TREE)


def test_unknown_names_are_never_guessed():
    with pytest.raises(ParameterError, match="row 0: 'A' is not a class"):
        metrics.ascc(["A"], ["a"], TREE)


class Series(list):
    """Iterates over its values but is indexed by something else, as a filtered table column is."""

    def __getitem__(self, key: object) -> object:
        raise KeyError(key)


def test_labels_may_be_any_column():
    assert metrics.accuracy(Series(["a", "b"]), Series(["a", "c"]), TREE) == 0.5
    assert metrics.accuracy(np.array(["a", "b"]), np.array(["a", "c"]), TREE) == 0.5
    assert metrics.accuracy(list(np.array(["a", "b"])), list(np.array([0, 2])), TREE) == 0.5
    assert metrics.accuracy(np.array([0, 1], dtype=np.uint8), (0, 2), TREE) == 0.5
