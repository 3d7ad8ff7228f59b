"""The decision path: by hand, against exact fractions, and by its properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.decision_path import call, corners
from tests.strategies import trees_and_levels

from pams_mil.errors import ParameterError
from pams_mil.evaluate import decision_path
from pams_mil.evaluate.decisions.decide import least_risk
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.severity import lca_cost, metric_weight

THREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])
BRACS = ClassHierarchy.load("bracs")


@st.composite
def cases(draw: st.DrawFn, *, most_rows: int = 6):
    """A hierarchy with ties, a level, probabilities that are often equal or 0, and the costs that go with them."""
    tree, level = draw(trees_and_levels(most_levels=3, most_classes=8))
    size = tree.num_classes(level)
    rows = draw(st.integers(1, most_rows))
    coarse = draw(st.booleans())
    if coarse:  # shares of 64: every sum is exact, equal probabilities are common
        weights = draw(
            st.lists(st.lists(st.integers(0, 3), min_size=size, max_size=size), min_size=rows, max_size=rows)
        )
        p = np.asarray(weights, dtype=float)
        p[p.sum(1) == 0, 0] = 1
        p = np.floor(64 * p / p.sum(1, keepdims=True))
        p[:, 0] += 64 - p.sum(1)
        p /= 64
    else:
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        p = rng.dirichlet(np.full(size, draw(st.sampled_from([0.05, 0.5, 5.0]))), rows)
    kind = draw(st.sampled_from(["unit", "severity", "lca"]))
    cost = {
        "unit": 1.0 - np.eye(size),
        "severity": metric_weight(tree, level) - 1,
        "lca": lca_cost(tree, level),
    }[kind]
    return tree, level, p, None if kind == "unit" else cost, cost, coarse


def close_to_a_corner(kappa, found):
    return any(abs(float(corner) - kappa) <= 1e-9 * float(corner) + 1e-12 for corner, _ in found)


@settings(max_examples=150)
@given(cases(), st.lists(st.floats(0, 60), min_size=1, max_size=4))
def test_calls_equal_exact_fractions(case, kappas):
    tree, level, p, cost, full, coarse = case
    path = decision_path(p, tree, level=level, cost=cost)
    ranks = tree.ranks(level).tolist()
    for row, shares in enumerate(p.tolist()):
        found = corners(shares, ranks, full.tolist())
        for kappa in (0.0, 1.0, *kappas):
            if kappa in (0.0, 1.0) and cost is not None and not coarse:
                continue  # sums of rounded products may tie where exact ones do not
            if kappa in (0.0, 1.0) or not close_to_a_corner(kappa, found):
                assert path.calls(kappa)[row] == call(shares, ranks, full.tolist(), kappa)


@settings(max_examples=100)
@given(cases())
def test_corners_equal_exact_fractions(case):
    tree, level, p, cost, full, coarse = case
    path = decision_path(p, tree, level=level, cost=cost)
    for row, shares in enumerate(p.tolist()):
        found = corners(shares, tree.ranks(level).tolist(), full.tolist())
        rises = [rise for rise in path.rises(row) if math.isfinite(rise[0])]
        if coarse and cost is None:
            assert [c for _, c in rises] == [c for _, c in found]
            assert [k for k, _ in rises] == pytest.approx([float(k) for k, _ in found], rel=1e-12)
        else:  # corners closer together than rounding may merge
            for kappa, called in found:
                assert called >= path.calls(float(kappa) * (1 - 1e-9))[row]
                assert called <= path.calls(float(kappa) * (1 + 1e-9) + 1e-15)[row]


@settings(max_examples=100)
@given(cases())
def test_the_call_never_falls_and_ends_at_the_most_urgent_class(case):
    tree, level, p, cost, _, _ = case
    path = decision_path(p, tree, level=level, cost=cost)
    kappas = np.unique(path.reach[~np.isnan(path.reach)])
    calls = np.stack([path.calls(kappa) for kappa in kappas])
    assert (np.diff(calls, axis=0) >= 0).all()
    assert ((path.reach[:, 1:] >= path.reach[:, :-1]) | np.isnan(path.reach[:, 1:])).all()
    assert (path.reach[:, 0] == 0).all()
    ranks = tree.ranks(level)
    assert (ranks[path.calls(math.inf)] == ranks.max()).all()


@settings(max_examples=100)
@given(cases(), st.integers(0, 2**32 - 1))
def test_one_threshold_says_when_a_slide_is_missed_and_when_it_is_a_false_alarm(case, seed):
    tree, level, p, cost, _, _ = case
    path = decision_path(p, tree, level=level, cost=cost)
    target = np.random.default_rng(seed).integers(0, p.shape[1], len(p))
    ranks = tree.ranks(level)
    enough, too_much = path.kappa_to_reach(target), path.kappa_to_exceed(target)
    for kappa in (*np.unique(path.reach[~np.isnan(path.reach)]), 0.3, 1.0, 2.7, math.inf):
        called = ranks[path.calls(kappa)]
        assert ((kappa < enough) == (called < ranks[target])).all()
        assert ((kappa >= too_much) == (called > ranks[target])).all()


def test_ten_thousand_cases_equal_brute_force():
    """Probabilities in eighths, so that every second slide ties somewhere; κ on the ties and between them."""
    rng = np.random.default_rng(0)
    compared = 0
    for size in (2, 3, 4, 5, 7):
        names = [str(c) for c in range(size)]
        tree = ClassHierarchy.flat(names if size < 4 else [names[0], names[1:3], *names[3:]])
        p = rng.multinomial(8, np.full(size, 1 / size), 500) / 8
        path = decision_path(p, tree)
        weights = np.where(tree.outranks(), 1.0, 0.0), np.where(tree.outranks(), 0.0, 1 - np.eye(size))
        for kappa in (0.0, 0.25, 1.0, 1.5, 2.0, 7.0, 1e6):
            cost = p @ weights[1] + kappa * (p @ weights[0])  # exact: eighths and quarters
            assert (path.calls(kappa) == size - 1 - cost[:, ::-1].argmin(1)).all()
            compared += len(p)
    assert compared >= 10_000


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
def test_one_is_argmax_even_where_probabilities_differ_in_the_last_bit(seed, size):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(size, 0.7), 50)
    top = p.max(1, keepdims=True)
    nudged = np.nextafter(top, rng.choice([0.0, 1.0], p.shape))
    p = np.where(
        rng.random(p.shape) < 0.5,
        np.where(rng.random(p.shape) < 0.5, nudged, top),
        p * 10.0 ** rng.integers(-18, 1, p.shape),
    )
    p /= p.sum(1, keepdims=True)
    path = decision_path(p, ClassHierarchy.flat([str(c) for c in range(size)]))
    assert (path.calls(1.0) == size - 1 - p[:, ::-1].argmax(1)).all()


def test_by_hand_with_tied_classes():
    """FEA and ADH tie: whichever is likelier is called, and neither misses the other."""
    p = [[0, 0, 0.2, 0.3, 0.4, 0.1, 0.0]]
    path = decision_path(p, BRACS)
    names = BRACS.names()
    # UDH from the start (nothing lies below it); ADH from 1 + (.2 - .4) / (.3 + .4); FEA never; DCIS from 1 + .3 / .1
    assert [(round(k, 12), names[c]) for k, c in path.rises(0)] == [
        (0, "UDH"), (round(1 - 2 / 7, 12), "ADH"), (4, "DCIS"), (math.inf, "IC"),
    ]  # fmt: skip
    target = [BRACS.index("FEA")]
    assert path.kappa_to_reach(target)[0] == pytest.approx(1 - 2 / 7)
    assert path.kappa_to_exceed(target)[0] == pytest.approx(4)
    assert np.isnan(path.kappa_to_exceed([6])).all()


def test_absolute_distance_gives_quantiles():
    p = np.random.default_rng(3).dirichlet(np.ones(3), 200)
    path = decision_path(p, THREE, cost=np.abs(np.subtract.outer(range(3), range(3))))
    for kappa in (0.5, 1.0, 3.0):
        quantile = (p.cumsum(1) <= kappa / (1 + kappa)).sum(1)
        assert (path.calls(kappa) == quantile).all()


def test_one_is_the_rule_of_least_risk():
    p = np.random.default_rng(4).dirichlet(np.ones(7), 500)
    cost = metric_weight(BRACS) - 1
    assert (decision_path(p, BRACS, cost=cost).calls(1) == least_risk(p, cost)).all()


def test_one_slide_does_not_depend_on_the_others():
    p = np.random.default_rng(5).dirichlet(np.ones(7), 300)
    together = decision_path(p, BRACS).reach
    alone = np.concatenate([decision_path(row[None], BRACS).reach for row in p])
    assert np.array_equal(together, alone, equal_nan=True)
    assert np.array_equal(decision_path(p, BRACS).take(np.arange(3)).reach, together[:3], equal_nan=True)


def test_a_single_class_and_classes_that_all_tie():
    group = ClassHierarchy(name="x", levels=(THREE.levels[0].__class__(("all",), (0,), (0,)), THREE.levels[0]))
    assert decision_path([[1.0]], group, level=0).calls(3).tolist() == [0]
    tied = ClassHierarchy.flat([["a", "b"]])
    path = decision_path([[0.4, 0.6], [0.6, 0.4]], tied)
    assert path.calls(0).tolist() == path.calls(math.inf).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("p", "options", "words"),
    [
        ([[0.5, 0.5]], {}, "must have 3 columns, one per class, found 2"),
        ([[0.5, 0.5, 0.5]], {}, "sum to 1; row 0"),
        ([[np.nan, 0.5, 0.5]], {}, "row 0"),
        ([[1, 0, 0]], {"cost": [[0, 1, 1], [1, 0, 1], [1, 2, 0]]}, "Missing 'malignant' costs 1 .* but 2"),
        ([[1, 0, 0]], {"cost": [[1, 1, 1]] * 3}, "0 on its diagonal"),
        ([[1, 0, 0]], {"level": 5}, "level must be"),
    ],
)  # fmt: skip
def test_what_is_refused(p, options, words):
    with pytest.raises(ParameterError, match=words):
        decision_path(p, THREE, **options)


def test_wrong_questions_to_a_path():
    path = decision_path([[1, 0, 0]], THREE)
    for kappa in (-1, math.nan):
        with pytest.raises(ParameterError, match="kappa must be a number from 0 to inf"):
            path.calls(kappa)
    with pytest.raises(ParameterError, match="one per slide"):
        path.kappa_to_reach([0, 1])
    with pytest.raises(ParameterError, match="from 0 to 2"):
        path.kappa_to_exceed([3])
