from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pams_mil.errors import ParameterError
from pams_mil.evaluate.decisions import worklist


@st.composite
def cases(draw):
    classes = draw(st.integers(2, 6))
    ranks = sorted(draw(st.lists(st.integers(0, 3), min_size=classes, max_size=classes)))
    rows = draw(st.lists(st.lists(st.floats(0, 1), min_size=classes, max_size=classes), min_size=1, max_size=5))
    p = np.array(rows) + 1e-3
    return p / p.sum(1, keepdims=True), ranks


@given(cases())
def test_the_numbers_are_those_of_the_loop(case):
    p, ranks = case
    severity, reached, share = (
        worklist.expected_severity(p, np.array(ranks)),
        worklist.at_least(p, np.array(ranks)),
        worklist.uncertainty(p),
    )
    for row, values in enumerate(p.tolist()):
        assert severity[row] == pytest.approx(sum(v * r for v, r in zip(values, ranks, strict=True)))
        for position, bound in enumerate(sorted(set(ranks))[1:]):
            assert reached[row, position] == pytest.approx(
                sum(v for v, r in zip(values, ranks, strict=True) if r >= bound)
            )
        assert share[row] == pytest.approx(-sum(v * math.log(v) for v in values) / math.log(len(values)), abs=1e-12)
    assert (np.diff(reached, axis=1) <= 1e-12).all()


def test_more_urgent_probability_never_lowers_the_severity():
    low, high = worklist.expected_severity([[0.5, 0.3, 0.2], [0.4, 0.3, 0.3]], np.arange(3))
    assert high > low


@pytest.mark.parametrize(
    "call",
    [
        lambda: worklist.expected_severity([[0.5, 0.5]], np.arange(3)),
        lambda: worklist.at_least([[float("nan"), 1.0]], np.arange(2)),
        lambda: worklist.agreement([0, 1], [0, 1]),
    ],
)
def test_what_does_not_fit_is_refused(call):
    with pytest.raises(ParameterError):
        call()
