"""`--log` sends every epoch to a tracker; MLflow and W&B themselves where they are installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.engine.cohort import settings
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data.tables import read_table
from pams_mil.engine import train


def words(cohort: Path, out: Path, *trackers: str) -> list[str]:
    options = [word for tracker in trackers for word in ("--log", tracker)]
    return [
        "train", "--manifest", str(cohort / "manifest.csv"), "--features", str(cohort / "bags"), "--epochs", "2",
        "--classes", str(cohort / "classes.yaml"), "--out", str(out), *options, "accelerator=cpu",
    ]  # fmt: skip


class Recorder:
    """Stands for both packages: keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*values: Any, **options: Any) -> Recorder:
            self.calls.append((name, (values, options)))
            return self

        return call

    def steps(self, name: str) -> list[tuple[int, dict[str, float]]]:
        return [(options["step"], values[0]) for called, (values, options) in self.calls if called == name]


def test_every_epoch_reaches_every_tracker_once(cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow, wandb = Recorder(), Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    done = CliRunner().invoke(app, words(cohort, tmp_path / "run", "mlflow", "wandb", "tensorboard"))
    assert done.exit_code == 0, done.output
    losses = [float(value) for value in read_table(tmp_path / "run/metrics.csv")["loss"]]
    for steps in (mlflow.steps("log_metrics"), wandb.steps("log")):
        assert [step for step, _ in steps] == [1, 2]
        assert [values["loss"] for _, values in steps] == pytest.approx(losses)
    assert [mlflow.calls[0][0], mlflow.calls[-1][0]] == ["start_run", "end_run"]
    assert [wandb.calls[0][0], wandb.calls[-1][0]] == ["init", "finish"]
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_an_unknown_tracker_is_refused_before_anything_is_read(cohort: Path, tmp_path: Path):
    done = CliRunner().invoke(app, words(cohort, tmp_path / "run", "mlflo"))
    assert done.exit_code == 2
    assert "mlflo" in done.output
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_is_not_installed_leaves_no_folder(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, package in (("mlflow", "mlflow"), ("wandb", "wandb"), ("tensorboard", "'pams-mil[tensorboard]'")):
        monkeypatch.setitem(sys.modules, name, None)  # as Python marks what cannot be imported
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words(cohort, tmp_path / "run", name))
        assert done.exit_code == 2
        assert f"--log {name} needs a package that is not installed: pip install {package}" in done.output
        assert not (tmp_path / "run").exists()


def test_a_tracker_that_cannot_start_is_a_sentence(cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Offline(Recorder):
        def init(self, **options: Any) -> None:
            raise RuntimeError("no key for the server.\nmore lines")

    monkeypatch.setitem(sys.modules, "wandb", Offline())  # type: ignore[arg-type]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words(cohort, tmp_path / "run", "wandb"))
    assert done.exit_code == 2
    assert "--log wandb could not be started: no key for the server. The run can be repeated" in done.output
    again = CliRunner().invoke(app, words(cohort, tmp_path / "run", "csv"))
    assert again.exit_code == 0, again.output  # nothing was trained, so the folder does not block


@pytest.mark.filterwarnings("ignore")  # of the packages that MLflow uses
def test_mlflow_with_a_local_store(cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    train(settings(cohort, epochs=2, compute={"loggers": ["csv", "mlflow"]}), tmp_path / "run")
    [logged] = mlflow.MlflowClient().search_runs(["0"])
    assert logged.info.run_name == "run"
    assert "loss" in logged.data.metrics


def test_wandb_offline(cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(settings(cohort, epochs=1, compute={"loggers": ["csv", "wandb"]}), tmp_path / "run")
    assert list((tmp_path / "run/wandb").glob("offline-run-*"))
