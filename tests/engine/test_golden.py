"""Files of earlier versions are still read, continued or refused in words; see `tests/golden/README.md`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tests.engine.cohort import weights

from pams_mil.cli.evaluate import predict_run
from pams_mil.data.doctor import diagnose
from pams_mil.data.manifest.manifest import Manifest
from pams_mil.engine import open_run, predict
from pams_mil.engine.config.grid_config import load_grid
from pams_mil.engine.grid.benchmark_cell import run_cell
from pams_mil.engine.grid.grid import run_grid
from pams_mil.engine.run.run_identity import trained_slides
from pams_mil.engine.training.train import train
from pams_mil.errors import CheckpointError, RunError
from pams_mil.evaluate.prediction_layouts import read_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.remix.clustering.prototypes import compiled_lloyd

GOLDEN = Path(__file__).parents[1] / "golden/v0_1_0"


@pytest.fixture
def golden(tmp_path):
    """A copy whose settings name the place of the copy."""
    folder = shutil.copytree(GOLDEN, tmp_path / "golden")
    for file in [*folder.rglob("config.yaml"), folder / "grid.yaml"]:
        file.write_text(file.read_text().replace("/golden/", f"{folder}/"))
    return folder


def stored(golden, path="run/predictions.csv"):
    return read_predictions(golden / path, ClassHierarchy.load(str(golden / "cohort/classes.yaml")))


def close(one: Path, two: Path) -> bool:
    """Equal but for rounding: another processor or kernel may sum in another order.

    A softmax ignores a constant, so the gradient of the attention's last bias is 0 and what Adam makes of it is
    rounding alone.
    """
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(
        torch.allclose(first[name], second[name], rtol=1e-4, atol=1e-6)
        for name in first
        if not name.endswith("scores.outer.bias")
    )


def test_the_copy_is_of_that_version():
    assert '"pams_mil": "0.1.0"' in (GOLDEN / "run/run.json").read_text()


def test_a_pack_is_read(golden):
    manifest = Manifest.read(golden / "cohort/manifest.csv")
    found = diagnose(
        manifest, ClassHierarchy.load(str(golden / "cohort/classes.yaml")), features=golden / "cohort/pack"
    )
    assert len(found.bags) == len(manifest) == 28
    assert not [problem for problem in found.problems if problem.error]


def test_predictions_are_read(golden):
    predictions = stored(golden)
    assert len(predictions.slide_ids) == 7
    np.testing.assert_allclose(predictions.probabilities.sum(1), 1.0, atol=1e-6)


def test_a_run_predicts_what_it_predicted(golden):
    found, before = predict_run(golden / "run", split="test"), stored(golden)
    assert list(found.names) == list(before.slide_ids)
    np.testing.assert_allclose(found.probabilities[-1], before.probabilities, atol=1e-5)


def test_an_export_predicts_what_its_run_predicted(golden):
    found = predict([golden / "export"], golden / "cohort/manifest.csv", split="test", features=golden / "cohort/pack")
    np.testing.assert_allclose(found.probabilities[-1], stored(golden).probabilities, atol=1e-5)


@pytest.mark.skipif(compiled_lloyd() is None, reason="was trained with compiled clustering")
def test_an_interrupted_run_is_finished_as_it_would_have_been(golden):
    run = golden / "interrupted"
    train(open_run(run).config(), run, resume=True)
    assert open_run(run).status()["state"] == "finished"
    assert close(run / "last.safetensors", golden / "run/last.safetensors")


def test_a_benchmark_is_taken_up_without_training(golden):
    trained = (golden / "bench/cells/abmil--ce--seed0/last.safetensors").stat().st_mtime_ns

    class Here:
        def run(self, pending, out, owner):
            for cell in pending:
                yield run_cell(cell, str(out), owner, 1)

    done = run_grid(load_grid(golden / "grid.yaml"), golden / "bench", Here())
    assert not done.failures
    assert len(done.finished) == 1
    assert (golden / "bench/cells/abmil--ce--seed0/last.safetensors").stat().st_mtime_ns == trained


def test_lost_fold_is_found_again(golden):
    """Version 0.1.0 did not store fold 0: the run would be scored on slides that trained it."""
    assert "fold" not in yaml.safe_load((golden / "fold0/config.yaml").read_text())["data"]
    folder = open_run(golden / "fold0")
    assert folder.config().data.fold == 0
    assert open_run(golden / "run").config().data.fold is None
    found = predict_run(golden / "fold0", split="test")
    assert len(found) == 14
    assert not set(found.names) & set(trained_slides(folder).slides("train", "val"))


def test_run_of_fold_0_is_resumed_on_its_own_slides(golden):
    before = (golden / "fold0/last.safetensors").read_bytes()
    train(open_run(golden / "fold0").config(), golden / "fold0", resume=True)
    assert (golden / "fold0/last.safetensors").read_bytes() == before


def test_run_whose_table_has_changed_is_not_scored(golden):
    table = golden / "cohort/manifest.csv"
    rows = table.read_text().splitlines()
    table.write_text("\n".join([rows[0], *reversed(rows[1:])]) + "\n")
    with pytest.raises(RunError, match=r"cannot be told which slides trained .*version 0\.1\.0.*--manifest"):
        predict_run(golden / "run", split="test")
    with pytest.raises(CheckpointError, match=r"was trained with cohort.digest = "):
        train(open_run(golden / "interrupted").config(), golden / "interrupted", resume=True)


def test_settings_are_compared(golden):
    config = open_run(golden / "interrupted").config()
    changed = config.model_copy(update={"training": config.training.model_copy(update={"lr": 1.0})})
    with pytest.raises(CheckpointError, match=r"training.lr = 0\.003, but now it is 1\.0"):
        train(changed, golden / "interrupted", resume=True)
