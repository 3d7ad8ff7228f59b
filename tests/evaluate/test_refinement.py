"""Refined NLL: the best of a grid, blind to temperature and lean, and finite for every model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import calibration as reference

from pams_mil.errors import ParameterError
from pams_mil.evaluate.decisions.probability_calibration import refined_nll
from pams_mil.hierarchy import ClassHierarchy

FOUR = ClassHierarchy.flat(["a", ["b", "c"], "d"])
RANKS = [0.0, 1.0, 1.0, 2.0]


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@st.composite
def slides(draw):
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    n = draw(st.integers(12, 40))
    true = random.integers(0, 4, n)
    z = random.normal(size=(n, 4)) + draw(st.floats(0.2, 1.5)) * np.eye(4)[true]
    return true, z


@given(slides())
@settings(max_examples=15, deadline=None)
def test_no_temperature_and_slope_of_a_grid_are_better(case):
    true, z = case
    p = softmax(z)
    found = refined_nll(true, p, FOUR, prior_slides=0.0)
    grid = [
        reference.nll(p.tolist(), true.tolist(), t, [slope * rank for rank in RANKS])
        for t in (0.2, 0.5, 0.8, 1.0, 1.5, 3.0, 10.0)
        for slope in (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
    ]
    assert found <= min(grid) + 1e-9
    assert min(grid) - found < 0.35


@given(slides(), st.floats(0.3, 3), st.floats(-3, 3))
@settings(max_examples=40)
def test_is_blind_to_temperature_and_lean(case, temperature, lean):
    true, z = case
    moved = softmax(z / temperature + lean * np.asarray(RANKS))
    one, two = (refined_nll(true, p, FOUR, prior_slides=0.0) for p in (softmax(z), moved))
    assert two == pytest.approx(one, abs=1e-6)


def test_a_little_prior_changes_little_and_keeps_perfect_models_finite():
    random = np.random.default_rng(0)
    true = random.integers(0, 4, 400)
    p = softmax(random.normal(size=(400, 4)) + np.eye(4)[true])
    assert refined_nll(true, p, FOUR) == pytest.approx(refined_nll(true, p, FOUR, prior_slides=0.0), abs=1e-4)
    for sure in (2.0, 20.0, 30.0, 50.0, 1000.0):
        value = refined_nll(true, softmax(sure * np.eye(4)[true]), FOUR)
        assert 0 <= value < 0.05
    assert math.isfinite(refined_nll(true, softmax(-5.0 * np.eye(4)[true]), FOUR))


def test_worse_than_nothing_is_nothing():
    """Always wrong would be informative upside down; a temperature cannot be negative, so it is taken for no news."""
    two = ClassHierarchy.flat("ab")
    true = np.array([0, 1] * 10)
    wrong = np.where(true[:, None] == [0, 1], 0.1, 0.9)
    assert refined_nll(true, wrong, two) == pytest.approx(math.log(2), abs=1e-3)


def test_one_slide_and_bad_input():
    assert math.isfinite(refined_nll([0], [[0.25] * 4], FOUR))
    with pytest.raises(ParameterError, match="as many labels as rows"):
        refined_nll([0, 1], [[0.25] * 4], FOUR)
