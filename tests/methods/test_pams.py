"""PAMS as a whole: its total by hand, its ablations as values, any number of levels, two tiers."""

from __future__ import annotations

import pytest
import torch
from tests.methods.conformance import DEEP, Output

from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods import CELoss, MSCELoss
from pams_mil.methods.cross_entropy import CrossEntropy
from pams_mil.methods.severity_aware import Pams
from pams_mil.methods.terms import alignment_loss
from pams_mil.methods.tree import Hong

BRACS = ClassHierarchy.load("bracs")


def bracs_batch():
    generator = torch.Generator().manual_seed(3)
    outputs = [Output(torch.randn(4, count, generator=generator)) for count in (3, 7)]
    fine = torch.tensor([0, 3, 4, 6])
    return outputs, [torch.tensor(BRACS.lift(fine.numpy(), 0)), fine]


def test_total_is_twice_msce_plus_alignment():
    outputs, targets = bracs_batch()
    terms = Pams().objective(BRACS)(outputs, targets)
    msce = sum(MSCELoss(BRACS, level)(outputs[level].logits, targets[level]) for level in (0, 1))
    align = alignment_loss(outputs[0].logits, outputs[1].logits, (3, 2, 2)).mean()
    torch.testing.assert_close(terms["msce"], 2 * msce)
    torch.testing.assert_close(terms["alignment"], align)
    assert sorted(terms) == ["alignment", "msce"]


def test_ablations_are_values():
    outputs, targets = bracs_batch()
    without_msce = Pams(alpha=None).objective(BRACS)(outputs, targets)
    ce = sum(CELoss(BRACS, level)(outputs[level].logits, targets[level]) for level in (0, 1))
    torch.testing.assert_close(without_msce["msce"], 2 * ce)
    assert list(Pams(lambda_align=0).objective(BRACS)(outputs, targets)) == ["msce"]
    assert Pams(remix=None).remix is None
    everything = Pams(alpha=None, lambda_msce=1.0, lambda_align=0, remix=None).objective(BRACS)(outputs, targets)
    plain = CrossEntropy().objective(BRACS)(outputs, targets)
    assert torch.equal(everything["msce"], plain["ce"])


def test_one_level_has_no_alignment():
    flat = ClassHierarchy.load("cifar10")
    for method, term in ((Pams(), "msce"), (Hong(), "ce")):
        terms = method.objective(flat)([Output(torch.zeros(2, 10))], [torch.tensor([0, 9])])
        assert list(terms) == [term]


def test_three_levels_align_twice():
    counts = [DEEP.num_classes(level) for level in range(3)]
    generator = torch.Generator().manual_seed(0)
    outputs = [Output(torch.randn(2, count, generator=generator)) for count in counts]
    targets = [torch.tensor(DEEP.lift([1, 4], level)) for level in range(3)]
    terms = Pams().objective(DEEP)(outputs, targets)
    first = alignment_loss(outputs[0].logits, outputs[1].logits, (1, 2)).mean()
    second = alignment_loss(outputs[1].logits, outputs[2].logits, (2, 1, 2)).mean()
    torch.testing.assert_close(terms["alignment"], first + second)


def test_detach_weight_changes_the_gradient_but_not_the_value():
    outputs, targets = bracs_batch()
    values, gradients = [], []
    for detach in (False, True):
        logits = outputs[1].logits.clone().requires_grad_()
        loss = MSCELoss(BRACS, detach_weight=detach)(logits, targets[1])
        values.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, logits)[0])
    torch.testing.assert_close(*values)
    assert not torch.allclose(*gradients)


def test_pseudo_bags_are_aligned_on_request():
    outputs, targets = bracs_batch()
    bag = torch.tensor([0, 0, 1, 2, 3])
    for output in outputs:
        output.tier1_logits, output.tier1_bag = output.logits[bag], bag
    bags_only = Pams().objective(BRACS)(outputs, targets)["alignment"]
    both = Pams(align_tier1=True).objective(BRACS)(outputs, targets)["alignment"]
    torch.testing.assert_close(both, 2 * bags_only)
    outputs[0].tier1_bag = bag.flip(0)
    with pytest.raises(ParameterError, match="same split into pseudo-bags"):
        Pams(align_tier1=True).objective(BRACS)(outputs, targets)


def test_tier1_is_averaged_within_each_bag():
    hierarchy = ClassHierarchy.flat(["a", "b"])
    logits = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    tier1 = torch.tensor([[0.0, 0.0], [2.0, 0.0], [3.0, 1.0]])
    output = Output(logits, tier1_logits=tier1, tier1_bag=torch.tensor([0, 0, 1]))
    target = torch.tensor([1, 0])
    value = CrossEntropy().objective(hierarchy)([output], [target])["ce"]
    ce = CELoss(hierarchy, reduction="none")
    bags, pseudo = ce(logits, target), ce(tier1, target[output.tier1_bag])
    expected = ((bags[0] + (pseudo[0] + pseudo[1]) / 2) + (bags[1] + pseudo[2])) / 2
    torch.testing.assert_close(value, expected)


def test_reductions_of_the_modules():
    outputs, targets = bracs_batch()
    each = MSCELoss(BRACS, reduction="none")(outputs[1].logits, targets[1])
    assert each.shape == (4,)
    torch.testing.assert_close(MSCELoss(BRACS, reduction="sum")(outputs[1].logits, targets[1]), each.sum())
    torch.testing.assert_close(MSCELoss(BRACS)(outputs[1].logits, targets[1]), each.mean())
    assert "msce_loss, num_classes=7" in repr(MSCELoss(BRACS))
