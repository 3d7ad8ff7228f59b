"""Gradients: right, finite everywhere, and in half precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.methods.strategies import samples, trees

from pams_mil import methods
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.severity_aware import msce_loss
from pams_mil.methods.terms import alignment_loss
from pams_mil.severity import loss_weight

BRACS = ClassHierarchy.load("bracs")
LOSSES = sorted(name for name in methods.__all__ if name.endswith("Loss") and name != "LevelLoss")
SIZES = (3, 2, 2)


def loss_of(name):
    if name == "alignment":
        return lambda logits, target: alignment_loss(logits[:, 2:5], logits, SIZES)
    return getattr(methods, name)(BRACS, reduction="none").to(torch.float64)


@pytest.mark.parametrize("name", [*LOSSES, "alignment"])
def test_gradcheck(name):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(6, 7, generator=generator, dtype=torch.float64)
    target = torch.tensor([0, 1, 3, 4, 5, 6])
    loss = loss_of(name)
    assert torch.autograd.gradcheck(lambda z: loss(z, target), (logits.requires_grad_(),))


@given(data=st.data(), detach=st.booleans())
def test_msce_gradient_in_closed_form(data, detach):
    hierarchy = data.draw(trees())
    logits, target = data.draw(samples(hierarchy.num_classes(), scale=10.0))
    M = torch.tensor(loss_weight(hierarchy))
    logits.requires_grad_()
    msce_loss(logits, target, M, detach_weight=detach).sum().backward()
    with torch.no_grad():
        p = logits.softmax(-1)
        y = torch.nn.functional.one_hot(target, hierarchy.num_classes())
        rows = M[target]
        w = (p * rows).sum(-1, keepdim=True)
        surprise = -logits.log_softmax(-1).gather(-1, target[:, None])
        expected = w * (p - y) + (0 if detach else surprise * p * (rows - w))
    torch.testing.assert_close(logits.grad, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [*LOSSES, "alignment"])
@pytest.mark.parametrize("size", [1e4, 100.0, 0.0])
def test_finite_for_any_finite_logits(name, size):
    one_hot = size * (2 * torch.eye(7) - 1)
    half = size * torch.tensor([1.0, -1, 1, -1, 1, -1, 1]).expand(7, 7)
    single = size * torch.eye(7)
    for rows in (one_hot, half, single):
        for target in range(7):
            logits = rows.clone().requires_grad_()
            values = loss_of(name)(logits, torch.full((7,), target)).float()
            values.sum().backward()
            assert values.isfinite().all()
            assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", [*LOSSES, "alignment"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name, dtype):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(32, 16, generator=generator)
    features[0] *= 2000
    linear = torch.nn.Linear(16, 7)
    torch.nn.init.normal_(linear.weight, generator=generator)
    target = torch.arange(32) % 7
    with torch.autocast("cpu", dtype=dtype):
        logits = linear(features)
        assert logits.dtype == dtype
        loss = (loss_of(name) if name == "alignment" else getattr(methods, name)(BRACS, reduction="none"))(
            logits, target
        )
    assert loss.dtype == torch.float32
    exact = loss_of(name)(logits.double(), target)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-4, atol=1e-5)
    loss.mean().backward()
    assert linear.weight.grad.isfinite().all()
    assert linear.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("detach", "coarse_moves", "fine_moves"), [
    ("none", True, True), ("fine", True, False), ("coarse", False, True),
])  # fmt: skip
def test_alignment_gradient_sides(detach, coarse_moves, fine_moves):
    coarse = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    fine = torch.arange(7.0)[None].requires_grad_()
    alignment_loss(coarse, fine, SIZES, detach=detach).sum().backward()
    assert (coarse.grad is not None and bool(coarse.grad.any())) == coarse_moves
    assert (fine.grad is not None and bool(fine.grad.any())) == fine_moves


def test_matrices_follow_device_and_dtype():
    loss = methods.MSCELoss(BRACS)
    assert dict(loss.named_buffers())["loss.severity"].dtype == torch.float32
    assert dict(loss.double().named_buffers())["loss.severity"].dtype == torch.float64
    assert dict(loss.to("meta").named_buffers())["loss.severity"].device.type == "meta"
    assert not loss.state_dict()
