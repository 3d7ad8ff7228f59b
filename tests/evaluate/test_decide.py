"""Decision rules: by hand, against loops, and by what they claim to optimize."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pams_mil.errors import ParameterError, PredictionsError
from pams_mil.evaluate.decisions.decide import (
    DecisionRule,
    decide,
    least_risk,
    most_ascc,
    most_probable,
    redecide,
)
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.severity import lca_cost, metric_weight

THREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])
BRACS = ClassHierarchy.load("bracs")
tables = st.tuples(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 20))


def random_table(seed, classes, rows):
    return np.random.default_rng(seed).dirichlet(np.full(classes, 0.5), size=rows)


def loop_risk(p, cost):
    decisions = []
    for row in p:
        risks = [sum(row[t] * cost[t][r] for t in range(len(row))) for r in range(len(row))]
        decisions.append(min(range(len(row)), key=lambda r: risks[r]))
    return decisions


@settings(max_examples=40)
@given(tables)
def test_least_risk_equals_loops(table):
    p = random_table(*table)
    rng = np.random.default_rng(table[0] + 1)
    cost = rng.random((p.shape[1],) * 2) * (1 - np.eye(p.shape[1]))
    assert least_risk(p, cost).tolist() == loop_risk(p, cost)


@settings(max_examples=40)
@given(tables)
def test_known_costs(table):
    """0/1 cost is the most probable class, the absolute distance the median."""
    p = random_table(*table)
    count = p.shape[1]
    assert (least_risk(p, 1 - np.eye(count)) == most_probable(p)).all()
    index = np.arange(count)
    median = (p.cumsum(1) < 0.5).sum(1)
    assert (least_risk(p, np.abs(index[:, None] - index)) == median).all()


@settings(max_examples=40)
@given(tables)
def test_ascc_rule_has_the_highest_expected_ascc(table):
    p = random_table(*table)
    hierarchy = ClassHierarchy.flat([f"c{index}" for index in range(p.shape[1])])
    W = metric_weight(hierarchy)
    chosen = decide(p, hierarchy, rule="ascc")
    for row, decision in zip(p, chosen, strict=True):
        expected = [sum(row[t] / W[t, r] for t in range(len(row))) for r in range(len(row))]
        assert expected[decision] == pytest.approx(max(expected))


def test_rows_are_true_classes():
    """An even bet between the extremes is decided for the urgent side; a transposed cost would not."""
    p = [[0.5, 0.0, 0.5]]
    W = metric_weight(THREE)
    assert least_risk(p, W - 1).tolist() == [2]
    assert most_ascc(p, W).tolist() == [2]
    assert least_risk(p, (W - 1).T).tolist() == [0]
    assert most_ascc(p, W.T).tolist() == [0]


def test_severity_rules_miss_less():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(7), size=4000)
    truth = (p.cumsum(1) < rng.random((4000, 1))).sum(1)  # drawn from p: calibrated by construction
    W, rules = metric_weight(BRACS), ("argmax", "risk", "ascc", "kappa=1")
    ascc = {rule: (1 / W[truth, decide(p, BRACS, rule=rule)]).mean() for rule in rules}
    accuracy = {rule: (truth == decide(p, BRACS, rule=rule)).mean() for rule in rules}
    cost = {rule: (W[truth, decide(p, BRACS, rule=rule)] - 1).mean() for rule in rules}
    assert max(ascc, key=ascc.get) == "ascc"
    assert max(accuracy, key=accuracy.get) == "argmax"
    assert min(cost, key=cost.get) == "risk"


def test_named_costs():
    p = random_table(0, 7, 50)
    assert (decide(p, BRACS, rule="risk", cost="lca") == least_risk(p, lca_cost(BRACS))).all()
    assert (decide(p, BRACS, rule="risk", penalty=5) == least_risk(p, metric_weight(BRACS, penalty=5) - 1)).all()
    coarse = np.stack([p[:, :3].sum(1), p[:, 3:5].sum(1), p[:, 5:].sum(1)], axis=1)
    assert decide(coarse, BRACS, 0, rule="ascc").max() <= 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decide([[0.5, 0.5]], THREE), "probabilities must have 3 columns, one per class, found 2"),
        (lambda: decide([[0.2, 0.3, 0.5]], THREE, rule="best"), "A decision must be argmax, ascc, risk, or kappa=K"),
        (lambda: decide([[0.2, 0.3, 0.5]], THREE, rule="risk", cost="tree"), "cost must be 'severity', 'lca' or"),
        (lambda: most_probable([[0.5, 0.6]]), "row 0 is [0.5, 0.6]"),
        (lambda: most_probable([[0.5, 0.5], [np.nan, 1.0]]), "row 1 is [nan, 1.0]"),
        (lambda: most_probable([0.5, 0.5]), "found shape (2,)"),
        (lambda: least_risk([[0.5, 0.5]], [[1, 1], [1, 1]]), "cost must be 0 on its diagonal"),
        (lambda: least_risk([[0.5, 0.5]], [[0, -1], [1, 0]]), "finite numbers of at least 0"),
        (lambda: least_risk([[0.5, 0.5]], [[0, 1, 1], [1, 0, 1], [1, 1, 0]]), "cost must be a 2 x 2 matrix"),
        (lambda: most_ascc([[0.5, 0.5]], [[1, 0], [1, 1]]), "weight must hold numbers of at least 1, found 0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ParameterError, match=re.escape(message)):
        call()


def test_predictions_are_decided_anew():
    p = np.asarray([[0.4, 0.25, 0.35], [0.9, 0.05, 0.05]])
    before = Predictions(
        name="p", hierarchy=THREE, slide_ids=("a", "b"), target=np.array([2, 0]), predicted=np.array([0, 0]),
        probabilities=p,
    )  # fmt: skip
    after = redecide(before, rule="ascc")
    assert after.predicted.tolist() == [2, 0]
    assert before.predicted.tolist() == [0, 0]
    assert after.probabilities is p
    with pytest.raises(PredictionsError, match="has no probabilities"):
        redecide(replace(before, probabilities=None))


def test_notes_name_the_rule_that_was_applied_last(tmp_path):
    p = np.asarray([[0.4, 0.25, 0.35], [0.9, 0.05, 0.05]])
    first = redecide(Predictions("p", THREE, ("a", "b"), np.array([2, 0]), p.argmax(1), p), "kappa=3")
    write_predictions(tmp_path / "p.csv", first)
    read = read_predictions(tmp_path / "p.csv", first.hierarchy)
    assert "Decided by kappa=3." in read.notes
    again = redecide(read, "argmax")
    assert again.decided_by == "argmax"
    assert not any("Decided by" in note for note in again.notes)


def test_decisions_need_no_torch():
    code = "import sys, pams_mil.evaluate.decisions.decide; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kappa", [0.0, 2 / 3, np.float64(1.1), 3, 1e22, math.inf])
def test_a_rule_is_written_so_that_reading_it_gives_the_same_rule(kappa):
    rule = DecisionRule("kappa", kappa)
    assert DecisionRule.parse(str(rule)) == rule
