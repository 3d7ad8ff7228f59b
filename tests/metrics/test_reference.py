"""Every label metric equals its equation, and the paper's Figure 1 comes out as in the paper."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tests.reference import metrics as reference
from tests.strategies import confusions, labels_of, trees_and_levels

from pams_mil import ClassHierarchy, metrics
from pams_mil.errors import ParameterError
from pams_mil.metrics.metric import LABEL_METRICS, LabelMetrics

FIGURE_TREE = ClassHierarchy.flat(["Benign", "Atypical", "Malignant"])
FIGURE_A = np.array([[44, 5, 1], [6, 42, 2], [8, 1, 91]])
FIGURE_B = np.array([[35, 12, 3], [1, 45, 4], [1, 4, 95]])
FIGURE = {
    "acc": (0.885, 0.875),
    "ascc": (0.9209167, 0.9272500),
    "asmc": (0.5144928, 0.7766667),
    "ecc": (0.935, 0.9341667),
    "emc": (0.8043478, 0.92),
    "risk": (3.326087, 1.82),
    "severe_errors": (15, 6),
}
FUNCTIONS = {
    "acc": metrics.accuracy,
    "balanced_acc": metrics.balanced_accuracy,
    "ascc": metrics.ascc,
    "asmc": metrics.asmc,
    "ecc": metrics.ecc,
    "emc": metrics.emc,
    "risk": metrics.risk,
    "severe_errors": metrics.severe_errors,
    "missed_rate": metrics.missed_rate,
    "false_alarm_rate": metrics.false_alarm_rate,
    "least_urgent_recall": metrics.least_urgent_recall,
    "cohen_kappa": metrics.quadratic_kappa,
}


@pytest.mark.parametrize("metric", sorted(FIGURE))
def test_figure_1(metric: str):
    for counts, expected in zip((FIGURE_A, FIGURE_B), FIGURE[metric], strict=True):
        assert float(LabelMetrics(FIGURE_TREE)(counts)[metric]) == pytest.approx(expected, abs=5e-8, rel=2e-7)
        assert FUNCTIONS[metric](*labels_of(counts), FIGURE_TREE) == pytest.approx(expected, abs=5e-8, rel=2e-7)


def test_figure_1_prefers_b_only_with_the_true_class_first():
    a, b = LabelMetrics(FIGURE_TREE)(FIGURE_A), LabelMetrics(FIGURE_TREE)(FIGURE_B)
    assert b["ascc"] > a["ascc"]
    assert b["asmc"] > a["asmc"]
    swapped_a, swapped_b = LabelMetrics(FIGURE_TREE)(FIGURE_A.T), LabelMetrics(FIGURE_TREE)(FIGURE_B.T)
    assert float(swapped_a["ascc"]) == pytest.approx(0.9255833, abs=5e-8)
    assert float(swapped_b["ascc"]) == pytest.approx(0.9121667, abs=5e-8)


def test_the_table_and_the_functions_cover_one_another():
    assert set(FUNCTIONS) == set(LabelMetrics(FIGURE_TREE)(FIGURE_A))
    assert {metric.key for metric in LABEL_METRICS} == set(FUNCTIONS)


@st.composite
def cases(draw: st.DrawFn) -> tuple[ClassHierarchy, int, np.ndarray, float]:
    hierarchy, level = draw(trees_and_levels(most_classes=9))
    return (
        hierarchy,
        level,
        draw(confusions(hierarchy.num_classes(level))),
        draw(st.sampled_from([0.0, 0.5, 2.0, 7.25])),
    )


@given(cases())
def test_severity_metrics_equal_their_equations(case: tuple[ClassHierarchy, int, np.ndarray, float]):
    hierarchy, level, S, penalty = case
    ranks = hierarchy.ranks(level).tolist()

    def outranks(i: int, j: int) -> bool:
        return ranks[i] > ranks[j]

    found = {key: float(value) for key, value in LabelMetrics(hierarchy, level, penalty)(S).items()}
    n = int(S.sum())
    expected = {
        "ascc": reference.classification_confidence(S, outranks, penalty),
        "asmc": reference.misclassification_confidence(S, outranks, penalty),
        "ecc": reference.classification_confidence(S, outranks, 0.0),
        "emc": reference.misclassification_confidence(S, outranks, 0.0),
        "risk": reference.risk(S, outranks, penalty),
        "severe_errors": reference.severe(S, outranks),
        "missed_rate": reference.severe(S, outranks) / n,
        "false_alarm_rate": reference.false_alarms(S, outranks) / n,
    }
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-12), key
    true, predicted = labels_of(S)
    under = reference.mean_distance(S, outranks)
    over = reference.mean_distance(S, lambda t, r: outranks(r, t))
    assert metrics.missed_distance(true, predicted, hierarchy, level) == pytest.approx(under, nan_ok=True)
    assert metrics.false_alarm_distance(true, predicted, hierarchy, level) == pytest.approx(over, nan_ok=True)


@given(cases())
def test_functions_on_labels_equal_the_table_on_counts(case: tuple[ClassHierarchy, int, np.ndarray, float]):
    hierarchy, level, S, _ = case
    true, predicted = labels_of(S)
    names = hierarchy.names(level)
    as_names = [names[t] for t in true], [names[r] for r in predicted]
    for key, value in LabelMetrics(hierarchy, level)(S).items():
        assert FUNCTIONS[key](true, predicted, hierarchy, level) == pytest.approx(float(value), nan_ok=True)
        assert FUNCTIONS[key](*as_names, hierarchy, level) == pytest.approx(float(value), nan_ok=True)


@given(cases(), st.data())
def test_leading_axes_are_scored_one_by_one(case: tuple[ClassHierarchy, int, np.ndarray, float], data: st.DataObject):
    hierarchy, level, S, penalty = case
    others = [S, data.draw(confusions(hierarchy.num_classes(level))), np.diag(np.ones(len(S), dtype=int))]
    score = LabelMetrics(hierarchy, level, penalty)
    together = score(np.array([others, others[::-1]]))
    for i, row in enumerate([others, others[::-1]]):
        for j, single in enumerate(row):
            for key, value in score(single).items():
                assert together[key][i, j] == pytest.approx(float(value), nan_ok=True, rel=1e-12)


def test_no_errors():
    perfect = ["Benign", "Malignant"], ["Benign", "Malignant"], FIGURE_TREE
    assert metrics.asmc(*perfect) == math.inf
    assert metrics.emc(*perfect) == math.inf
    assert metrics.ascc(*perfect) == 1.0
    assert metrics.risk(*perfect) == 0.0
    assert metrics.severe_errors(*perfect) == 0
    assert math.isnan(metrics.missed_distance(*perfect))


def test_group_recall():
    hierarchy = ClassHierarchy.load("colon")
    true = ["TA", "TVA", "TSA", "HP", "TA"]
    predicted = ["TVA", "TVA", "HP", "TA", "IP"]
    assert metrics.group_recall(true, predicted, hierarchy, "Adenoma") == 0.5
    assert metrics.group_recall(true, predicted, hierarchy, "Serrated") == 0.0
    assert math.isnan(metrics.group_recall(true, predicted, hierarchy, "Benign"))


def test_group_recall_needs_labels_of_one_length():
    with pytest.raises(ParameterError, match="equally long, found 2 and 1"):
        metrics.group_recall(["TA", "TA"], ["TA"], ClassHierarchy.load("colon"), "Adenoma")
