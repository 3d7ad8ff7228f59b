"""Where one loss must become another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.strategies import samples, trees

from pams_mil import methods
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods import CO2Loss, HXELoss, MSCELoss, SoftLabelsLoss, SORDLoss, WeightedCELoss
from pams_mil.methods.cross_entropy import ce_loss
from pams_mil.methods.severity_aware import msce_loss

REDUCE = {
    "HXE without normalization at alpha 0": lambda hierarchy, level: HXELoss(
        hierarchy, level, "none", alpha=0, normalize=False
    ),
    "soft labels with a large beta": lambda hierarchy, level: SoftLabelsLoss(hierarchy, level, "none", beta=1e4),
    "SORD with a large alpha": lambda hierarchy, level: SORDLoss(hierarchy, level, "none", alpha=1e4),
    "CO2 without margins": lambda hierarchy, level: CO2Loss(hierarchy, level, "none", lambda_margin=0),
    "equal weights": lambda hierarchy, level: WeightedCELoss(
        hierarchy, level, "none", weights=[3.0] * hierarchy.num_classes(0)
    ),
    "MSCE without alpha": lambda hierarchy, level: MSCELoss(hierarchy, level, "none", alpha=None),
    "MSCE with a cost of ones": lambda hierarchy, level: MSCELoss(
        hierarchy, level, "none", costs=[[[1.0] * len(one)] * len(one) for one in hierarchy.levels]
    ),
}


@pytest.mark.parametrize("name", REDUCE)
@settings(max_examples=25)
@given(data=st.data())
def test_becomes_cross_entropy(name, data):
    hierarchy = data.draw(trees())
    level = data.draw(st.integers(0, hierarchy.num_levels - 1))
    logits, target = data.draw(samples(hierarchy.num_classes(level)))
    torch.testing.assert_close(
        REDUCE[name](hierarchy, level)(logits, target), ce_loss(logits, target), rtol=1e-9, atol=1e-9
    )


@given(data=st.data())
def test_msce_with_ones_is_cross_entropy_to_the_last_bit(data):
    logits, target = data.draw(samples(7))
    ours, torchs = logits.float().requires_grad_(), logits.float().requires_grad_()
    loss = msce_loss(ours, target, torch.ones(7, 7))
    reference = torch.nn.functional.cross_entropy(torchs, target, reduction="none")
    assert torch.equal(loss, reference)
    loss.sum().backward()
    reference.sum().backward()
    torch.testing.assert_close(ours.grad, torchs.grad, rtol=1e-6, atol=1e-7)


@given(data=st.data())
def test_msce_of_the_least_urgent_class_is_cross_entropy(data):
    hierarchy = data.draw(trees())
    logits, _ = data.draw(samples(hierarchy.num_classes()))
    target = torch.zeros(len(logits), dtype=torch.int64)
    torch.testing.assert_close(MSCELoss(hierarchy, -1, "none")(logits, target), ce_loss(logits, target))


def test_weighted_ce_differs_from_ce_for_a_single_bag():
    hierarchy = ClassHierarchy.load("bracs")
    logits, target = torch.zeros(1, 7), torch.tensor([6])
    weighted = WeightedCELoss(hierarchy, weights=(1, 2, 7))(logits, target)
    torchs = torch.nn.functional.cross_entropy(logits, target, weight=torch.tensor([1.0, 1, 1, 2, 2, 7, 7]))
    ce = torch.nn.functional.cross_entropy(logits, target)
    torch.testing.assert_close(torchs, ce)  # the trap: PyTorch's own reduction cancels the weight
    assert weighted > 1.5 * ce


def test_every_loss_of_a_tree_of_one_level_and_two_classes():
    hierarchy = ClassHierarchy.flat(["no", "yes"])
    logits, target = torch.tensor([[0.3, -0.4], [2.0, 1.0]]), torch.tensor([0, 1])
    for name in methods.__all__:
        if name.endswith("Loss") and name != "LevelLoss":
            value = getattr(methods, name)(hierarchy)(logits, target)
            assert value.isfinite()
            assert value > 0


def test_cdw_ce_of_a_single_class_level_is_zero():
    hierarchy = ClassHierarchy.load("bracs")
    one = ClassHierarchy(
        name="one",
        levels=(type(hierarchy.levels[0])(("all",), (0,), (0,)), type(hierarchy.levels[0])(("a", "b"), (0, 0), (0, 1))),
    )
    for name in methods.__all__:
        if name.endswith("Loss") and name != "LevelLoss":
            assert getattr(methods, name)(one, 0)(torch.randn(3, 1), torch.zeros(3, dtype=torch.int64)) == 0
