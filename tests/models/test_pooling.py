"""Mean, max, AB-MIL and CLAM equal their equations and do not care about order."""

from __future__ import annotations

import math

import pytest
import torch
from tests.reference import pooling as reference
from torch.nn import functional

from pams_mil.errors import ParameterError
from pams_mil.models import create_model
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.layers import attention_pool as lean_pool_module
from pams_mil.models.layers.attention_pool import (
    AttentionScores,
    Projection,
    gate_in_place,
    lean_pool,
    pools_leanly,
    spread_scores,
)

INVARIANT = ["linear", "mean_pool", "max_pool", "abmil", "clam_sb", "clam_mb"]


def small(name, **options):
    torch.manual_seed(0)
    return create_model(name, in_features=5, num_classes=3, embedding_features=8, **options).double().eval()


def numpy_state(model):
    return {key: value.numpy() for key, value in model.state_dict().items()}


def instance_loss(model, bag, target, *, samples=8, subtyping=False):
    model.instance_samples, model.subtyping = samples, subtyping
    (rows,), (weights,) = model._attend(BagBatch.single(bag))
    return model.bag_loss(rows, weights, target)


@pytest.mark.parametrize(("name", "gated"), [("abmil", True), ("abmil", False), ("clam_sb", True)])
@pytest.mark.parametrize("n", [1, 2, 50])
def test_attention_models_equal_the_equations(name, gated, n):
    model = small(name, attention_features=4, **({"gated": gated} if name == "abmil" else {}))
    bag = torch.randn(n, 5, dtype=torch.float64)
    logits, alpha = reference.attention_pool(bag.numpy(), numpy_state(model), gated=gated)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            output = model(bag, attention=True)
        assert torch.allclose(output.logits[0], torch.from_numpy(logits), atol=1e-6)
        assert torch.allclose(output.attention.double(), torch.from_numpy(alpha), atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 50])
def test_one_attention_per_class_equals_the_equations(n):
    model = small("clam_mb", attention_features=4)
    bag = torch.randn(n, 5, dtype=torch.float64)
    logits, alpha = reference.clam_mb(bag.numpy(), numpy_state(model), 3)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            output = model(bag, attention=True)
        assert torch.allclose(output.logits[0], torch.from_numpy(logits), atol=1e-6)
        assert torch.allclose(output.attention.double(), torch.from_numpy(alpha), atol=1e-6)


def test_one_branch_per_class_with_equal_branches_is_one_branch():
    one, several = small("clam_sb", attention_features=4), small("clam_mb", attention_features=4)
    state = one.state_dict()
    outer = {key: value.repeat_interleave(3, 0) for key, value in state.items() if key.startswith("scores.outer")}
    several.load_state_dict({**state, **outer})
    bag = torch.randn(6, 5, dtype=torch.float64)
    first, second = one(bag, attention=True), several(bag, attention=True)
    assert torch.allclose(first.logits, second.logits)
    assert torch.allclose(first.attention, second.attention)
    for subtyping in (False, True):
        losses = [instance_loss(m, bag, 1, samples=2, subtyping=subtyping) for m in (one, several)]
        assert torch.allclose(*losses)


@pytest.mark.parametrize("n", [1, 7])
def test_mean_and_max_equal_the_equations(n):
    bag = torch.randn(n, 5, dtype=torch.float64)
    for name in ("mean_pool", "max_pool"):
        model = small(name)
        rows = reference.relu_project(bag.numpy(), numpy_state(model))
        z = torch.from_numpy(rows.mean(0) if name == "mean_pool" else rows.max(0))
        assert torch.allclose(model(bag).logits[0], model.head(z), atol=1e-12)


def test_max_attention_counts_coordinates():
    model = small("max_pool")
    bag = torch.zeros(3, 5, dtype=torch.float64)
    model.projection.weight.data.fill_(1)
    model.projection.bias.data.fill_(1)
    bag[1] = 1
    assert model(bag, attention=True).attention.tolist() == [0, 1, 0]


@pytest.mark.parametrize("name", INVARIANT)
@pytest.mark.parametrize("grad", [True, False])
def test_order_of_instances_does_not_matter(name, grad):
    model = small(name).float()
    bag = torch.randn(3000, 5)
    order = torch.randperm(3000)
    with torch.set_grad_enabled(grad):
        first, second = model(bag, attention=True), model(bag[order], attention=True)
    assert torch.allclose(first.logits, second.logits, atol=1e-5)
    if name != "max_pool":  # ties go to the first of equal instances
        assert torch.allclose(first.attention[order], second.attention, atol=1e-6)


def test_clam_instance_loss_by_hand():
    model = small("clam_sb", dropout=0.0)
    bag = torch.randn(5, 5, dtype=torch.float64)
    attention = model(bag, attention=True).attention
    rows = model.projection(bag)
    order = attention.argsort(descending=True)
    picked = torch.cat([rows[order[:2]], rows[order[-2:]]])
    truth = functional.cross_entropy(model.instance_heads[1](picked), torch.tensor([1, 1, 0, 0]))
    found = instance_loss(model, bag, 1, samples=2)
    assert torch.allclose(found, truth)
    others = [functional.cross_entropy(model.instance_heads[k](rows[order[:2]]), torch.tensor([0, 0])) for k in (0, 2)]
    found = instance_loss(model, bag, 1, samples=2, subtyping=True)
    assert torch.allclose(found, (truth + sum(others)) / 3)


def test_clam_instance_loss_of_a_tiny_bag_is_no_error():
    assert math.isfinite(instance_loss(small("clam_sb"), torch.randn(1, 5).double(), 0).item())


def test_bad_dropout():
    with pytest.raises(ParameterError, match="dropout"):
        small("clam_sb", dropout=1.5)


@pytest.mark.parametrize("block", [1, 2, 1024])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [None, [[0, 1, 0, 1, 1]], [[0, 1, 0, 1, 1], [1, 1, 0, 0, 0]]])
def test_lean_pooling_has_the_gradients_of_its_equation(monkeypatch, bias, groups, block):
    monkeypatch.setattr(lean_pool_module, "_ROWS", block)
    torch.manual_seed(0)
    projection, scores = Projection(3, 4, bias=bias).double(), AttentionScores(4, 2).double()
    bag = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    partitions = None if groups is None else torch.tensor(groups)
    assert pools_leanly(projection, scores, 512)
    pooled, found = lean_pool(bag, projection, scores, partitions, 2)
    instances = projection(bag)
    expected = scores(instances)
    alpha = spread_scores(expected, partitions, 2).softmax(-1)
    torch.testing.assert_close((pooled, found), (alpha @ instances, expected))
    leaves = [bag, *projection.parameters(), *scores.parameters()]
    slopes = [torch.randn_like(pooled), torch.randn_like(found)]
    torch.testing.assert_close(
        torch.autograd.grad((pooled, found), leaves, slopes),
        torch.autograd.grad((alpha @ instances, expected), leaves, slopes),
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-7), (torch.float64, 1e-15), (torch.bfloat16, 0)])
def test_scores_without_gradients_are_those_with_them(dtype, tolerance):
    torch.manual_seed(0)
    scores, instances = AttentionScores(6, 4).to(dtype), 3 * torch.randn(50, 6, dtype=dtype)
    expected = scores(instances)
    with torch.inference_mode():
        torch.testing.assert_close(scores(instances), expected, atol=tolerance, rtol=tolerance)


def test_gates_in_place_equal_tanh_and_sigmoid():
    inner = torch.linspace(-30, 30, 4002, dtype=torch.float32).reshape(-1, 2)
    signal, gate = gate_in_place(inner.clone())
    exact = inner.double()
    assert (signal[:, 0] - exact[:, 0].tanh()).abs().max() < 2e-7
    assert (gate[:, 0] - exact[:, 1].sigmoid()).abs().max() < 1.3e-7


def test_lean_pooling_backward_does_not_care_where_it_is_called():
    projection, scores = Projection(3, 4), AttentionScores(4, 2)
    pooled, _ = lean_pool(torch.randn(5, 3), projection, scores, None, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled.sum().backward()
    assert projection.weight.grad.dtype == torch.float32


def test_pooling_is_lean_only_where_it_is_the_same_function():
    projection, scores = Projection(3, 4), AttentionScores(4, 2)
    assert not pools_leanly(projection, AttentionScores(4, 2, gated=False), 512)
    assert not pools_leanly(projection, AttentionScores(4, 2, dropout=0.25), 512)
    assert pools_leanly(projection, AttentionScores(4, 2, dropout=0.25).eval(), 512)
    with torch.no_grad():
        assert not pools_leanly(projection, scores, 512)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not pools_leanly(projection, scores, 512)
    assert not pools_leanly(projection, AttentionScores(4, 2).bfloat16(), 512)


@pytest.mark.parametrize(
    ("name", "options"),
    [("mean_pool", {}), ("priority", {"pooling": "mean"}), ("priority", {}), ("abmil", {}), ("clam_mb", {})],
)
def test_sums_over_long_bags_stay_finite_in_half_precision(name, options):
    bag = torch.rand(5000, 16) + 10
    model = create_model(name, in_features=16, num_classes=3, embedding_features=8, **options).eval()
    model.projection.weight.data.fill_(0.4)  # rows of about 67, whose sums float16 cannot hold
    if hasattr(model, "scores"):
        model.scores.inner.weight.data.zero_()
    with torch.autocast("cpu", dtype=torch.float16), torch.no_grad():
        streamed = model(bag).logits.float()
    assert torch.allclose(streamed, model(bag).logits, atol=0.1, rtol=0.01)
