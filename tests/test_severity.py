"""The class-by-class matrices: their values by hand, and that they point in the right direction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from tests.reference.metrics import wheel
from tests.strategies import trees_and_levels

from pams_mil import ClassHierarchy
from pams_mil.errors import ParameterError
from pams_mil.severity import check_cost, lca_cost, loss_weight, metric_weight, symmetric_weight

COARSE = ClassHierarchy.flat(["Benign", "Atypical", "Malignant"])


def test_values_by_hand():
    assert loss_weight(COARSE).tolist() == [[1, 1, 1], [1.6, 1, 1], [3.2, 1.6, 1]]
    assert metric_weight(COARSE).tolist() == [[1, 2, 3], [4, 1, 2], [5, 4, 1]]
    fine = metric_weight(ClassHierarchy.load("bracs"))
    assert (fine[6, 0], fine[0, 6]) == (9, 7)


def test_the_row_of_the_most_urgent_of_seven():
    hierarchy = ClassHierarchy.flat(list("abcdefg"))
    product, power = loss_weight(hierarchy)[6], loss_weight(hierarchy, distance="power")[6]
    assert product == pytest.approx([9.6, 8, 6.4, 4.8, 3.2, 1.6, 1])
    assert power == pytest.approx([16.777216, 10.48576, 6.5536, 4.096, 2.56, 1.6, 1])


@given(trees_and_levels())
def test_missing_urgency_weighs_more_than_the_mirror_mistake(case: tuple[ClassHierarchy, int]):
    hierarchy, level = case
    for matrix in (
        loss_weight(hierarchy, level),
        loss_weight(hierarchy, level, distance="power"),
        metric_weight(hierarchy, level),
    ):
        outranks = hierarchy.outranks(level)
        for i, j in np.argwhere(outranks).tolist():
            assert matrix[i, j] > matrix[j, i]
        tied = ~outranks & ~outranks.T
        assert (matrix[tied] == matrix.T[tied]).all()


@given(trees_and_levels())
def test_the_literal_orientation_is_the_transpose(case: tuple[ClassHierarchy, int]):
    hierarchy, level = case
    assert (loss_weight(hierarchy, level, orientation="literal") == loss_weight(hierarchy, level).T).all()


@given(trees_and_levels())
def test_wheel_equals_its_equation(case: tuple[ClassHierarchy, int]):
    hierarchy, level = case
    ranks = hierarchy.ranks(level).tolist()
    W, symmetric = metric_weight(hierarchy, level, penalty=3.5), symmetric_weight(hierarchy, level)
    for t in range(len(ranks)):
        for r in range(len(ranks)):
            assert W[t, r] == wheel(t, r, lambda i, j: ranks[i] > ranks[j], 3.5)
            assert symmetric[t, r] == 1 + abs(t - r)


@given(trees_and_levels())
def test_ties_only_switch_off_the_penalty(case: tuple[ClassHierarchy, int]):
    hierarchy, level = case
    same = hierarchy.ranks(level)[:, None] == hierarchy.ranks(level)[None, :]
    assert (metric_weight(hierarchy, level)[same] == symmetric_weight(hierarchy, level)[same]).all()
    assert (loss_weight(hierarchy, level)[same] == 1).all()


@given(trees_and_levels())
def test_lca_cost_is_an_ultrametric_from_0_to_1(case: tuple[ClassHierarchy, int]):
    hierarchy, level = case
    cost = lca_cost(hierarchy, level)
    assert (np.diagonal(cost) == 0).all()
    assert (cost == cost.T).all()
    assert cost.max() <= 1
    assert (cost[:, None, :] <= np.maximum(cost[:, :, None], cost[None, :, :]) + 1e-12).all()


@pytest.mark.parametrize("alpha", [1.0, 0.0, -2, float("inf"), float("nan")])
def test_alpha_out_of_range(alpha: float):
    with pytest.raises(ParameterError, match="alpha must be a finite number above 1"):
        loss_weight(COARSE, alpha=alpha)


@pytest.mark.parametrize("penalty", [-1, float("inf"), float("nan")])
def test_penalty_out_of_range(penalty: float):
    with pytest.raises(ParameterError, match="penalty must be a finite number of at least 0"):
        metric_weight(COARSE, penalty=penalty)


def test_unknown_options():
    with pytest.raises(ParameterError, match="'auto', 'product', 'power' or 'rank', found 'linear'"):
        loss_weight(COARSE, distance="linear")
    with pytest.raises(ParameterError, match="'intended' or 'literal', found 'pred'"):
        loss_weight(COARSE, orientation="pred")


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ([[0, 1]], r"3 x 3 matrix \[true, predicted\], found shape \(1, 2\)"),
        (np.full((3, 3), np.nan), "finite numbers"),
        (-np.ones((3, 3)), "at least 0"),
        (np.ones((3, 3)), "0 on its diagonal"),
    ],
)
def test_cost_matrices_are_checked(cost: object, message: str):
    with pytest.raises(ParameterError, match=message):
        check_cost(cost, 3, zero_diagonal=True)


def test_a_good_cost_matrix_is_kept():
    assert check_cost([[0, 1], [5, 0]], 2, zero_diagonal=True).tolist() == [[0, 1], [5, 0]]
