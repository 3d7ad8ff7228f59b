"""A number that is not finite is never a class: the slide is named, the others are predicted, the exit code tells."""

from __future__ import annotations

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from tests.engine.cohort import SIZES, make_cohort, run, settings
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data import Manifest, Pack, SlideRecord, read_bag, write_pack
from pams_mil.data.bags import layouts
from pams_mil.data.doctor import diagnose
from pams_mil.data.tables import read_table
from pams_mil.engine import load, predict
from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.grid import predict_cell
from pams_mil.engine.prediction.slide_predictions import SlidePredictions
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.folder import RunFolder
from pams_mil.errors import BagError, CheckpointError, NotFiniteError, PredictionsError, RunError
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.hierarchical import HierarchicalModel


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_values(path, value, dtype):
    """A bag as other tools write it, without checksums, one of whose values is large."""
    features = np.random.default_rng(0).standard_normal((9, 8)).astype(dtype)
    features[4, 2] = value
    with h5py.File(path, "w") as file:
        file["features"] = features


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A cohort two of whose test slides hold huge but finite values, and a run trained on it."""
    folder = make_cohort(tmp_path_factory.mktemp("cohort"))
    for slide, value, dtype in (("test-1", 3.4e38, np.float32), ("test-6", 1e300, np.float64)):
        (folder / f"bags/{slide}.h5").unlink()
        write_values(folder / f"bags/{slide}.h5", value, dtype)
    return folder, run(settings(folder, epochs=1), tmp_path_factory.mktemp("runs") / "run")


def spoiled(monkeypatch, what, value, slide="test-3"):
    """A model whose logits or attention for one slide are not finite."""
    original = HierarchicalModel.forward

    def forward(self, bags, **options):
        outputs = original(self, bags, **options)
        if isinstance(bags, BagBatch) and slide in bags.keys:
            spoilt = getattr(outputs[-1], what)
            if spoilt is not None:
                spoilt = spoilt.clone()
                spoilt[0] = value
                outputs = (*outputs[:-1], replace(outputs[-1], **{what: spoilt}))
        return outputs

    monkeypatch.setattr(HierarchicalModel, "forward", forward)


def test_slides_with_huge_values_are_named_and_stop_no_other(trained):
    cohort, folder = trained
    found = predict([folder], cohort / "manifest.csv", features=cohort / "bags", split="test")
    assert set(found.failures) == {"test-1", "test-6"}
    assert all("too large to compute with in float32" in reason for reason in found.failures.values())
    assert found.names == [f"test-{number}" for number in range(8) if number not in (1, 6)]
    assert found.sample.patient_ids == [f"p-{name}" for name in found.names]
    np.testing.assert_array_equal(found.sample.target, [0, 2, 3, 0, 1, 3])
    assert [level.shape for level in found.probabilities] == [(6, 2), (6, 4)]
    assert all(len(cells) == 6 for cells in found.sample.tags.values())
    with pytest.raises(BagError, match=r"row 4 .*3.4e\+38"):
        read_bag(cohort / "bags/test-1.h5")


def test_predict_lists_failures_and_ends_with_1(trained, tmp_path):
    cohort, folder = trained
    arguments = ["predict", folder, cohort / "manifest.csv", "--features", cohort / "bags", "--out", tmp_path]
    done = invoke(*arguments, "--split", "test")
    assert done.exit_code == 1
    assert "2 of 8 slides could not be predicted" in done.output
    assert read_table(tmp_path / "predictions_failed.csv")["slide_id"] == ["test-1", "test-6"]
    for name in ("predictions.csv", "predictions_group.csv"):
        table = read_table(tmp_path / name)
        assert not {"test-1", "test-6"} & set(table["slide_id"])
        assert "nan" not in (tmp_path / name).read_text()
    other = invoke(*arguments, "--split", "val")  # of other slides: those in the folder are kept
    assert other.exit_code == 2
    assert "holds predictions of other weights, or of another table or split" in " ".join(other.output.split())
    assert (tmp_path / "predictions_failed.csv").exists()


def test_evaluate_scores_the_rest_and_says_so_in_the_report(trained, tmp_path):
    _, folder = trained
    done = invoke("evaluate", folder, "--resamples", 20, "--out", tmp_path)
    assert done.exit_code == 1
    scores = json.loads((tmp_path / "scores.json").read_text())["files"][0]
    assert scores["slides"] == 6
    assert any("2 of 8 slides could not be predicted and are in no score" in note for note in scores["notes"])
    assert "could not be predicted" in (tmp_path / "report.html").read_text()


def test_a_benchmark_does_not_compare_runs_on_different_slides(trained):
    cohort, folder = trained
    cell = Cell(key="x", method="pams", model="abmil", seed=0, fold=None, config=settings(cohort).resolved())
    with pytest.raises(RunError, match=r"2 slides of the test split could not be predicted.*'test-1'"):
        predict_cell(cell, RunFolder(folder))


@pytest.mark.parametrize(("what", "value"), [("logits", np.nan), ("logits", -np.inf), ("attention", np.inf)])
def test_an_answer_that_is_not_finite_fails_its_slide_alone(trained, tmp_path, monkeypatch, what, value):
    """Logits of minus infinity give finite probabilities; they are refused all the same."""
    cohort, folder = trained
    spoiled(monkeypatch, what, value)
    seen = []
    found = predict(
        [folder], cohort / "manifest.csv", features=cohort / "bags", split="test",
        attend=lambda sample, attention: seen.append(sample.slide_id),
    )  # fmt: skip
    assert set(found.failures) == {"test-1", "test-3", "test-6"}
    assert f"the model's {what} for its" in found.failures["test-3"]
    assert "test-3" not in seen
    assert len(seen) == len(found) == 5


def test_a_batch_names_the_bag(trained, monkeypatch):
    learner = load(trained[1]).learner
    spoiled(monkeypatch, "logits", np.nan, slide="s1")
    batch = BagBatch.pack([torch.ones(2, 8), torch.ones(3, 8)], keys=("s1", "s2"))
    with pytest.raises(NotFiniteError, match=r"'s1' has no prediction.*2 instances"):
        learner.predict(batch)


def test_weights_that_are_not_finite_are_refused_behind_a_valid_digest(trained, tmp_path):
    cohort, folder = trained
    saved = checkpoint.load(folder / "best.safetensors")
    name = next(key for key in saved.tensors if key.endswith("head.weight"))
    tensors = {**saved.tensors, name: torch.full_like(saved.tensors[name], float("nan"))}
    checkpoint.save(tmp_path / "nan.safetensors", checkpoint.Checkpoint(tensors, saved.state))
    with pytest.raises(CheckpointError, match=f"not finite numbers, in '{name}'"):
        load(tmp_path / "nan.safetensors")
    done = invoke("predict", tmp_path / "nan.safetensors", cohort / "manifest.csv", "--features", cohort / "bags")
    assert done.exit_code == 2
    assert not (tmp_path / "predictions.csv").exists()


def test_weights_so_large_that_every_slide_overflows_predict_nothing(trained, tmp_path):
    cohort, folder = trained
    saved = checkpoint.load(folder / "best.safetensors")
    tensors = {key: value * 1e30 for key, value in saved.tensors.items()}
    checkpoint.save(tmp_path / "huge.safetensors", checkpoint.Checkpoint(tensors, saved.state))
    arguments = [tmp_path / "huge.safetensors", cohort / "manifest.csv", "--features", cohort / "bags"]
    done = invoke("predict", *arguments, "--split", "val", "--out", tmp_path)
    assert done.exit_code == 2, done.output
    assert "None of the 8 slides could be predicted" in done.output
    assert not (tmp_path / "predictions.csv").exists()


def test_validation_stops_the_run_and_names_the_slide(tmp_path, monkeypatch):
    cohort = make_cohort(tmp_path / "cohort")
    spoiled(monkeypatch, "logits", -np.inf, slide="val-2")
    with pytest.raises(RunError, match=r"1 of 8 validation slides: 'val-2'"):
        run(settings(cohort), tmp_path / "run")
    assert not (tmp_path / "run/best.safetensors").exists()


def test_probabilities_that_are_not_finite_cannot_become_predictions():
    hierarchy = ClassHierarchy.flat(["a", "b"])
    p = np.array([[1.0, 0.0], [np.nan, 0.5]])
    sample = Predictions("x", hierarchy, ["s1", "s2"], np.array([0, 1]), np.array([0, 1]), p)
    with pytest.raises(PredictionsError, match="'s2'"):
        SlidePredictions(sample, ["", ""])


def test_check_names_bags_that_would_overflow(trained, tmp_path):
    cohort, _ = trained
    hierarchy = ClassHierarchy.load(cohort / "classes.yaml")
    manifest = Manifest.read(cohort / "manifest.csv")
    found = {p.slides: p for p in diagnose(manifest, hierarchy, features=cohort / "bags").errors}
    assert set(found) == {("test-1",), ("test-6",)}
    assert len(manifest) == sum(SIZES.values())
    done = invoke("check", cohort / "manifest.csv", "--classes", cohort / "classes.yaml", "--features", cohort / "bags")
    assert done.exit_code == 1
    assert done.output.count("too large to compute with") == 2


@pytest.mark.parametrize(
    ("value", "dtype", "usable"),
    [(1.8e19, "f4", True), (1.9e19, "f4", False), (-1.9e19, "f8", False), (3e38, "f8", False), (65504.0, "f2", True)],
)
def test_the_limit_is_a_row_whose_square_overflows(tmp_path, value, dtype, usable):
    write_values(tmp_path / "s.h5", value, dtype)
    if usable:
        rows = torch.from_numpy(read_bag(tmp_path / "s.h5").features).float()
        assert torch.isfinite(rows.square().sum(1)).all()
    else:
        with pytest.raises(BagError, match=r"s\.h5 has 1 rows whose values are too large"):
            read_bag(tmp_path / "s.h5")


def test_packs_written_before_are_checked_when_read(tmp_path, monkeypatch):
    (tmp_path / "f").mkdir()
    write_values(tmp_path / "f/s.h5", 3e38, "f4")
    with monkeypatch.context() as patch:
        patch.setattr(layouts, "check_values", lambda bag, name: None)
        write_pack(tmp_path / "p", Manifest((SlideRecord("s", "p", "N"),)), tmp_path / "f")
    with pytest.raises(BagError, match=r"'s' of .* too large to compute"):
        Pack(tmp_path / "p").read("s")
