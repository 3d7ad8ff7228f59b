"""Checkpoints with the original parameter names load; anything unsafe or foreign is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pams_mil.errors import CheckpointError
from pams_mil.models import create_model, load_published


def linear(out, width, *, bias=True):
    return {"weight": torch.randn(out, width), **({"bias": torch.randn(out)} if bias else {})}


def named(prefix, tensors):
    return {f"{prefix}.{key}": value for key, value in tensors.items()}


def gated(width=8, inner=4):
    return (
        named("attention_V.0", linear(inner, width))
        | named("attention_U.0", linear(inner, width))
        | named("attention_weights", linear(1, inner))
    )


def dtfd_checkpoint():
    return {
        "dim_reduction": {"fc1.weight": torch.randn(8, 5)},
        "attention": gated(),
        "classifier": named("fc", linear(3, 8)),
        "att_classifier": named("attention", gated()) | named("classifier.fc", linear(3, 8)),
    }


def clam_checkpoint(position):
    name = f"attention_net.{position}"
    return (
        named("attention_net.0", linear(8, 5))
        | named(f"{name}.attention_a.0", linear(4, 8))
        | named(f"{name}.attention_b.0", linear(4, 8))
        | named(f"{name}.attention_c", linear(1, 4))
        | named("classifiers", linear(3, 8))
        | {key: value for k in range(3) for key, value in named(f"instance_classifiers.{k}", linear(2, 8)).items()}
        | {"instance_loss_fn.labels": torch.tensor([0, 1])}
    )


def clam_mb_checkpoint():
    content = {key: value for key, value in clam_checkpoint(3).items() if not key.startswith("classifiers")}
    content |= named("attention_net.3.attention_c", linear(3, 4))
    return content | {key: value for k in range(3) for key, value in named(f"classifiers.{k}", linear(1, 8)).items()}


def small(name):
    return create_model(name, in_features=5, num_classes=3, embedding_features=8, attention_features=4).eval()


def test_dtfd_by_its_four_parts():
    content = dtfd_checkpoint()
    model = load_published(small("dtfd"), content)
    assert torch.equal(model.projection.weight, content["dim_reduction"]["fc1.weight"])
    assert torch.equal(model.tier1_scores.inner.weight[:4], content["attention"]["attention_V.0.weight"])
    assert torch.equal(model.tier1_scores.inner.bias[4:], content["attention"]["attention_U.0.bias"])
    assert torch.equal(model.head.bias, content["att_classifier"]["classifier.fc.bias"])
    assert torch.equal(model.tier1_head.weight, content["classifier"]["fc.weight"])


@pytest.mark.parametrize("position", [2, 3])
def test_clam_with_and_without_dropout_in_the_numbering(position):
    content = clam_checkpoint(position)
    model = load_published(small("clam_sb"), content)
    assert torch.equal(model.scores.inner.weight[4:], content[f"attention_net.{position}.attention_b.0.weight"])
    assert torch.equal(model.instance_heads[2].bias, content["instance_classifiers.2.bias"])


def test_clam_with_a_classifier_per_class():
    content = clam_mb_checkpoint()
    model = load_published(small("clam_mb"), content)
    assert torch.equal(model.head.weight[2], content["classifiers.2.weight"][0])
    assert torch.equal(model.head.bias[1], content["classifiers.1.bias"][0])
    assert torch.equal(model.scores.outer.weight, content["attention_net.3.attention_c.weight"])
    headless = {key: value for key, value in content.items() if not key.startswith("classifiers")}
    with pytest.raises(CheckpointError, match=r"missing 'head\.weight', 'head\.bias', not expected nothing"):
        load_published(small("clam_mb"), headless)


@pytest.mark.parametrize("wrapper", [None, "state_dict"])
@pytest.mark.parametrize("prefix", ["", "model.", "module."])
def test_wrappers_and_files(tmp_path: Path, wrapper, prefix):
    flat = {prefix + key: value for key, value in clam_checkpoint(3).items()}
    path = tmp_path / "s_0_checkpoint.pt"
    torch.save({wrapper: flat, "epoch": 3} if wrapper else flat, path)
    model = load_published(small("clam_sb"), path)
    assert torch.equal(model.head.weight, flat[prefix + "classifiers.weight"])


def test_safetensors(tmp_path: Path):
    flat = clam_checkpoint(3)
    save_file(flat, tmp_path / "clam.safetensors")
    assert torch.equal(
        load_published(small("clam_sb"), tmp_path / "clam.safetensors").head.bias, flat["classifiers.bias"]
    )


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path):
    marker = tmp_path / "ran"
    torch.save({"classifiers.weight": Payload(marker)}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="safely"):
        load_published(small("clam_sb"), tmp_path / "evil.pt")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"backbone.weight": torch.zeros(1)}, "backbone.weight"),
        (
            lambda state: {key: value for key, value in state.items() if key != "classifiers.bias"},
            "missing 'head.bias'",
        ),
        (lambda state: state | {"classifiers.weight": torch.zeros(2, 8)}, r"head.weight has shape \[2, 8\]"),
    ],
)
def test_foreign_checkpoints_are_refused_in_words(change, message):
    with pytest.raises(CheckpointError, match=message):
        load_published(small("clam_sb"), change(clam_checkpoint(3)))


def test_a_model_without_a_published_layout():
    model = create_model("mean_pool", in_features=5, num_classes=3)
    with pytest.raises(CheckpointError, match="no published checkpoint layout"):
        load_published(model, {})


def test_missing_file(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"absent\.pt"):
        load_published(small("clam_sb"), tmp_path / "absent.pt")
