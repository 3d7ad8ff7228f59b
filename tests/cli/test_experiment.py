"""`pams experiment`: every model in the width that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pams_mil import atomic, discover
from pams_mil.cli.experiment import _model, _training
from pams_mil.cli.main import app
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.run_config import configure
from pams_mil.engine.run.spec import RunSpec
from pams_mil.engine.run.trained_slides import TrainedSlides
from pams_mil.errors import ConfigError
from pams_mil.experiments.study import Section, Setting
from pams_mil.hierarchy import ClassHierarchy


def width(name: str, *, quick: bool = False, hidden: int | None = None) -> int:
    """The embedding width of the model that is really built, which also refuses options it does not have."""
    config = complete(configure("m.csv", classes="digits", method="ce", model=_model(name, quick, hidden)))
    learner = RunSpec.of(config, ClassHierarchy.load("digits"), TrainedSlides(()), {"width": 8}).build()
    return int(learner.model.towers[0].head.in_features)


@pytest.mark.parametrize("name", discover.available("models"))
def test_quick_and_hidden_reach_every_model(name: str) -> None:
    assert width(name, quick=True) == 64
    assert width(name, hidden=24) == 24
    assert width(name, quick=True, hidden=32) == 32
    assert _model(name, quick=False, hidden=None) == {"name": name}


def test_a_width_that_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"multiple of its 8 attention heads"):
        _model("transmil", quick=False, hidden=20)


def test_training_settings_with_and_without_their_section() -> None:
    assert _training(["epochs=3", "training.lr=1e-2"], quick=True) == {"epochs": 3, "patience": None, "lr": 1e-2}


def test_only_files_that_were_written_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main table is drawn as SVG alone."""

    def drawn(setting: Setting) -> Section:
        atomic.write_text(setting.folder("main-table") / "pareto.svg", "<svg/>")
        return Section("main-table", "Main table", figures=(("pareto", "Accuracy against AsMC."),))

    monkeypatch.setattr(discover, "load", lambda group, name: drawn)
    done = CliRunner().invoke(app, ["experiment", "main-table", "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"] == ["pareto.svg"]
