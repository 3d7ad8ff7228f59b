"""Towers and heads: one output per level, for any number of levels."""

from __future__ import annotations

import pytest
import torch

from pams_mil import discover
from pams_mil.class_checks import Level
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models import BagBatch, HierarchicalModel, create_model
from pams_mil.models.core.heads import NormalizedHead, SplitHeads

NAMES = discover.available("models")
TREE = ClassHierarchy(
    name="three levels",
    levels=(
        Level(("low", "high"), (0, 0), (0, 1)),
        Level(("a", "b", "c"), (0, 1, 1), (0, 1, 2)),
        Level(("a1", "a2", "b1", "b2", "c1", "c2", "c3"), (0, 0, 1, 1, 2, 2, 2), (0, 0, 1, 2, 3, 3, 3)),
    ),
)
SUMS = {"priority": ("per_level", "shared"), "clam_mb": ("shared",)}
"""Models with a head of their own, and the towers whose coarser levels are sums of their classes."""


def build(model="abmil", **options):
    torch.manual_seed(0)
    return HierarchicalModel(model, in_features=5, num_classes=options.pop("num_classes", [2, 3, 7]), **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("towers", "heads"),
    [("per_level", "linear"), ("per_level", "normalized"), ("shared", "linear"), ("shared", "normalized"),
     ("shared", "split"), ("finest", "linear"), ("finest", "normalized")],
)  # fmt: skip
def test_one_output_per_trained_level(name, towers, heads):
    options = {"towers": towers, "heads": heads, "embedding_features": 16, "hierarchy": TREE}
    if towers in SUMS.get(name, ()) and heads != "linear":
        with pytest.raises(ParameterError, match=f"so it cannot take {heads} heads"):
            build(name, **options)
        return
    model = build(name, **options)
    outputs = model(BagBatch.pack([torch.randn(4, 5), torch.randn(9, 5)]), attention=True)
    counts = [7] if towers == "finest" else [2, 3, 7]
    assert [tuple(output.logits.shape) for output in outputs] == [(2, count) for count in counts]
    for output in outputs:
        assert output.attention.shape == (13,)
        if name not in SUMS:
            assert output.weight.shape == (output.logits.shape[1], output.embedding.shape[1])
        assert (output.tier1_logits is not None) == (name == "dtfd")
        if heads == "normalized" and output.weight is not None:
            assert torch.allclose(output.weight.norm(dim=-1), torch.ones(len(output.weight)))
    loss = sum(o.logits.sum() + (0 if o.tier1_logits is None else o.tier1_logits.sum()) for o in outputs)
    loss.backward()
    assert all(p.grad is not None for key, p in model.named_parameters() if "instance_heads" not in key)


@pytest.mark.parametrize(("name", "towers"), [(name, towers) for name, kinds in SUMS.items() for towers in kinds])
def test_levels_that_are_sums_of_classes_cannot_contradict_each_other(name, towers):
    model = build(name, towers=towers, embedding_features=16, hierarchy=TREE)
    assert len(model.towers) == 1
    outputs = model(BagBatch.pack([torch.randn(4, 5), 9 * torch.randn(9, 5)]))
    finest = outputs[-1].logits.softmax(-1)
    for level, output in enumerate(outputs):
        summed = torch.zeros(2, TREE.num_classes(level)).index_add(1, torch.from_numpy(TREE.groups(level)), finest)
        torch.testing.assert_close(output.logits.exp() if level < 2 else finest, summed)


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_classes_need_the_hierarchy_that_they_form(name):
    with pytest.raises(ParameterError, match="needs the `hierarchy`"):
        build(name, towers="shared")
    with pytest.raises(ParameterError, match="num_classes must be those of the hierarchy"):
        build(name, towers="shared", num_classes=[2, 7], hierarchy=TREE)
    assert len(build(name, towers="shared", num_classes=[4])(torch.randn(3, 5))) == 1


def test_per_level_towers_are_independent_models():
    model = build(num_classes=[2, 3]).eval()
    bag = torch.randn(6, 5)
    for tower, output in zip(model.towers, model(bag), strict=True):
        assert torch.equal(tower(bag).logits, output.logits)
    model(bag)[1].logits.sum().backward()
    assert all(parameter.grad is None for parameter in model.towers[0].parameters())


def test_shared_linear_heads_agree_with_a_single_model():
    shared, single = build(num_classes=[4], towers="shared").eval(), create_model("abmil", in_features=5, num_classes=4)
    state = {key.removeprefix("towers.0."): value for key, value in shared.state_dict().items() if "towers" in key}
    state |= {"head.weight": shared.heads.levels[0].weight, "head.bias": shared.heads.levels[0].bias}
    single.load_state_dict(state)
    bag = torch.randn(6, 5)
    assert torch.equal(single.eval()(bag).logits, shared(bag)[0].logits)


def test_split_heads_send_no_gradient_from_coarse_to_finer_slices():
    torch.manual_seed(0)
    heads = SplitHeads(6, [2, 3])
    heads.mix = torch.nn.Identity()
    vector = torch.randn(1, 6, requires_grad=True)
    coarse, fine = heads(vector)
    assert torch.equal(coarse.seen, vector)
    (gradient,) = torch.autograd.grad(coarse.logits.sum(), vector, retain_graph=True)
    assert gradient[0, :3].all()
    assert not gradient[0, 3:].any()
    (gradient,) = torch.autograd.grad(fine.logits.sum(), vector)
    assert not gradient[0, :3].any()
    assert gradient[0, 3:].all()


def test_normalized_head_does_not_normalize_the_input():
    head = NormalizedHead(4, 2)
    vector = torch.randn(1, 4)
    expected = vector @ (head.weight / head.weight.norm(dim=1, keepdim=True)).T + head.bias
    assert torch.allclose(head(vector), expected, atol=1e-6)


@pytest.mark.parametrize("distillation", ["max", "maxmin"])
def test_shared_two_tier_model_ranks_by_the_finest_head(distillation):
    model = build("dtfd", towers="shared", distillation=distillation)
    assert [len(output.tier1_logits) for output in model(torch.randn(9, 5))] == [4, 4, 4]
    with pytest.raises(ParameterError, match="Split heads cannot rank"):
        build("dtfd", towers="shared", heads="split", distillation=distillation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"towers": "both"}, "towers must be one of"),
        ({"heads": "split"}, "need towers='shared'"),
        ({"heads": "linaer"}, "Did you mean 'linear'"),
        ({"num_classes": []}, "found none"),
        ({"num_classes": [2, 0]}, r"num_classes\[1\]"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ParameterError, match=message):
        build(**options)
