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
from tests.forked import PATIENCE_S, Forked, in_child

from pams_mil.engine.config.yaml_file import write_yaml
from pams_mil.engine.run.folder import open_run
from pams_mil.engine.training.observers import StopRequest

PAMS = Path(__file__).with_name("pams_command.py")
LONG = 20_000
"""Epochs of a run that does not end before it is told to."""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_says_how_to_go_on(cohort, tmp_path, number, code):
    config = settings(cohort, method="ce", epochs=LONG, patience=None, checkpoint_minutes=None)
    write_yaml(tmp_path / "run.yaml", config.to_json(), comment="")
    process = Forked.pams(tmp_path / "log.txt", "train", tmp_path / "run.yaml", "--out", tmp_path / "run")
    process.wait_until((tmp_path / "run" / "last.safetensors").exists)
    process.send(number)
    assert process.wait() == code, process.said()
    assert "saved" in process.said()
    assert "--resume" in process.said()
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
    cells = tmp_path / "bench" / "cells"
    # A process of its own: an interpreter gives up its semaphores only when it ends. And a pipe, which ends when all
    # who hold it have ended, the process that reports leaks among them.
    words = [PAMS, "bench", tmp_path / "grid.yaml", "--out", tmp_path / "bench", "--workers", 1]
    process = subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not list(cells.glob("*/last.safetensors")):
        assert process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=PATIENCE_S)[0].decode()
    assert process.returncode == 143, said
    assert "leaked" not in said
    assert "Traceback" not in said
    started = [folder for folder in cells.iterdir() if (folder / "config.yaml").exists()]
    assert len(started) == 1
    assert open_run(started[0]).status()["state"] == "interrupted"
    assert not (started[0] / "run.lock").exists()
    assert not (started[0] / "failure.txt").exists()
