from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import reading_order as reference

from pams_mil.errors import ParameterError
from pams_mil.evaluate.decisions import worklist as order

PILES = st.lists(st.booleans(), min_size=1, max_size=40).filter(any)


@given(PILES, st.sampled_from([0.1, 0.2, 0.5, 1.0]))
def test_a_pile_is_read_as_in_the_loop(urgent, part):
    found = order.read_pile(urgent, part)
    assert (found.mean, found.last, found.first) == pytest.approx(reference.pile(urgent, part))


@pytest.mark.parametrize(("cases", "urgent"), [(5, 1), (6, 3), (7, 7)])
def test_the_pile_without_order_is_the_mean_over_all_orders(cases, urgent):
    piles = [[number in chosen for number in range(cases)] for chosen in itertools.combinations(range(cases), urgent)]
    for part in (0.2, 0.5):
        read = [order.read_pile(pile, part) for pile in piles]
        expected = order.unordered_pile(cases, urgent, part)
        for name in ("mean", "last", "first"):
            assert np.mean([getattr(one, name) for one in read]) == pytest.approx(getattr(expected, name))


SHARES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6).map(lambda x: (np.array(x) / sum(x)).tolist())


@given(SHARES, st.floats(0.0, 0.97))
def test_waits_follow_cobham_and_nobody_gains_on_average(called, utilization):
    waits = order.waits_by_call(called, utilization)
    np.testing.assert_allclose(waits, reference.cobham(called, utilization), rtol=1e-9)
    assert (np.diff(waits) <= 1e-12).all()  # the more urgent the call, the shorter the wait
    assert np.dot(called, waits) == pytest.approx(order.wait_in_arrival_order(utilization), rel=1e-9)


@given(st.integers(2, 5), st.floats(0.05, 0.95), st.randoms(use_true_random=False))
def test_perfect_calls_give_each_class_its_own_wait_and_useless_calls_the_same(classes, utilization, random):
    counts = np.array([random.randint(1, 20) for _ in range(classes)])
    ranks = np.arange(classes)
    perfect = order.waits_by_truth(np.diag(counts), ranks, utilization)
    np.testing.assert_allclose(perfect, order.waits_by_call(counts / counts.sum(), utilization))
    useless = order.waits_by_truth(np.outer(counts, counts), ranks, utilization)
    np.testing.assert_allclose(useless, order.wait_in_arrival_order(utilization))


def test_equal_ranks_share_a_priority():
    counts = np.array([[5, 0, 0], [0, 3, 2], [0, 1, 4]])
    together = order.waits_by_truth(counts, [0, 1, 1], 0.7)
    assert together[1] == pytest.approx(together[2])
    assert together[1] == pytest.approx(order.waits_by_call([5 / 15, 10 / 15], 0.7)[1])


def test_the_formula_is_what_a_simulated_reader_does():
    confusion, ranks, utilization = [[60, 8, 2], [5, 12, 3], [1, 2, 7]], [0, 1, 2], 0.8
    runs = [reference.simulate(confusion, ranks, utilization, 30_000, seed) for seed in range(6)]
    mean, spread = np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1) / np.sqrt(len(runs))
    expected = order.waits_by_truth(confusion, ranks, utilization)
    assert (np.abs(mean - expected) < 4 * spread + 0.02 * expected).all()
    assert expected[2] < expected[1] < expected[0]


def test_a_false_alarm_delays_others():
    calm, alarmed = np.array([[8, 0], [0, 2]]), np.array([[4, 4], [0, 2]])
    before, after = (order.waits_by_truth(counts, [0, 1], 0.9) for counts in (calm, alarmed))
    assert after[1] > before[1]


def test_a_class_that_never_occurs_has_no_wait():
    assert np.isnan(order.waits_by_truth([[3, 1], [0, 0]], [0, 1], 0.5)[1])


@pytest.mark.parametrize(
    "call",
    [
        lambda: order.waits_by_call([0.5, 0.6], 0.5),
        lambda: order.waits_by_call([1.0], 1.0),
        lambda: order.waits_by_truth(np.zeros((2, 2)), [0, 1], 0.5),
        lambda: order.waits_by_truth(np.ones((2, 3)), [0, 1], 0.5),
    ],
)
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(ParameterError):
        call()
