"""The loss of several findings: equal to loops and to MSCE with two classes; alignment is 0 inside Fréchet's bounds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pams_mil import ClassHierarchy
from pams_mil.errors import ParameterError
from pams_mil.methods.cross_entropy import CrossEntropy
from pams_mil.methods.findings_loss import (
    boundary_members,
    findings_loss,
    frechet_loss,
    miss_costs,
)
from pams_mil.methods.severity_aware import Msce, Pams, msce_loss
from pams_mil.severity import loss_weight

NAMES = ["N", "UDH", "FEA", "ADH", "DCIS", "IC"]
TIED = ["N", "UDH", ["FEA", "ADH"], "DCIS", "IC"]
TREE = ClassHierarchy.flat(TIED, findings="several", nothing="N")
DRAW = torch.Generator().manual_seed(0)


def test_equals_the_equation_and_msce_with_two_classes():
    z = 3 * torch.randn(20, 5, generator=DRAW, dtype=torch.float64)
    y = (torch.rand(20, 5, generator=DRAW) < 0.4).long()
    m = torch.tensor(miss_costs(TREE, loss_weight(TREE)))
    loss = findings_loss(z, y, m)
    by_msce = sum(
        msce_loss(torch.stack([torch.zeros_like(z[:, k]), z[:, k]], 1), y[:, k], torch.tensor([[1, 1], [m[k], 1]]))
        for k in range(5)
    )
    torch.testing.assert_close(loss, by_msce)
    for i in range(20):
        total = 0.0
        for k in range(5):
            p = 1 / (1 + math.exp(-z[i, k]))
            total -= (p + (1 - p) * m[k]) * math.log(p) if y[i, k] else math.log(1 - p)
        assert float(loss[i]) == pytest.approx(float(total))


def test_unit_costs_are_binary_cross_entropy_to_the_bit():
    z = torch.randn(8, 5, generator=DRAW)
    y = (torch.rand(8, 5, generator=DRAW) < 0.5).float()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none").sum(-1)
    torch.testing.assert_close(findings_loss(z, y, torch.ones(5)), expected)


def test_alignment_is_zero_for_every_joint_distribution_and_positive_outside():
    """Probabilities of any joint distribution of findings lie inside the bounds, whatever the dependence."""
    random = np.random.default_rng(1)
    at_least, counts = (torch.tensor(matrix) for matrix in boundary_members(TREE))
    ranks = TREE.ranks()
    for _ in range(50):
        sets = [tuple(bool(bit >> k & 1) for k in range(5)) for bit in range(32)]
        joint = random.dirichlet(np.full(32, 0.2))
        p = np.array([sum(w for w, s in zip(joint, sets, strict=True) if s[k]) for k in range(5)]).clip(1e-6, 1 - 1e-6)
        top = np.zeros(6)
        for w, members in zip(joint, sets, strict=True):
            most = max((k + 1 for k in range(5) if members[k]), key=lambda c: ranks[c], default=0)
            top[most] += w
        logits = torch.tensor(np.log(top.clip(1e-12)))[None]
        z = torch.tensor(np.log(p / (1 - p)))[None]
        assert float(frechet_loss(logits, z, at_least, counts)) < 1e-5
    certain = torch.tensor([[0.0, -9, -9, -9, -9, 9]])  # IC for sure, and no finding of it
    assert float(frechet_loss(certain, torch.full((1, 5), -6.0), at_least, counts)) > 0.5


def test_single_findings_reduce_to_softmax_being_inside_the_bounds():
    """With exclusive findings, p_k the softmax itself, the bounds hold: max ≤ sum = q."""
    logits = torch.randn(10, 6, generator=DRAW)
    p = logits.softmax(-1)[:, 1:].clamp(1e-6, 1 - 1e-6)
    at_least, counts = (torch.tensor(matrix) for matrix in boundary_members(TREE))
    assert float(frechet_loss(logits, torch.logit(p), at_least, counts).max()) < 1e-6


def test_gradients_and_terms():
    term = Pams().findings_term(TREE)
    logits = torch.randn(4, 6, generator=DRAW, requires_grad=True)
    z = torch.randn(4, 5, generator=DRAW, requires_grad=True)
    terms = term(logits, z, torch.ones(4, 5))
    assert set(terms) == {"findings", "findings_align"}
    sum(value.sum() for value in terms.values()).backward()
    assert torch.isfinite(logits.grad).all()
    assert torch.isfinite(z.grad).all()
    with pytest.raises(ParameterError, match="Expected logits"):
        findings_loss(z, torch.ones(4, 4), torch.ones(5))


def test_costs_of_a_miss_follow_the_settings_of_the_loss_and_the_weights():
    steps = TREE.distance()[0, 1:]
    weighted = replace(TREE, weights={"IC": 3})
    unnamed = ClassHierarchy.flat(TIED[1:], findings="several")
    for method, tree, expected in (
        (Msce(), TREE, 1.6 * steps),
        (Msce(), unnamed, 1.6 * steps),  # "nothing" is one step below all
        (Msce(distance="power"), TREE, 1.6**steps),
        (Msce(alpha=None), TREE, np.ones(5)),
        (Msce(), weighted, 1.6 * steps * [1, 1, 1, 1, 3]),
        (Msce(costs=[np.arange(36.0).reshape(6, 6).tolist()]), TREE, np.arange(6, 36, 6)),
        (CrossEntropy(), weighted, np.ones(5)),
    ):
        np.testing.assert_allclose(method.findings_term(tree).miss, expected, rtol=1e-6)
    with pytest.raises(ParameterError, match=r"literal.*no form for several findings"):
        Msce(orientation="literal").findings_term(TREE)


def test_a_detached_weight_has_the_direction_of_cross_entropy():
    z = torch.zeros(1, 5, requires_grad=True)
    Msce(detach_weight=True).findings_term(TREE)(torch.zeros(1, 6), z, torch.ones(1, 5))["findings"].sum().backward()
    weight = 1 + 0.5 * (1.6 * torch.arange(1, 6) - 1)
    torch.testing.assert_close(z.grad[0], -0.5 * weight / 5)
