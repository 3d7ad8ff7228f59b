"""What users may attach to a model from `create_model`: hooks on its parts, and gradients of gradients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from pams_mil import discover
from pams_mil.models import create_model

WEIGHTS_ONLY = {
    "clam_mb": {"head"},
    "priority": {"head"},
    "transmil": {"layer2.attention.qkv", "position.conv3", "position.conv5", "position.conv7"},
}
"""Parts that hold weights which others compute with, so that no hook on them is called; docs/models.md says so."""


def small(name):
    options = {"tier2_gradient": "joint"} if name == "dtfd" else {}
    return create_model(name, in_features=6, num_classes=3, embedding_features=16, **options)


@pytest.mark.parametrize("mode", ["training", "gradients", "no gradients"])
@pytest.mark.parametrize("name", discover.available("models"))
def test_hooks_are_called(name, mode):
    torch.manual_seed(0)
    model = small(name).train(mode == "training")
    parts = {key: part for key, part in model.named_modules() if not list(part.children()) and list(part.parameters())}
    expected = {key for key in parts if "instance_heads" not in key} - WEIGHTS_ONLY.get(name, set())
    called = set()
    for key, part in parts.items():
        part.register_forward_hook(lambda *_, key=key: called.add(key))
    with torch.set_grad_enabled(mode != "no gradients"):
        model(torch.randn(9, 6))
    assert called == expected


@pytest.mark.parametrize("name", discover.available("models"))
def test_gradients_of_gradients(name):
    torch.manual_seed(0)
    model = small(name).eval().double()
    bag = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    # TransMIL's attention has no second derivative in torch's fused CPU kernel; its plain one has.
    with sdpa_kernel(SDPBackend.MATH) if name == "transmil" else nullcontext():
        first = torch.autograd.grad(model(bag).logits.square().sum(), bag, create_graph=True)[0]
        second = torch.autograd.grad(first.square().sum(), bag)[0]

        def slope(x):
            value = model(x).logits.square().sum()
            return torch.autograd.grad(value, x, create_graph=True)[0].square().sum()

        step = 1e-5 * torch.randn_like(bag)
        numeric = (slope(bag + step) - slope(bag - step)) / 2
    assert torch.allclose(numeric, (second * step).sum(), rtol=1e-3, atol=1e-12)
