"""Conclusions under other assumptions of harm."""

from __future__ import annotations

import numpy as np
import pytest
from tests.reference.figure_1 import figure_1_models

from pams_mil import ClassHierarchy
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.experiments.paper import by_penalty, by_swap
from pams_mil.metrics import ascc


def test_the_figures_ranking_flips_with_the_penalty():
    """Without a penalty A leads by a hair (ECC .935 against .934); with the paper's P = 2 B leads."""
    without, paper = by_penalty(figure_1_models(), [0.0, 2.0])
    assert without.ranks.tolist() == [1, 2]
    assert paper.ranks.tolist() == [2, 1]
    assert paper.scores == pytest.approx([0.9209167, 0.92725], abs=1e-7)


def test_swapping_two_classes_equals_scoring_with_the_swapped_order():
    models = figure_1_models()
    found = {assumption.name: assumption.scores for assumption in by_swap(models)}
    assert list(found) == ["as given", "Benign ↔ Atypical", "Atypical ↔ Malignant"]
    swapped = ClassHierarchy.flat(["Atypical", "Benign", "Malignant"])
    names = np.array(models[0].hierarchy.names())
    expected = [ascc(names[m.target].tolist(), names[m.predicted].tolist(), swapped) for m in models]
    assert found["Benign ↔ Atypical"] == pytest.approx(expected)
    assert found["as given"] == pytest.approx([0.9209167, 0.92725], abs=1e-7)


def test_ties_stay_where_they_are():
    hierarchy = ClassHierarchy.flat(["a", ["b", "c"]])
    model = Predictions("m", hierarchy, ["1", "2"], np.array([2, 0]), np.array([1, 2]))
    inside = {assumption.name: assumption.scores[0] for assumption in by_swap([model])}
    assert inside["as given"] == pytest.approx((1 / 2 + 1 / 3) / 2)  # c as b: tied; a as c: distance 2
    assert inside["b ↔ c"] == pytest.approx((1 / 2 + 1 / 2) / 2)  # a and c are neighbors now
    assert inside["a ↔ b"] == pytest.approx((1 / 5 + 1 / 2) / 2)  # the order is b, then a and c tied


def test_equal_scores_share_a_rank():
    first = figure_1_models()[0]
    assert by_penalty([first, first], [1.0])[0].ranks.tolist() == [1, 1]
