"""Runs that go on: finished ones with more epochs or patience, failed ones with a corrected command."""

from __future__ import annotations

import pytest
from tests.engine.cohort import run, settings

from pams_mil.engine import open_run
from pams_mil.engine.prediction.predict import load
from pams_mil.engine.run.spec import stored_spec
from pams_mil.engine.training import loop as fit
from pams_mil.engine.training.observers import Watch
from pams_mil.errors import CheckpointError, RunError


def test_a_finished_run_is_extended_as_if_it_was_started_with_more_epochs(cohort, tmp_path):
    whole = run(settings(cohort, epochs=5), tmp_path / "whole")
    out = run(settings(cohort, epochs=2), tmp_path / "run")
    run(settings(cohort, epochs=5), out, resume=True)
    for name in ("last.safetensors", "best.safetensors", "metrics.csv", "config.yaml"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert open_run(out).status()["epochs"] == 5
    assert stored_spec(out) == load(out).spec == stored_spec(whole)


def test_a_run_that_ran_out_of_patience_goes_on_with_more_of_it(cohort, tmp_path, monkeypatch):
    original = fit.validate
    monkeypatch.setattr(fit, "validate", lambda *args: {**original(*args), "ascc": 0.5})
    out = run(settings(cohort, epochs=6, patience=1), tmp_path / "run")
    notes = []
    watch = Watch()
    monkeypatch.setattr(watch, "noted", notes.append)
    run(settings(cohort, epochs=7, patience=1), out, resume=True, watch=watch)
    assert open_run(out).status()["epochs"] == 2
    assert any("a larger training.patience, or null, lets it go on" in note for note in notes)
    run(settings(cohort, epochs=6, patience=None), out, resume=True)
    assert open_run(out).status()["epochs"] == 6
    with pytest.raises(CheckpointError, match=r"training.patience = None, but now it is 3"):
        run(settings(cohort, epochs=6, patience=3), out, resume=True)


@pytest.mark.parametrize(("schedule", "epochs"), [("cosine", 5), ("step", 5), ("constant", 1)])
def test_runs_that_would_have_trained_otherwise_are_not_extended(cohort, tmp_path, schedule, epochs):
    out = run(settings(cohort, epochs=2, schedule=schedule), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"training.epochs = 2, .* Only a run with training.schedule=constant"):
        run(settings(cohort, epochs=epochs, schedule=schedule), out, resume=True)


def test_a_run_that_failed_before_its_first_checkpoint_does_not_block_the_corrected_command(cohort, tmp_path):
    def failing(*_):
        raise RunError("no luck")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "validate", failing)
        with pytest.raises(RunError, match="no luck"):
            run(settings(cohort, epochs=1), tmp_path / "run")
    assert open_run(tmp_path / "run").status()["state"] == "failed"
    out = run(settings(cohort, epochs=1, lr=1e-2), tmp_path / "run")
    assert open_run(out).status()["state"] == "finished"
    with pytest.raises(RunError, match="already holds a run"):
        run(settings(cohort, epochs=1), tmp_path / "run")
