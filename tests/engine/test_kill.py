"""A run killed at any moment and resumed ends with the weights of a run that was never interrupted."""

from __future__ import annotations

import os
import signal

import pytest
from tests.engine.cohort import make_cohort, run, same_weights, settings
from tests.forked import in_child

from pams_mil.engine.run import checkpoint
from pams_mil.engine.training import loop as fit
from pams_mil.engine.training.run_checkpoints import RunCheckpoints

MODELS = ("abmil", "dtfd", "transmil")
STEPS = 8

# (what is patched, name, at which call, whether the call is still made first)
MOMENTS = {
    "first step": (fit, "forward", 1, False),
    "mid-epoch": (fit, "forward", STEPS + 5, False),
    "before validation": (fit, "validate", 2, False),
    "after validation": (fit, "validate", 2, True),
    "before the best checkpoint": (RunCheckpoints, "save_best", 1, False),
    "between best and last": (RunCheckpoints, "save_last", 1, False),
    "checkpoint part written": (checkpoint, "_verify", 2, False),
    "before the rename": (os, "replace", 7, False),
    "after the rename": (os, "replace", 7, True),
    "after the checkpoint": (RunCheckpoints, "save_last", 2, True),
    "after the last checkpoint": (RunCheckpoints, "save_last", 3, True),
}


def killing(owner, name, at, after):
    """Replace a function by one that kills the process at its n-th call."""
    original, calls = getattr(owner, name), []

    def patched(*args, **kwargs):
        calls.append(None)
        if len(calls) < at:
            return original(*args, **kwargs)
        if after:
            original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, patched)


def killed_run(config, out, moment):
    def victim():
        killing(*moment)
        run(config, out)

    status = in_child(victim)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.fixture(scope="module")
def cohort(cohort, tmp_path_factory):
    """An epoch of few steps: every test here trains two or three runs."""
    return make_cohort(tmp_path_factory.mktemp("small"), sizes={"train": STEPS, "val": 4, "test": 4})


@pytest.fixture(scope="module")
def uninterrupted(cohort, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return {model: run(settings(cohort, model=model), folder / model) for model in MODELS}


CASES = [("abmil", moment) for moment in MOMENTS] + [
    pytest.param(model, moment, marks=marks)
    for model in ("dtfd", "transmil")
    for moment, marks in (
        ("first step", pytest.mark.slow),
        ("mid-epoch", ()),
        ("after validation", pytest.mark.slow),
        ("checkpoint part written", pytest.mark.slow),
    )
]


@pytest.mark.parametrize(("model", "moment"), CASES)
def test_resumed_run_is_bit_identical(cohort, uninterrupted, tmp_path, model, moment):
    config = settings(cohort, model=model)
    killed_run(config, tmp_path / "run", MOMENTS[moment])
    run(config, tmp_path / "run", resume=True)
    for name in ("last.safetensors", "best.safetensors"):
        assert same_weights(tmp_path / "run" / name, uninterrupted[model] / name)
        assert (tmp_path / "run" / name).read_bytes() == (uninterrupted[model] / name).read_bytes()
    assert (tmp_path / "run/metrics.csv").read_text() == (uninterrupted[model] / "metrics.csv").read_text()
    assert not list((tmp_path / "run").glob(".*.part"))


def test_killed_twice(cohort, uninterrupted, tmp_path):
    config = settings(cohort)
    killed_run(config, tmp_path / "run", MOMENTS["mid-epoch"])

    def victim():
        killing(fit, "forward", 7, True)
        run(config, tmp_path / "run", resume=True)

    assert os.WIFSIGNALED(in_child(victim))
    run(config, tmp_path / "run", resume=True)
    assert same_weights(tmp_path / "run/last.safetensors", uninterrupted["abmil"] / "last.safetensors")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [1, 3])
def test_number_of_workers_changes_nothing(cohort, uninterrupted, tmp_path, workers):
    config = settings(cohort, compute={"workers": workers})
    killed_run(config, tmp_path / "run", MOMENTS["mid-epoch"])
    run(config, tmp_path / "run", resume=True)
    assert same_weights(tmp_path / "run/last.safetensors", uninterrupted["abmil"] / "last.safetensors")


def test_another_seed_is_another_run(cohort, uninterrupted, tmp_path):
    """Otherwise everything above could pass with a loop that trains nothing."""
    other = run(settings(cohort, seed=1), tmp_path / "run")
    assert not same_weights(other / "last.safetensors", uninterrupted["abmil"] / "last.safetensors")


@pytest.mark.parametrize(
    "method", ["haf", "chang", *(pytest.param(name, marks=pytest.mark.slow) for name in ("corn", "hong"))]
)
def test_state_of_other_methods_survives(cohort, tmp_path, method):
    """HAF remembers past bags; its memory must come back too."""
    config = settings(cohort, epochs=2, method=method)
    whole = run(config, tmp_path / "whole")
    killed_run(config, tmp_path / "run", MOMENTS["mid-epoch"])
    run(config, tmp_path / "run", resume=True)
    assert same_weights(tmp_path / "run/last.safetensors", whole / "last.safetensors")


CHANGES = (
    {"accumulate": 5, "max_instances": 3, "schedule": "cosine", "clip_norm": 0.5},
    {"pairing": {"mode": "add"}, "checkpoint_minutes": 1e-9},
    {"method": {"name": "pams", "remix_options": {"selection": "all"}}},
    {"method": {"name": "ce", "remix": "pseudomix"}},
    pytest.param({"method": {"name": "ce", "remix": "remix"}}, marks=pytest.mark.slow),
)


@pytest.mark.parametrize("changes", CHANGES)
def test_settings_that_touch_the_steps(cohort, tmp_path, changes):
    config = settings(cohort, epochs=2, **changes)
    whole = run(config, tmp_path / "whole")
    killed_run(config, tmp_path / "run", (fit, "forward", 13, True))
    run(config, tmp_path / "run", resume=True)
    assert same_weights(tmp_path / "run/last.safetensors", whole / "last.safetensors")
