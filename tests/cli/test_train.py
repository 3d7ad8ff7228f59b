"""`pams train` with the options people reach for first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from tests.engine.cohort import make_cohort
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data.tables import read_table
from pams_mil.engine import open_run

SMALL = ["model.embedding_features=8", "model.attention_features=4", "accelerator=cpu"]


def pams(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cohort with folds in a folder whose name YAML would cut short."""
    folder = make_cohort(tmp_path_factory.mktemp("cohort") / "run #3")
    words = ("split", folder / "manifest.csv", "--classes", folder / "classes.yaml", "--folds", 3)
    done = pams(*words, "--out", folder / "splits")
    assert done.exit_code == 0, done.output
    return folder


def places(home: Path) -> list[object]:
    manifest = home / "splits/manifest.csv"
    return ["--manifest", manifest, "--features", home / "bags", "--classes", home / "classes.yaml", *SMALL]


def test_options_and_bare_keys_reach_the_run(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--method", "ce", "--fold", 0, "--epochs", 2, "--lr", 2e-3, "--seed", 5)
    done = pams("train", *places(home), *options, "patience=null", "method.towers=finest", "--json")
    assert done.exit_code == 0, done.output
    ended = json.loads(done.stdout)
    assert (ended["run"], ended["state"], ended["epochs"]) == ("runs/ce-abmil-seed5-fold0", "finished", 2)
    config = open_run(ended["run"]).config()
    assert (config.data.fold, config.training.epochs, config.training.lr, config.seed) == (0, 2, 2e-3, 5)
    assert config.training.patience is None
    assert config.method.options["towers"] == "finest"


def test_fold_zero_is_evaluated_and_resumed_on_its_own_slides(home: Path, tmp_path: Path) -> None:
    done = pams("train", *places(home), "--fold", 0, "epochs=1", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    tested = pams("evaluate", tmp_path / "run", "--resamples", 0, "--json")
    assert tested.exit_code == 0, tested.output
    rows = (home / "splits/manifest.csv").read_text().splitlines()[1:]
    expected = {row.split(",")[0] for row in rows if row.split(",")[-3] == "test"}
    found = {row.split(",")[0] for row in (tmp_path / "run/predictions/manifest-test.csv").read_text().splitlines()[1:]}
    assert found == expected
    (tmp_path / "run/last.safetensors").unlink()
    again = pams("train", "--out", tmp_path / "run", "--resume")
    assert again.exit_code == 0, again.output
    assert open_run(tmp_path / "run").config().data.fold == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fold", 7), "no column 'fold_7'; folds found: '0', '1', '2'"),
        ((), "It has the columns 'fold_0', 'fold_1', 'fold_2': choose one, e.g. --fold 0."),
        (("--fold", 0, "epoch=3"), "no setting 'epoch'. Did you mean 'epochs'?"),
        (("--fold", 0, "alpha=3"), "method.alpha=... or model.alpha=..."),
        (("--fold", 0, "training.epoch=3"), "no setting 'training.epoch'. Did you mean 'epochs'?"),
    ],
)
def test_mistakes_are_answered_with_what_to_type(
    home: Path, tmp_path: Path, words: tuple[object, ...], message: str
) -> None:
    done = pams("train", *places(home), *words, "--out", tmp_path / "run")
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_names_that_yaml_would_change_reach_the_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class file called "no", features in "~" and in a folder with a comment sign."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no").write_text((home / "classes.yaml").read_text())
    (tmp_path / "~").symlink_to(home / "bags")
    words = ["--manifest", home / "manifest.csv", "--classes", "no", *SMALL, "epochs=1"]
    for out, features in (("option", ["--features", "~"]), ("key", [f"features={home / 'bags'}"])):
        done = pams("train", *words, *features, "--out", tmp_path / out)
        assert done.exit_code == 0, done.output
        data = open_run(tmp_path / out).config().data
        assert data.features is not None
        assert data.features.resolve() == (home / "bags").resolve()


def test_epochs_are_called_best_that_beat_all_before_them_also_in_a_resumed_run(home: Path, tmp_path: Path) -> None:
    words = ["--manifest", home / "manifest.csv", "--classes", home / "classes.yaml", "--features", home / "bags"]
    first = pams("train", *words, *SMALL, "epochs=2", "patience=null", "--out", tmp_path / "run")
    again = pams("train", "--out", tmp_path / "run", "--resume", "epochs=5")
    assert first.exit_code == again.exit_code == 0, again.output
    lines = [line for line in (first.output + again.output).splitlines() if line.startswith("epoch ")]
    scores = read_table(tmp_path / "run/metrics.csv")[f"val_{open_run(tmp_path / 'run').config().training.select}"]
    expected = [all(float(score) > float(before) for before in scores[:place]) for place, score in enumerate(scores)]
    assert len(lines) == 5
    assert [line.rstrip().endswith("best") for line in lines] == expected
    assert expected[0]
    assert not all(expected)
