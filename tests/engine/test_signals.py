"""SIGTERM and SIGHUP save like Ctrl-C, with the exit codes that schedulers expect, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.engine.cohort import settings
from tests.forked import in_child

from pams_mil.engine.config.yaml_file import write_yaml
from pams_mil.engine.run.folder import open_run
from pams_mil.engine.run.watch import StopRequest

LONG = 400


def start(*arguments: object, **options) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, "-m", "pams_mil", *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"{file} never came: {process.communicate()[1]}")
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_says_how_to_go_on(cohort, tmp_path, number, code):
    config = settings(cohort, epochs=LONG, patience=None, checkpoint_minutes=None)
    write_yaml(tmp_path / "run.yaml", config.to_json(), comment="")
    process = start("train", tmp_path / "run.yaml", "--out", tmp_path / "run")
    wait_for(tmp_path / "run" / "last.safetensors", process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "saved" in said
    assert "--resume" in said
    folder = open_run(tmp_path / "run")
    assert folder.status()["state"] == "interrupted"
    assert not (folder.path / "run.lock").exists()


def test_under_nohup_a_run_does_not_listen_to_its_terminal():
    def ignoring():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
            os.kill(os.getpid(), signal.SIGTERM)
            assert (stop.requested, stop.signal) == (True, signal.SIGTERM)
            with pytest.raises(SystemExit, match="143"):
                os.kill(os.getpid(), signal.SIGTERM)

    assert in_child(ignoring) == 0


def test_a_stopped_benchmark_saves_its_cells_and_leaks_nothing(cohort, tmp_path):
    (tmp_path / "grid.yaml").write_text(
        f"data: {{manifest: {cohort}/manifest.csv, features: {cohort}/bags}}\n"
        f"classes: {cohort}/classes.yaml\nmethods: [ce]\nmodels: [{{name: abmil, embedding_features: 8}}]\n"
        f"seeds: [0, 1, 2]\ntraining: {{epochs: {LONG}, patience: null}}\ncompute: {{accelerator: cpu}}\n"
    )
    process = start("bench", tmp_path / "grid.yaml", "--out", tmp_path / "bench", "--workers", 1)
    cells = tmp_path / "bench" / "cells"
    deadline = time.monotonic() + 120
    while not list(cells.glob("*/last.safetensors")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 143, said
    assert "leaked" not in said
    assert "Traceback" not in said
    started = [folder for folder in cells.iterdir() if (folder / "config.yaml").exists()]
    assert len(started) == 1
    assert open_run(started[0]).status()["state"] == "interrupted"
    assert not (started[0] / "run.lock").exists()
    assert not (started[0] / "failure.txt").exists()
