"""AsCC lies between two functions of accuracy and AsMC, for our definitions and in every printed row.

With x = 1 / (W - 1), the credit of a mistake is 1 / W = x / (1 + x), which is concave in x. So the mean credit of the
mistakes lies below x / (1 + x) at their mean x = AsMC, and above the chord between the ends of x.
"""

from __future__ import annotations

import csv
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tests.strategies import confusions, trees_and_levels

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import LabelMetrics
from pams_mil.severity import PENALTY

TABLES = Path(__file__).parents[1] / "data" / "paper_tables.csv"
with TABLES.open(newline="", encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


def bounds(acc: float, asmc: float, classes: int, penalty: float) -> tuple[float, float]:
    gravest = 1.0 / (classes - 1 + penalty)  # x of the longest missed urgency; x = 1 is the mildest mistake
    least_credit, most_credit = gravest / (1 + gravest), 0.5
    slope = (most_credit - least_credit) / (1 - gravest)
    chord = least_credit + (asmc - gravest) * slope
    return acc + (1 - acc) * chord, acc + (1 - acc) * asmc / (1 + asmc)


@st.composite
def cases(draw: st.DrawFn) -> tuple[ClassHierarchy, int, np.ndarray, float]:
    hierarchy, level = draw(trees_and_levels(most_classes=10))
    return (
        hierarchy,
        level,
        draw(confusions(hierarchy.num_classes(level), errors=True)),
        draw(st.sampled_from([0.5, 2.0, 5.0])),
    )


@given(cases())
def test_bound_on_random_confusions(case: tuple[ClassHierarchy, int, np.ndarray, float]):
    hierarchy, level, S, penalty = case
    found = LabelMetrics(hierarchy, level, penalty)(S)
    low, high = bounds(float(found["acc"]), float(found["asmc"]), hierarchy.num_classes(level), penalty)
    assert low - 1e-12 <= float(found["ascc"]) <= high + 1e-12


def test_the_bound_is_tight():
    hierarchy = ClassHierarchy.flat(list("abc"))
    one_kind = np.array([[5, 0, 0], [0, 5, 0], [0, 4, 1]])
    found = LabelMetrics(hierarchy)(one_kind)
    assert bounds(float(found["acc"]), float(found["asmc"]), 3, PENALTY)[1] == pytest.approx(float(found["ascc"]))
    both_ends = np.array([[5, 2, 0], [0, 5, 0], [3, 0, 1]])
    found = LabelMetrics(hierarchy)(both_ends)
    assert bounds(float(found["acc"]), float(found["asmc"]), 3, PENALTY)[0] == pytest.approx(float(found["ascc"]))


def test_all_57_rows_are_there():
    assert [sum(row["table"] == table for row in ROWS) for table in ("main", "cifar10")] == [52, 5]


@pytest.mark.parametrize("row", ROWS, ids=[" ".join((r["dataset"], r["model"], r["method"])) for r in ROWS])
def test_bound_on_the_printed_rows(row: dict[str, str]):
    """Printed numbers are rounded to 0.01 %, and means over runs; the bound is evaluated over that rounding."""
    acc, ascc, asmc = (float(row[key]) / 100 for key in ("acc", "ascc", "asmc"))
    step = 0.5e-4
    low, _ = bounds(acc - step, asmc - step, int(row["classes"]), PENALTY)
    _, high = bounds(acc + step, asmc + step, int(row["classes"]), PENALTY)
    assert low - step <= ascc <= high + step


def test_the_sum_of_accuracy_and_asmc_is_no_approximation():
    sums = [float(row["acc"]) + float(row["asmc"]) for row in ROWS]
    assert max(sums) > 140  # per cent, while AsCC never exceeds 100
