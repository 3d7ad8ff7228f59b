"""The hand-differentiated pieces of TransMIL against plain versions and numerical derivatives."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.autograd import gradcheck
from torch.nn import functional

import pams_mil.models.layers.nystrom_kernels as class_row_module
import pams_mil.models.layers.nystrom_kernels as pinv_module
from pams_mil.models.layers.nystrom import LandmarkPlan
from pams_mil.models.layers.nystrom_kernels import (
    class_row,
    divided_differences,
    inverse_factor,
    pseudo_inverse_apply,
    reference_value_conv,
    value_conv,
)


def plain_inverse(a, c, steps=6):
    z, one = a.mT / c, torch.eye(a.shape[-1], dtype=a.dtype)
    for _ in range(steps):
        az = a @ z
        z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    return z


both_ways = pytest.mark.parametrize("eigen", [False, True], ids=["products", "eigenvalues"])


def choose(monkeypatch, eigen):
    monkeypatch.setattr(pinv_module, "_decomposes", lambda s: eigen)


@both_ways
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 6])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_pseudo_inverse_equals_the_recurrence(monkeypatch, spread, steps, transpose, eigen):
    choose(monkeypatch, eigen)
    torch.manual_seed(0)
    a = (spread * torch.randn(3, 20, 20, dtype=torch.float64)).softmax(-1)
    y, c = torch.randn(3, 20, 4, dtype=torch.float64), a.sum(-2).max()
    z = plain_inverse(a, c, steps)
    expected = (z.mT if transpose else z) @ y
    assert torch.allclose(pseudo_inverse_apply(a, c, y, steps=steps, transpose=transpose), expected, atol=1e-10)
    single = pseudo_inverse_apply(a.float(), c.float(), y.float(), steps=steps, transpose=transpose)
    assert (single - expected).abs().max() < 1e-4 * expected.abs().max()


@both_ways
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_pseudo_inverse_gradient(monkeypatch, steps, transpose, eigen):
    choose(monkeypatch, eigen)
    torch.manual_seed(1)
    a = torch.randn(2, 5, 5, dtype=torch.float64).softmax(-1).requires_grad_()
    y = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda a, y: pseudo_inverse_apply(a, a.sum(-2).max(), y, steps=steps, transpose=transpose), (a, y))


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_eigenvalues_give_the_gradient_of_products_in_single_precision(monkeypatch, spread):
    torch.manual_seed(4)
    a = (spread * torch.randn(2, 64, 64, dtype=torch.float64)).softmax(-1)
    s, y = a @ a.mT / a.sum(-2).max(), torch.randn(2, 64, 8, dtype=torch.float64)
    gradients = {}
    for eigen, dtype in ((False, torch.float64), (True, torch.float32)):
        choose(monkeypatch, eigen)
        inputs = [tensor.to(dtype).requires_grad_() for tensor in (s, y)]
        gradients[eigen] = torch.autograd.grad(inverse_factor(*inputs).square().sum(), inputs)
    of_s, of_y = gradients[False]
    # Every change of S is symmetric, so only the symmetric part of its gradient counts.
    for exact, found in zip(((of_s + of_s.mT) / 2, of_y), gradients[True], strict=True):
        assert (found - exact).abs().max() < 1e-4 * exact.abs().max()


def test_divided_differences_are_differences_and_on_the_diagonal_derivatives():
    values = torch.tensor([[0.0, 0.05, 0.3, 0.3, 0.9]], dtype=torch.float64, requires_grad=True)
    g, r = torch.ones_like(values), values
    for _ in range(6):
        q = (13 - 15 * r + 7 * r**2 - r**3) / 4
        g, r = g * q, r * q
    slope = torch.autograd.grad(g.sum(), values)[0].detach()[0]
    table, g, values = divided_differences(values.detach(), 6)[0], g.detach()[0], values.detach()[0]
    for i in range(5):
        for j in range(5):
            same = values[i] == values[j]
            expected = slope[i] if same else (g[i] - g[j]) / (values[i] - values[j])
            assert table[i, j] == pytest.approx(expected.item(), rel=1e-10)


def test_a_matrix_that_is_not_finite_passes_through_and_is_not_an_error():
    s = torch.full((1, 3, 3), float("nan")).requires_grad_()
    assert inverse_factor(s, torch.ones(1, 3, 1)).isnan().all()


def test_the_gradient_of_the_pseudo_inverse_is_symmetric(monkeypatch):
    torch.manual_seed(5)
    a = torch.randn(2, 12, 12, dtype=torch.float64).softmax(-1)
    choose(monkeypatch, eigen=True)
    s = (a @ a.mT / a.sum(-2).max()).requires_grad_()
    (gradient,) = torch.autograd.grad(inverse_factor(s, torch.randn(2, 12, 3, dtype=torch.float64)).sin().sum(), s)
    torch.testing.assert_close(gradient, gradient.mT)


@pytest.mark.parametrize("zeros", [0, 5])
def test_class_row_in_blocks_equals_the_whole(monkeypatch, zeros):
    monkeypatch.setattr(class_row_module, "BLOCK_TOKENS", 4)
    monkeypatch.setattr(class_row_module, "FEWEST_ENTRIES", 0)
    torch.manual_seed(2)
    u, queries, keys = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in [(2, 3), (2, 3, 4), (11, 2, 4)]
    )
    logits = functional.pad(queries @ keys.permute(1, 2, 0), (0, zeros))
    expected = (u[:, None] @ logits.softmax(-1)).squeeze(1)[:, :11]
    assert torch.allclose(class_row(u, queries, keys, zeros=zeros), expected, atol=1e-12)
    assert gradcheck(lambda *tensors: class_row(*tensors, zeros=zeros), (u, queries, keys))


@settings(max_examples=25)
@given(n=st.integers(1, 80), heads=st.integers(1, 3), taps=st.sampled_from([1, 3, 33]))
def test_value_conv_equals_conv2d(n, heads, taps):
    torch.manual_seed(n)
    values, weight = torch.randn(n, heads, 2).double(), torch.randn(heads, taps).double()
    expected = functional.conv2d(
        values.permute(1, 0, 2)[None], weight[:, None, :, None], padding=(taps // 2, 0), groups=heads
    )[0].permute(1, 0, 2)
    assert torch.allclose(value_conv(values, weight), expected, atol=1e-12)


@pytest.mark.parametrize("taps", [1, 3])
def test_value_conv_does_not_care_how_values_lie_in_memory(taps):
    values = torch.randn(2, 32, 3).transpose(0, 1).requires_grad_()
    weight, grad = torch.randn(2, taps), torch.randn(2, 32, 3).transpose(0, 1)
    results = [conv(values, weight) for conv in (value_conv, reference_value_conv)]
    assert torch.allclose(*results, atol=1e-5)
    assert torch.allclose(*(torch.autograd.grad(result, values, grad)[0] for result in results), atol=1e-5)


@pytest.mark.parametrize("n", [1, 5, 32, 40])
def test_value_conv_gradient(n):
    torch.manual_seed(0)
    values = torch.randn(n, 2, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(value_conv, (values, weight))


def test_value_conv_weight_gradient_is_accurate_in_float32():
    torch.manual_seed(0)
    values, grad, weight = torch.randn(2026, 8, 64), torch.randn(2026, 8, 64), torch.randn(8, 33)
    results = []
    for dtype in (torch.float32, torch.float64):
        parameter = weight.detach().clone().to(dtype).requires_grad_()
        value_conv(values.to(dtype), parameter).backward(grad.to(dtype))
        results.append(parameter.grad.double())
    assert (results[0] - results[1]).abs().max() < 1e-4 * results[1].abs().max()


@given(tokens=st.integers(1, 700), landmarks=st.sampled_from([1, 4, 37, 256]))
def test_landmarks_are_means_of_the_padded_sequence(tokens, landmarks):
    plan = LandmarkPlan(tokens, landmarks)
    x = torch.randn(tokens, 2, dtype=torch.float64)
    padded = functional.pad(x, (0, 0, plan.pad, 0)).reshape(landmarks, plan.length, 2).mean(1)
    means = plan.means(x)
    assert len(means) == plan.count <= landmarks
    assert torch.allclose(means[plan.copies :], padded[plan.zero_landmarks :])
    assert not padded[: plan.zero_landmarks].any()
    assert float(plan.landmark_multiplicity(means).sum()) == pytest.approx(landmarks)
