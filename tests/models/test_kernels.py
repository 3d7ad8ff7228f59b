"""Passes written by hand equal their references, can be differentiated twice, and one switch turns them all off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import pams_mil
from pams_mil.models import create_model
from pams_mil.models.core.switch import reference_kernels
from pams_mil.models.layers import attention_pool, nystrom_kernels
from pams_mil.models.layers.attention_pool import reference_pool
from pams_mil.models.layers.nystrom_kernels import (
    _ClassRow,
    pseudo_inverse_apply,
    reference_class_row,
    reference_value_conv,
    value_conv,
)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def attention():
    return torch.randn(2, 4, 4, dtype=torch.float64).softmax(-1).requires_grad_()


def plain_pseudo_inverse(a, y):
    """Z Y of the published recurrence Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from A^T / 2."""
    z, eye = a.mT / 2, torch.eye(4, dtype=a.dtype)
    for _ in range(3):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z @ y


CASES = {
    "class_row": (
        lambda u, q, k: _ClassRow.apply(u, q, k, 3),
        lambda u, q, k: reference_class_row(u, q, k, 3),
        lambda: (numbers(2, 3), numbers(2, 3, 4), numbers(5, 2, 4)),
    ),
    "value_conv": (value_conv, reference_value_conv, lambda: (numbers(6, 2, 3), numbers(2, 3))),
    "pseudo_inverse": (
        lambda a, y: pseudo_inverse_apply(a, torch.tensor(2.0, dtype=torch.float64), y, steps=3),
        plain_pseudo_inverse,
        lambda: (attention(), numbers(2, 4, 2)),
    ),
    "lean_pool": (
        lambda *inputs: attention_pool._LeanPool.apply(*inputs, torch.tensor([[0, 1, 0, 1]]), 2),
        lambda *inputs: reference_pool(*inputs, torch.tensor([[0, 1, 0, 1]]), 2),
        lambda: (numbers(4, 3), numbers(5, 3), numbers(5), numbers(4, 5), numbers(4), numbers(1, 2), numbers(1)),
    ),
}
every_kernel = pytest.mark.parametrize("name", CASES)


@every_kernel
def test_a_kernel_equals_its_reference(name):
    torch.manual_seed(0)
    kernel, plain, make = CASES[name]
    inputs = make()
    found, expected = kernel(*inputs), plain(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    first = [torch.autograd.grad(torch.cat([part.flatten() for part in parts]).sin().sum(), inputs)
             for parts in ((found,) if isinstance(found, torch.Tensor) else found,
                           (expected,) if isinstance(expected, torch.Tensor) else expected)]  # fmt: skip
    torch.testing.assert_close(first[0], first[1], rtol=1e-7, atol=1e-9)


@every_kernel
def test_a_kernel_can_be_differentiated_twice(name):
    torch.manual_seed(1)
    kernel, _, make = CASES[name]
    inputs = make()
    assert gradcheck(kernel, inputs)
    assert gradgradcheck(kernel, inputs)


def test_every_kernel_is_tested():
    layers = Path(pams_mil.__file__).parent / "models"
    written = [
        name for path in layers.rglob("*.py") for name in re.findall(r"class (\w+)\(\S*Function\):", path.read_text())
    ]
    assert sorted(written) == ["EigenFactor", "_ClassRow", "_LeanPool", "_ValueConv"]
    assert len(CASES) == len(written)


@pytest.mark.parametrize("name", ["abmil", "dtfd", "transmil"])
def test_the_switch_changes_the_way_and_not_the_result(name, monkeypatch):
    torch.manual_seed(2)
    options = {"attention_heads": 2, "landmarks": 4, "embedding_features": 8} if name == "transmil" else {}
    model = create_model(name, in_features=6, num_classes=3, **options).double().eval()
    bag = torch.randn(11, 6, dtype=torch.float64)

    def gradients():
        loss = model(bag).logits.sin().sum()
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)]

    monkeypatch.setattr(attention_pool, "FEWEST_ROWS", 1)
    usual = gradients()

    def refuse(*_):
        raise AssertionError("a kernel ran while the switch was off")

    monkeypatch.setattr(attention_pool._LeanPool, "forward", staticmethod(refuse))
    monkeypatch.setattr(nystrom_kernels.EigenFactor, "forward", staticmethod(refuse))
    with reference_kernels():
        plain = gradients()
    for one, two in zip(usual, plain, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["abmil", "transmil"])
def test_models_work_with_hooks_and_function_transforms(name, monkeypatch):
    monkeypatch.setattr(attention_pool, "FEWEST_ROWS", 1)
    options = {"attention_heads": 2, "landmarks": 4, "embedding_features": 8} if name == "transmil" else {}
    model = create_model(name, in_features=6, num_classes=3, **options)
    bag, seen = torch.randn(11, 6), []
    model.projection.register_forward_hook(lambda module, given, result: seen.append(result.shape))
    model(bag).logits.sum().backward()
    assert seen
    weights = dict(model.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (bag,)).logits.square().sum()

    found = torch.func.grad(loss)(weights)
    assert all(torch.isfinite(value).all() for value in found.values())
