"""Published aggregators as a start: the body always, the head only where the classes are as many."""

from __future__ import annotations

import pytest
import torch
from tests.models.test_published import clam_checkpoint, clam_mb_checkpoint, dtfd_checkpoint, linear, named

from pams_mil.errors import CheckpointError
from pams_mil.models import HierarchicalModel
from pams_mil.models.core.initial_weights import start_from

SMALL = {"embedding_features": 8, "attention_features": 4}


def mil_lab_checkpoint(*, classes=None, gated=True, prefix="model."):
    """AB-MIL with MIL-Lab's names; its published FEATHER has no classifier."""
    attention = (
        named("global_attn.attention_a.0", linear(4, 8))
        | named("global_attn.attention_b.0", linear(4, 8))
        | named("global_attn.attention_c", linear(1, 4))
        if gated
        else named("global_attn.module.0", linear(4, 8)) | named("global_attn.module.3", linear(1, 4))
    )
    head = {} if classes is None else named("classifier", linear(classes, 8))
    return {prefix + key: value for key, value in (named("patch_embed.0", linear(8, 5)) | attention | head).items()}


def parallel(content):
    """As CLAM saves it after training on several GPUs: the attention net is wrapped, the classifiers are not."""
    return {key.replace("attention_net.", "attention_net.module."): value for key, value in content.items()}


def hierarchical(name, counts, **options):
    return HierarchicalModel(name, in_features=5, num_classes=counts, **{**SMALL, **options}).eval()


def logits_by_hand(state, bag):
    """MIL-Lab's AB-MIL in plain steps, from its own names."""
    take = {key.removeprefix("model."): value for key, value in state.items()}
    h = (bag @ take["patch_embed.0.weight"].T + take["patch_embed.0.bias"]).relu()
    a = (h @ take["global_attn.attention_a.0.weight"].T + take["global_attn.attention_a.0.bias"]).tanh()
    b = (h @ take["global_attn.attention_b.0.weight"].T + take["global_attn.attention_b.0.bias"]).sigmoid()
    scores = (a * b) @ take["global_attn.attention_c.weight"].T + take["global_attn.attention_c.bias"]
    return scores.softmax(0).T @ h @ take["classifier.weight"].T + take["classifier.bias"]


def test_feather_gives_the_same_logits_as_its_own_equations():
    content, bag = mil_lab_checkpoint(classes=3), torch.randn(7, 5)
    model = hierarchical("abmil", [3])
    said = start_from(model, content)
    assert "3 classes are taken in the order" in said
    assert torch.allclose(model(bag)[0].logits, logits_by_hand(content, bag), atol=1e-5)


def test_the_plain_attention_of_mil_lab():
    content = mil_lab_checkpoint(gated=False)
    model = hierarchical("abmil", [3], gated=False)
    start_from(model, content)
    assert torch.equal(model.towers[0].scores.inner.weight, content["model.global_attn.module.0.weight"])
    assert torch.equal(model.towers[0].scores.outer.bias, content["model.global_attn.module.3.bias"])


@pytest.mark.parametrize("change", [lambda content: content, parallel])
def test_clam_with_another_number_of_classes_starts_its_heads_fresh(change):
    content = clam_checkpoint(3)
    model = hierarchical("clam_sb", [2, 7], towers="per_level")
    before = [{key: value.clone() for key, value in tower.state_dict().items()} for tower in model.towers]
    said = start_from(model, change(content))
    assert "for 3 classes and not these 7, so it starts fresh" in said
    for tower, drawn in zip(model.towers, before, strict=True):
        assert torch.equal(tower.projection.weight, content["attention_net.0.weight"])
        assert torch.equal(tower.scores.inner.weight[4:], content["attention_net.3.attention_b.0.weight"])
        for key in ("head.weight", "head.bias", "instance_heads.0.weight"):
            assert torch.equal(tower.state_dict()[key], drawn[key])


def test_the_head_is_for_the_finest_level_alone():
    content = clam_checkpoint(3)
    model = hierarchical("clam_sb", [3, 3], towers="per_level")
    fresh = model.towers[0].head.weight.clone()
    start_from(model, content)
    assert torch.equal(model.towers[0].head.weight, fresh)
    assert torch.equal(model.towers[1].head.weight, content["classifiers.weight"])
    assert torch.equal(model.towers[1].instance_heads[2].bias, content["instance_classifiers.2.bias"])


def test_a_shared_tower_and_the_two_tiers_of_dtfd():
    content = dtfd_checkpoint()
    model = hierarchical("dtfd", [2, 3], towers="shared")
    start_from(model, content)
    assert torch.equal(model.heads.levels[1].weight, content["att_classifier"]["classifier.fc.weight"])
    assert torch.equal(model.tier1_heads.levels[1].bias, content["classifier"]["fc.bias"])
    assert torch.equal(model.towers[0].tier2_scores.inner.bias[:4],
                       content["att_classifier"]["attention.attention_V.0.bias"])  # fmt: skip


def test_split_heads_are_always_fresh():
    model = hierarchical("clam_sb", [2, 3], towers="shared", heads="split")
    assert start_from(model, clam_checkpoint(3)) == (
        "All but the head starts from published weights; split heads are not those of any file, so they start fresh."
    )


def test_of_several_heads_all_are_taken_or_none():
    content = {key: value for key, value in clam_checkpoint(3).items() if not key.startswith("instance")}
    model = hierarchical("clam_sb", [3])
    fresh = model.towers[0].head.weight.clone()
    assert "the file does not hold all heads of this model, so they start fresh" in start_from(model, content)
    assert torch.equal(model.towers[0].head.weight, fresh)


@pytest.mark.parametrize("classes", [3, 7])
def test_an_attention_per_class_is_a_matter_of_the_classes(classes):
    content = clam_mb_checkpoint()
    model = hierarchical("clam_mb", [2, classes], towers="per_level")
    coarse, finest = model.towers
    fresh = [tower.scores.outer.weight.clone() for tower in model.towers]
    said = start_from(model, content)
    assert ("3 classes are taken in the order" if classes == 3 else "for 3 classes and not these 7") in said
    for tower in model.towers:
        assert torch.equal(tower.projection.weight, content["attention_net.0.weight"])
        assert torch.equal(tower.scores.inner.weight[:4], content["attention_net.3.attention_a.0.weight"])
    assert torch.equal(coarse.scores.outer.weight, fresh[0])
    assert torch.equal(
        finest.scores.outer.weight, content["attention_net.3.attention_c.weight"] if classes == 3 else fresh[1]
    )


def without_the_attention(state):
    return {key: value for key, value in state.items() if "attention_c" not in key}


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"attention_features": 6}, dict, r"scores.inner.weight has shape \[8, 8\].*Set model.attention_features=4\."),
        ({"embedding_features": 9}, dict, r"Set model.embedding_features=8\."),
        ({}, without_the_attention, "missing 'scores.outer.weight', 'scores.outer.bias'"),
        ({}, lambda state: state | {"model.patch_embed.3.weight": torch.zeros(1)}, "patch_embed.3.weight"),
        ({}, lambda state: state | {"model.patch_embed.0.bias": torch.full((8,), torch.nan)}, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_setting_that_would(options, change, message):
    model = hierarchical("abmil", [3], **options)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        start_from(model, change(mil_lab_checkpoint()))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_features_of_another_encoder_are_named():
    model = HierarchicalModel("abmil", in_features=6, num_classes=[3], **SMALL)
    with pytest.raises(CheckpointError, match="features of width 5 and these have 6"):
        start_from(model, mil_lab_checkpoint())
