"""`model.init`: a run that starts from a file is deterministic, resumable, and says so; its path is no identity."""

from __future__ import annotations

import shutil

import pytest
import torch
from tests.engine.cohort import TINY_MODELS, run, same_weights, settings, weights

from pams_mil.engine.config.run_config import RunConfig, with_overrides
from pams_mil.engine.run.folder import read_json
from pams_mil.errors import CheckpointError, ConfigError


@pytest.fixture
def feather(tmp_path):
    torch.manual_seed(7)
    shapes = {
        "patch_embed.0.weight": (8, 8), "patch_embed.0.bias": (8,),
        "global_attn.attention_a.0.weight": (4, 8), "global_attn.attention_a.0.bias": (4,),
        "global_attn.attention_b.0.weight": (4, 8), "global_attn.attention_b.0.bias": (4,),
        "global_attn.attention_c.weight": (1, 4), "global_attn.attention_c.bias": (1,),
    }  # fmt: skip
    path = tmp_path / "pytorch_model.bin"
    torch.save({f"model.{name}": torch.randn(shape) for name, shape in shapes.items()}, path)
    return path


def starting_from(cohort, file, **changes):
    return settings(cohort, model={**TINY_MODELS["abmil"], "init": file}, **{"epochs": 1, **changes})


def test_a_run_starts_from_the_file_and_can_be_resumed_with_it_elsewhere(cohort, feather, tmp_path):
    one = run(starting_from(cohort, feather, lr=1e-12), tmp_path / "one")
    given = torch.load(feather, weights_only=True)["model.patch_embed.0.weight"]
    for tower in (0, 1):
        assert torch.allclose(weights(one / "last.safetensors")[f"model.towers.{tower}.projection.weight"], given)
    facts = read_json(one / "run.json")
    assert any("starts from published weights" in note for note in facts["notes"])
    assert facts["spec"]["settings"]["model"]["init"].startswith("content ")
    moved = shutil.copy(feather, tmp_path / "moved.bin")
    two = run(starting_from(cohort, moved, lr=1e-12), tmp_path / "two")
    assert same_weights(one / "last.safetensors", two / "last.safetensors")
    run(starting_from(cohort, moved, lr=1e-12), one, resume=True)


def test_other_weights_are_another_run(cohort, feather, tmp_path):
    one = run(starting_from(cohort, feather), tmp_path / "one")
    state = torch.load(feather, weights_only=True)
    torch.save({key: value + 1 for key, value in state.items()}, tmp_path / "other.bin")
    with pytest.raises(CheckpointError, match=r"model\.init"):
        run(starting_from(cohort, tmp_path / "other.bin"), one, resume=True)
    with pytest.raises(CheckpointError, match=r"model\.init"):
        run(settings(cohort, epochs=1), one, resume=True)


def test_nothing_is_written_when_the_file_is_missing_or_does_not_fit(cohort, feather, tmp_path):
    with pytest.raises(ConfigError, match=r"there is no file .*absent\.pt"):
        run(starting_from(cohort, tmp_path / "absent.pt"), tmp_path / "run")
    wide = {**TINY_MODELS["abmil"], "attention_features": 6, "init": feather}
    with pytest.raises(CheckpointError, match=r"model\.attention_features=4"):
        run(settings(cohort, model=wide), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_run_without_initial_weights_does_not_mention_them(cohort):
    assert "init" not in settings(cohort).to_json()["model"]


def test_typed_on_the_command_line_as_it_is():
    assert with_overrides({"model": "abmil"}, ["init=/data/run #3.pt"], kind=RunConfig) == {
        "model": {"name": "abmil", "init": "/data/run #3.pt"}
    }
