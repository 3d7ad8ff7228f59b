"""Direction, as behavior: missing an urgent class costs more than the mirrored false alarm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.methods.conformance import Output
from tests.methods.strategies import trees

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods import MSCELoss, OCELoss
from pams_mil.methods.severity_aware import Pams, msce_loss
from pams_mil.severity import loss_weight


def confident(num_classes, predicted, other, sureness):
    """Probabilities mostly on `predicted`, the rest mostly on `other`; the same shape for every pair."""
    p = torch.full((1, num_classes), 0.01 / num_classes, dtype=torch.float64)
    p[0, predicted] += 0.99 * sureness
    p[0, other] += 0.99 * (1 - sureness)
    return p.log()


def check_misses_cost_more(loss, hierarchy, level, urgent, harmless, sureness):
    """`loss(logits, target)` of the missed urgent class against that of the false alarm."""
    count = hierarchy.num_classes(level)
    missed = loss(confident(count, harmless, urgent, sureness), torch.tensor([urgent]))
    alarm = loss(confident(count, urgent, harmless, sureness), torch.tensor([harmless]))
    assert missed.item() > alarm.item() + 1e-6


@given(data=st.data(), sureness=st.floats(0.55, 0.999))
def test_a_miss_costs_more_than_the_mirrored_alarm(data, sureness):
    hierarchy = data.draw(trees())
    level = data.draw(st.integers(0, hierarchy.num_levels - 1))
    pairs = np.argwhere(hierarchy.outranks(level))
    assume(len(pairs))
    urgent, harmless = data.draw(st.sampled_from(pairs.tolist()))
    for loss in (MSCELoss, OCELoss):
        check_misses_cost_more(loss(hierarchy, level), hierarchy, level, urgent, harmless, sureness)


@given(data=st.data())
def test_the_weight_grows_with_the_distance_of_a_miss(data):
    hierarchy = data.draw(trees(ties=False))
    M = loss_weight(hierarchy)
    for true in range(len(M)):
        below = M[true, :true]
        assert (np.diff(below) < 0).all()  # farther down, more severe
        assert (M[true, true:] == 1).all()


def test_the_whole_objective_has_the_direction():
    hierarchy = ClassHierarchy.load("bracs")
    objective = Pams().objective(hierarchy)

    def loss(logits, target):
        fine = Output(logits)
        sums = torch.stack([part.logsumexp(-1) for part in logits.split([3, 2, 2], -1)], -1)
        coarse_target = torch.tensor(hierarchy.lift(target.numpy(), 0))
        return sum(objective([Output(sums), fine], [coarse_target, target]).values())

    for urgent, harmless in [(6, 0), (5, 2), (3, 1), (6, 5)]:
        check_misses_cost_more(loss, hierarchy, -1, urgent, harmless, 0.8)


def total_loss(confusion, M, sureness=0.9):
    """MSCE over a cohort with these counts `[true, predicted]`."""
    count = len(confusion)
    total = 0.0
    for true in range(count):
        for predicted in range(count):
            p = torch.full((1, count), (1 - sureness) / (count - 1), dtype=torch.float64)
            p[0, predicted] = sureness
            total += confusion[true][predicted] * msce_loss(p.log(), torch.tensor([true]), M).item()
    return total


def check_mirrored_confusions(M):
    """The cohort with false alarms is better than its mirror image with misses, though as accurate."""
    alarms = [[50, 12, 3], [1, 50, 4], [1, 2, 50]]
    misses = [[alarms[r][t] for r in range(3)] for t in range(3)]
    assert total_loss(alarms, M) < total_loss(misses, M) - 1e-6


THREE = ClassHierarchy.flat(["benign", "atypical", "malignant"])


def test_mirrored_confusions_are_ranked():
    check_mirrored_confusions(torch.tensor(loss_weight(THREE)))


def test_a_transposed_matrix_fails_these_tests():
    transposed = torch.tensor(loss_weight(THREE).T.copy())
    with pytest.raises(AssertionError):
        check_mirrored_confusions(transposed)
    with pytest.raises(AssertionError):
        check_misses_cost_more(lambda z, t: msce_loss(z, t, transposed), THREE, 0, 2, 0, 0.9)


def test_the_literal_orientation_fails_these_tests():
    with pytest.raises(AssertionError):
        check_misses_cost_more(MSCELoss(THREE, orientation="literal"), THREE, 0, 2, 0, 0.9)
    with pytest.raises(AssertionError):
        check_mirrored_confusions(torch.ones(3, 3, dtype=torch.float64))


def test_training_on_an_ambiguous_bag_leans_toward_the_urgent_class():
    """The same input, half the time benign and half the time malignant: MSCE decides malignant, CE does not."""
    target = torch.tensor([0, 2])
    shares = {}
    for name, M in {"ce": torch.ones(3, 3), "msce": torch.tensor(loss_weight(THREE))}.items():
        logits = torch.zeros(1, 3, requires_grad=True)
        optimizer = torch.optim.SGD([logits], lr=0.1)
        for _ in range(400):
            optimizer.zero_grad()
            msce_loss(logits.expand(2, 3), target, M).mean().backward()
            optimizer.step()
        shares[name] = logits.detach().softmax(-1)[0, 2].item()
    assert shares["ce"] == pytest.approx(0.5, abs=0.01)
    assert shares["msce"] > 0.6
