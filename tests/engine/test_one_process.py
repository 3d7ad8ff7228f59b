"""One process on the CPU, by itself and through Fabric: the same weights, bit for bit."""

from __future__ import annotations

import pytest
import torch
from tests.engine.cohort import run, same_weights, settings

from pams_mil.engine.config.run_config import ComputeConfig
from pams_mil.engine.training import one_process
from pams_mil.engine.training.one_process import OneProcess, is_one_cpu, start_processes


@pytest.mark.parametrize("changes", [{}, {"clip_norm": 0.1, "accumulate": 2}, {"model": "dtfd"}])
def test_fabric_gives_the_same_weights(cohort, tmp_path, monkeypatch, changes):
    plain = run(settings(cohort, epochs=2, **changes), tmp_path / "plain")
    monkeypatch.setattr(one_process, "is_one_cpu", lambda compute: False)
    through_fabric = run(settings(cohort, epochs=2, **changes), tmp_path / "fabric")
    assert same_weights(plain / "last.safetensors", through_fabric / "last.safetensors")
    assert (plain / "metrics.csv").read_text() == (through_fabric / "metrics.csv").read_text()


def test_anything_but_one_plain_cpu_goes_through_fabric(monkeypatch):
    for name in ("LT_ACCELERATOR", "LT_DEVICES", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    cpu = ComputeConfig(accelerator="cpu")
    assert isinstance(start_processes(cpu), OneProcess)
    for change in ({"devices": 2}, {"nodes": 2}, {"strategy": "ddp"}, {"precision": "bf16-mixed"}, {"devices": "auto"}):
        assert not is_one_cpu(cpu.model_copy(update=change)), change
    assert not is_one_cpu(ComputeConfig(accelerator="gpu"))
    for variable, value in (("LT_ACCELERATOR", "cpu"), ("WORLD_SIZE", "2")):
        with monkeypatch.context() as launcher:
            launcher.setenv(variable, value)
            assert not is_one_cpu(cpu)


@pytest.mark.parametrize(
    "found", [(False, False, None), (True, False, None), (False, True, None), (False, False, "xla")]
)
def test_auto_is_the_cpu_where_there_is_nothing_else(monkeypatch, found):
    cuda, mps, xla = found
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(one_process, "find_spec", lambda name: xla)
    assert is_one_cpu(ComputeConfig(accelerator="auto")) == (found == (False, False, None))


def test_one_process_answers_for_itself():
    alone, value = OneProcess(), torch.ones(2)
    assert alone.all_reduce(value) is value
    assert alone.broadcast("said") == "said"
    assert alone.launch(lambda processes, word: (processes, word), "word") == (alone, "word")
