"""HAF's memory of past bags and the geometry of its heads."""

from __future__ import annotations

import math

import pytest
import torch
from tests.methods.conformance import Output

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.terms import LevelMargin, alignment_loss
from pams_mil.methods.tree import Haf, geometry_loss

SURE = 50.0


def sure(*classes):
    return SURE * torch.eye(3)[list(classes)]


def test_a_lone_bag_is_pushed_from_remembered_unlike_bags():
    margin = LevelMargin(3, margin=3.0, memory=4)
    assert margin(sure(0), torch.tensor([0])).item() == 0.0  # nobody to compare with
    assert margin(sure(0), torch.tensor([0])).item() == 0.0  # only its like
    assert margin(sure(1), torch.tensor([1])).item() == pytest.approx(3 - math.log(2))
    logits = torch.zeros(1, 3, requires_grad=True)
    margin(logits, torch.tensor([2])).sum().backward()
    assert logits.grad[0, 2] < 0  # away from what was remembered, toward its own class


def test_memory_is_first_in_first_out_and_has_a_limit():
    margin = LevelMargin(3, margin=3.0, memory=4)
    for label in (0, 1, 2, 0, 1, 1):
        margin(sure(label), torch.tensor([label]))
    assert margin.memory_target.tolist() == [1, 1, 0, 2]
    margin(sure(0, 0, 0, 0, 0, 2), torch.tensor([0, 0, 0, 0, 0, 2]))
    assert margin.memory_target.tolist() == [0, 0, 0, 0]
    assert not margin.memory_log_p.requires_grad


def test_a_bag_with_two_labels_is_remembered_by_the_heavier_one():
    margin = LevelMargin(3, margin=3.0, memory=4)
    share = torch.tensor([0.3, 0.5, 1.0])
    margin(sure(0, 0, 0), torch.tensor([0, 0, 0]), share)
    margin(sure(0, 0, 0), torch.tensor([2, 2, 2]), 1 - share)
    assert margin.memory_target.tolist() == [2, 0, -1, -1]


def test_evaluation_does_not_remember():
    margin = LevelMargin(3, margin=3.0, memory=4).eval()
    margin(sure(0), torch.tensor([0]))
    assert margin.memory_target.tolist() == [-1] * 4


def test_batch_mates_are_pairs_with_gradient_on_both_sides():
    margin = LevelMargin(3, margin=3.0, memory=8)
    logits = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.0]], requires_grad=True)
    value = margin(logits, torch.tensor([0, 1]))
    assert value[0] > 2
    assert value[1] == 0  # its successors are the empty memory; the pair is counted once
    value.sum().backward()
    assert logits.grad.abs().sum(-1).min() > 0


def test_a_closed_hinge_costs_nothing():
    margin = LevelMargin(3, margin=0.1, memory=8)
    assert margin(sure(0, 1), torch.tensor([0, 1])).sum() == 0


def test_a_large_batch_costs_one_pair_per_bag():
    margin = LevelMargin(3, margin=3.0, memory=4)
    target = torch.arange(20) % 2
    value = margin(sure(*target.tolist()), target)
    torch.testing.assert_close(value[:-1], torch.full((19,), 3 - math.log(2)))
    assert value[-1] == 0


def test_state_survives_a_restart():
    hierarchy = ClassHierarchy.load("bracs")
    first, second = Haf().objective(hierarchy), Haf().objective(hierarchy)
    rows = [torch.eye(3, 8), torch.eye(7, 8)]

    def step(objective, seed, labels):
        generator = torch.Generator().manual_seed(seed)
        outputs = [Output(torch.randn(1, len(row), generator=generator), weight=row) for row in rows]
        targets = [torch.tensor(hierarchy.lift(labels, 0)), torch.tensor(labels)]
        return objective(outputs, targets)

    for seed, label in enumerate([0, 6, 3, 2]):
        step(first, seed, [label])
    second.load_state_dict(first.state_dict())
    continued, restarted = step(first, 9, [5]), step(second, 9, [5])
    assert all(torch.equal(value, restarted[name]) for name, value in continued.items())
    forgetful = step(Haf().objective(hierarchy), 9, [5])
    assert not torch.equal(forgetful["margin"], continued["margin"])


def test_one_level_is_cross_entropy():
    hierarchy = ClassHierarchy.flat(["a", "b", "c"])
    terms = Haf().objective(hierarchy)([Output(torch.zeros(1, 3))], [torch.tensor([1])])
    assert list(terms) == ["ce"]
    assert terms["ce"].item() == pytest.approx(math.log(3))


def test_geometry_needs_weight_rows():
    hierarchy = ClassHierarchy.load("bracs")
    outputs = [Output(torch.zeros(1, 3)), Output(torch.zeros(1, 7))]
    with pytest.raises(ParameterError, match="needs the weight rows of every head"):
        Haf().objective(hierarchy)(outputs, [torch.tensor([0]), torch.tensor([0])])


def test_the_coarse_heads_receive_no_cross_entropy():
    hierarchy = ClassHierarchy.load("bracs")
    coarse, fine = torch.randn(2, 3, requires_grad=True), torch.randn(2, 7, requires_grad=True)
    outputs = [Output(coarse, weight=torch.eye(3, 8)), Output(fine, weight=torch.eye(7, 8))]
    terms = Haf().objective(hierarchy)(outputs, [torch.tensor([0, 2]), torch.tensor([0, 6])])
    assert torch.autograd.grad(terms["ce"], coarse, allow_unused=True, retain_graph=True)[0] is None
    assert torch.autograd.grad(terms["alignment"], coarse)[0].abs().sum() > 0


def test_terms_are_the_pieces_times_their_factors():
    hierarchy = ClassHierarchy.load("bracs")
    generator = torch.Generator().manual_seed(5)
    logits = [torch.randn(2, count, generator=generator) for count in (3, 7)]
    rows = [torch.randn(count, 8, generator=generator) for count in (3, 7)]
    outputs = [Output(z, weight=row) for z, row in zip(logits, rows, strict=True)]
    targets = [torch.tensor([0, 2]), torch.tensor([1, 6])]
    method = Haf(lambda_align=2.0, lambda_geometry=3.0, lambda_margin=4.0)
    terms = method.objective(hierarchy)(outputs, targets)
    margin = LevelMargin(3, margin=3.0, memory=256)(logits[0], targets[0]).mean()
    torch.testing.assert_close(terms["ce"], torch.nn.functional.cross_entropy(logits[1], targets[1]))
    torch.testing.assert_close(terms["alignment"], 2 * alignment_loss(*logits, (3, 2, 2)).mean())
    torch.testing.assert_close(terms["geometry"], 3 * geometry_loss(*rows, (3, 2, 2)))
    torch.testing.assert_close(terms["margin"], 4 * margin)
