"""Scores of one model: every level, intervals, absent classes, strict JSON, and the list of severe errors."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from tests.strategies import predictions, random_predictions

from pams_mil import ClassHierarchy, metrics
from pams_mil.atomic import strict_json
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.scores import score, severe_errors
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.probability import OrderedProbabilities

FIGURE_TREE = ClassHierarchy.flat(["Benign", "Atypical", "Malignant"])
REQUIRED = {
    "acc", "balanced_acc", "auc", "ascc", "asmc", "ecc", "emc", "risk", "severe_errors", "missed_rate",
    "false_alarm_rate", "n", "errors", "ci",
}  # fmt: skip


def model(true: list[int], predicted: list[int], hierarchy: ClassHierarchy = FIGURE_TREE) -> Predictions:
    return Predictions("m", hierarchy, [f"s{n}" for n in range(len(true))], np.array(true), np.array(predicted))


@settings(max_examples=25)
@given(predictions(most_rows=30))
def test_every_level_is_the_lifted_model(model: Predictions):
    hierarchy = model.hierarchy
    for level, found in enumerate(score(model, resamples=0)):
        assert found.name == hierarchy.level_names[level]
        true, predicted = hierarchy.lift(model.target, level), hierarchy.lift(model.predicted, level)
        assert found.values["ascc"] == pytest.approx(metrics.ascc(true, predicted, hierarchy, level))
        assert found.values["risk"] == pytest.approx(metrics.risk(true, predicted, hierarchy, level))
        summed = np.zeros((len(model), hierarchy.num_classes(level)))
        for leaf, group in enumerate(hierarchy.groups(level)):
            summed[:, group] += model.probabilities[:, leaf]
        assert found.values["auc"] == pytest.approx(
            metrics.macro_auc(true, OrderedProbabilities(summed), hierarchy, level), nan_ok=True
        )
        assert found.n == len(model)
        assert found.errors == np.sum(true != predicted)
        assert found.intervals == {}


def test_intervals_surround_the_value_and_follow_the_seed():
    model = random_predictions(ClassHierarchy.load("bracs"), 200, patients=80, rng=np.random.default_rng(1))
    found, again, other = (score(model, seed=seed, resamples=300)[-1] for seed in (0, 0, 1))
    assert set(found.intervals) <= set(METRICS)
    for metric, (low, high) in found.intervals.items():
        assert low <= found.values[metric] <= high
        assert high - low > 0
    assert found.intervals == again.intervals
    assert found.intervals != other.intervals


def test_patients_widen_the_interval():
    rng = np.random.default_rng(2)
    target, predicted = np.repeat(rng.integers(0, 3, 40), 10), np.repeat(rng.integers(0, 3, 40), 10)
    slides = [f"s{n}" for n in range(400)]
    alone = Predictions("m", FIGURE_TREE, slides, target, predicted)
    grouped = Predictions("m", FIGURE_TREE, slides, target, predicted, None, [f"p{n // 10}" for n in range(400)])

    def width(model: Predictions) -> float:
        low, high = score(model, resamples=500)[0].intervals["acc"]
        return high - low

    assert width(grouped) > 2.5 * width(alone)
    assert (alone.num_patients, grouped.num_patients) == (400, 40)


def test_no_errors_is_infinite_in_python_and_null_in_json():
    (found,) = score(model([0, 1, 2], [0, 1, 2]), resamples=50)
    assert found.values["asmc"] == math.inf
    read = json.loads(strict_json(found.to_json()))
    assert read["asmc"] is None
    assert read["no_errors"] is True
    assert read["risk"] == 0
    assert read["ci"]["asmc"] == [None, None]
    (wrong,) = score(model([0, 1, 2], [0, 1, 1]), resamples=50)
    assert json.loads(strict_json(wrong.to_json()))["no_errors"] is False


@settings(max_examples=25)
@given(predictions(most_rows=12))
def test_json_is_strict_and_complete(model: Predictions):
    for found in score(model, resamples=20):
        text = strict_json(found.to_json())
        read = json.loads(text, parse_constant=pytest.fail)
        assert set(read) >= REQUIRED
        assert set(read["ci"]) <= set(METRICS)
        assert np.array(read["confusion"]).sum() == len(model)


def test_without_probabilities_auc_is_null_and_nothing_breaks():
    read = json.loads(strict_json(score(model([0, 1, 2], [0, 2, 1]), resamples=20)[0].to_json()))
    assert read["auc"] is None
    assert read["calibration_error"] is None
    assert "auc" not in read["ci"]


def test_absent_classes_are_named_and_left_out_of_auc():
    probabilities = np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.2, 0.7, 0.1]])
    m = Predictions("m", FIGURE_TREE, ["a", "b", "c"], np.array([0, 0, 1]), np.array([0, 1, 1]), probabilities)
    (found,) = score(m, resamples=20)
    assert found.classes_without_auc == ("Malignant",)
    assert found.values["auc"] == 1.0
    assert found.recall.tolist()[:2] == [0.5, 1.0]
    assert math.isnan(found.recall[2])


def test_a_single_class_cohort():
    (found,) = score(Predictions("m", FIGURE_TREE, ["a"], np.array([2]), np.array([0]), np.array([[0.6, 0.3, 0.1]])))
    assert found.classes_without_auc == ("Benign", "Atypical", "Malignant")
    assert math.isnan(found.values["auc"])
    assert found.values["ascc"] == pytest.approx(1 / 5)
    assert found.missed_distance == 2


def test_severe_errors_are_sorted_by_gravity():
    true, predicted = [1, 2, 0, 2, 2, 1], [0, 0, 2, 1, 2, 0]
    found = severe_errors(model(true, predicted))
    assert [(e.slide_id, e.true, e.predicted, e.gravity) for e in found] == [
        ("s1", "Malignant", "Benign", 5.0),
        ("s3", "Malignant", "Atypical", 4.0),
        ("s0", "Atypical", "Benign", 4.0),
        ("s5", "Atypical", "Benign", 4.0),
    ]
    assert found[0].patient_id == "s1"
    assert found[0].probability_of_true is None


def test_mistakes_between_tied_classes_are_not_severe():
    hierarchy = ClassHierarchy.load("bracs")
    swapped = model(
        [hierarchy.index("FEA"), hierarchy.index("ADH")], [hierarchy.index("ADH"), hierarchy.index("FEA")], hierarchy
    )
    assert severe_errors(swapped) == []
    assert score(swapped, resamples=0)[-1].values["severe_errors"] == 0
    assert score(swapped, resamples=0)[0].errors == 0  # both are Atypical


@settings(max_examples=25)
@given(predictions())
def test_the_list_has_as_many_rows_as_the_metric_counts(model: Predictions):
    found = severe_errors(model)
    assert len(found) == score(model, resamples=0)[-1].values["severe_errors"]
    gravity = [error.gravity for error in found]
    assert gravity == sorted(gravity, reverse=True)
