"""Calibrating a run: on validation slides only, for these weights only, and with what is known about its training."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tests.engine.cohort import make_cohort, run, settings
from tests.reference import calibration as reference
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data.tables import read_table
from pams_mil.engine import calibrate, predict
from pams_mil.engine.prediction.calibrate import run_bias
from pams_mil.engine.prediction.export import export
from pams_mil.engine.prediction.run_calibration import read_calibration
from pams_mil.errors import CheckpointError, RunError
from pams_mil.evaluate.decisions.probability_calibration import fit_probability_calibration
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.severity import loss_weight

SCHEMAS = Path(__file__).parents[2] / "docs/reference/schemas"


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """60 validation slides, so that more than a temperature may be fitted."""
    return make_cohort(tmp_path_factory.mktemp("cohort"), sizes={"val": 60})


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """As few validation slides as a temperature takes, for runs of which only the training matters."""
    return make_cohort(tmp_path_factory.mktemp("few"), sizes={"val": 12})


@pytest.fixture(scope="module")
def runs(cohort, few, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    kinds = {
        "pams": (cohort, {"select": "last", "pairing": {"rule": "urgent_label"}}),
        "ce": (cohort, {"method": "ce", "select": "last"}),
        "hxe": (few, {"method": "hxe"}),
        "detached": (
            few,
            {
                "method": {"name": "pams", "detach_weight": True, "alpha": 2.0},
                "pairing": {"rule": "urgent_label", "mode": "add"},
            },
        ),
        "always": (few, {"pairing": {"rule": "urgent_label", "probability": 1.0}}),
        "kept": (few, {}),
        "kept, added": (few, {"pairing": {"rule": "keep_label", "own_class": False, "mode": "add"}}),
    }
    return {
        name: run(settings(data, epochs=3, lr=3e-2, **changes), folder / name)
        for name, (data, changes) in kinds.items()
    }


@pytest.fixture
def copied(runs, tmp_path):
    """A run of one's own to spoil."""
    return shutil.copytree(runs["pams"], tmp_path / "run")


@pytest.fixture(scope="module")
def ready(runs, tmp_path_factory):
    """A calibrated run, to copy and spoil."""
    folder = shutil.copytree(runs["pams"], tmp_path_factory.mktemp("ready") / "run")
    calibrate(folder)
    return folder


def predicted(cohort, *folders, **options):
    return predict(folders, cohort / "manifest.csv", features=cohort / "bags", **options)


def test_is_the_fit_to_the_validation_slides(cohort, runs):
    found = calibrate(runs["pams"])
    said = predicted(cohort, runs["pams"], split="val")
    hierarchy = said.hierarchy
    assert [level.name for level in found.levels] == ["group", "class"]
    for number, level in enumerate(found.levels):
        bias = level.calibration.bias
        again = fit_probability_calibration(
            said.probabilities[number], hierarchy.lift(said.sample.target, number), hierarchy, number, bias=bias
        )
        assert again.strengths == pytest.approx(level.calibration.strengths)
        assert again.temperature == pytest.approx(level.calibration.temperature)
        assert sum(level.slides.values()) == 60
    assert (found.validation["slides"], found.validation["patients"]) == (60, 60)


def test_predictions_are_calibrated_level_by_level(cohort, runs):
    found = calibrate(runs["pams"])
    plain, calibrated = predicted(cohort, runs["pams"]), predicted(cohort, runs["pams"], calibrated=True)
    for number, level in enumerate(found.levels):
        expected = level.calibration(plain.probabilities[number])
        np.testing.assert_allclose(calibrated.probabilities[number], expected, atol=1e-12)
    assert np.abs(plain.probabilities[-1] - calibrated.probabilities[-1]).max() > 1e-3


def test_summed_levels_are_summed_from_calibrated_ones(few, runs):
    found = calibrate(runs["hxe"])
    assert [level.name for level in found.levels] == ["class"]
    coarse, fine = predicted(few, runs["hxe"], calibrated=True).probabilities
    np.testing.assert_allclose(coarse, np.stack([fine[:, :2].sum(1), fine[:, 2:].sum(1)], 1), atol=1e-12)


def test_several_runs_are_calibrated_and_then_averaged(cohort, runs):
    for name in ("pams", "ce"):
        calibrate(runs[name])
    one, two = (predicted(cohort, runs[name], calibrated=True) for name in ("pams", "ce"))
    both = predicted(cohort, runs["pams"], runs["ce"], calibrated=True)
    np.testing.assert_allclose(both.probabilities[-1], (one.probabilities[-1] + two.probabilities[-1]) / 2, atol=1e-12)


def test_knows_what_training_did(cohort, runs):
    """12 training slides, three of each class; every level has its own matrix and drift."""
    hierarchy = ClassHierarchy.load(cohort / "classes.yaml")
    targets = [number % 4 for number in range(12)]
    for name, alpha, mode in (("pams", 1.6, "replace"), ("detached", 2.0, "add")):
        labels = np.asarray(reference.trained_on(targets, hierarchy.ranks().tolist(), 0.5, mode))
        drift = labels / labels.sum() * 4
        coarse, fine = (level.calibration.bias for level in calibrate(runs[name]).levels)
        np.testing.assert_allclose(fine.severity, loss_weight(hierarchy, alpha=alpha), rtol=1e-6)
        np.testing.assert_allclose(coarse.severity, loss_weight(hierarchy, 0, alpha=alpha), rtol=1e-6)
        np.testing.assert_allclose(fine.drift, drift)
        np.testing.assert_allclose(coarse.drift, [drift[:2].mean(), drift[2:].mean()])
        assert fine.detach_weight is (name == "detached")
    assert all(not level.calibration.strengths for level in calibrate(runs["ce"]).levels)
    strengths = calibrate(runs["pams"]).levels[-1].calibration.strengths
    assert list(strengths) == ["msce", "remix"]


def test_pairs_that_keep_their_labels_leave_nothing_to_undo(runs):
    kept = calibrate(runs["kept"]).levels[-1].calibration
    assert kept.bias.drift is None
    assert list(kept.strengths) == ["msce"]
    added = calibrate(runs["kept, added"]).levels[-1].calibration.bias
    np.testing.assert_allclose(added.drift, np.array([1.0, 1.5, 1.5, 1.5]) / 1.375)


def test_a_class_that_the_remix_left_untrained_is_named(runs):
    found = calibrate(runs["always"])
    assert any("The remix left no bag of 'a' to train on" in note for note in found.notes)
    assert "remix" not in found.levels[-1].calibration.strengths


def test_says_when_the_slides_also_chose_the_epoch(runs):
    assert any("chose the epoch" in note for note in calibrate(runs["hxe"]).notes)
    assert not any("chose the epoch" in note for note in calibrate(runs["pams"]).notes)


def test_the_test_split_is_never_read(tmp_path):
    cohort = make_cohort(tmp_path / "cohort", sizes={"val": 12})
    folder = run(settings(cohort, epochs=2, lr=3e-2), tmp_path / "run")
    for file in (cohort / "bags").glob("test-*"):
        file.unlink()
    assert calibrate(folder).validation["slides"] == 12


def test_a_torn_validation_slide_is_named_and_left_out(tmp_path):
    cohort = make_cohort(tmp_path / "cohort", sizes={"val": 16})
    folder = run(settings(cohort, epochs=2, lr=3e-2), tmp_path / "run")
    whole = calibrate(folder)
    (cohort / "bags" / "val-5.h5").write_bytes(b"truncated")
    found = calibrate(folder)
    assert (whole.validation["slides"], found.validation["slides"]) == (16, 15)
    assert any("'val-5' was left out" in note for note in found.notes)
    assert found.validation["digest"] != whole.validation["digest"]
    for file in (cohort / "bags").glob("val-*"):
        file.write_bytes(b"truncated")
    with pytest.raises(RunError, match="None of the 16 slides can be read"):
        calibrate(folder)
    assert read_calibration(folder).validation["slides"] == 15  # what was there stays


def test_other_weights_are_refused(cohort, ready, tmp_path):
    copied = shutil.copytree(ready, tmp_path / "run")
    predicted(cohort, copied, split="test", calibrated=True)
    run(settings(cohort, epochs=1, lr=3e-2, select="last"), tmp_path / "shorter")
    shutil.copy(tmp_path / "shorter" / "best.safetensors", copied / "best.safetensors")
    with pytest.raises(CheckpointError, match="fitted for other weights"):
        predicted(cohort, copied, split="test", calibrated=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace('"temperature":', '"temperature": 2.0, "was":', 1), "changed after it was written"),
        (lambda text: text[: len(text) // 2], "cannot be used: "),
        (lambda _: "[]", "its format is not 'pams-calibration'"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "its version is 9"),
    ],
)
def test_a_spoiled_file_is_refused(cohort, ready, tmp_path, spoil, message):
    copied = shutil.copytree(ready, tmp_path / "run")
    file = copied / "calibration.json"
    file.write_text(spoil(file.read_text()))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        predicted(cohort, copied, split="test", calibrated=True)


def test_a_run_without_calibration_is_refused(cohort, copied):
    (copied / "calibration.json").unlink(missing_ok=True)
    with pytest.raises(RunError, match="has no probability calibration"):
        predicted(cohort, copied, split="test", calibrated=True)


def test_another_cohort_is_refused_and_nothing_written(tmp_path):
    cohort = make_cohort(tmp_path / "cohort", sizes={"val": 12})
    folder = run(settings(cohort, epochs=2, lr=3e-2), tmp_path / "run")
    table = cohort / "manifest.csv"
    table.write_text(table.read_text().replace("val-3,p-val-3,d", "val-3,p-val-3,a"))
    with pytest.raises(CheckpointError, match="was trained with the label of slide"):
        calibrate(folder)
    assert not (folder / "calibration.json").exists()


def test_too_few_slides_are_refused_and_nothing_written(tmp_path):
    cohort = make_cohort(tmp_path / "cohort", sizes={"val": 4})
    folder = run(settings(cohort, epochs=1, select="last"), tmp_path / "run")
    result = CliRunner().invoke(app, ["calibrate", str(folder)])
    assert result.exit_code == 2
    assert "4 slides are too few to calibrate probabilities on; expected at least 10" in " ".join(result.stderr.split())
    assert not (folder / "calibration.json").exists()


def test_survives_the_way_through_a_file_and_an_export(cohort, copied, tmp_path):
    found = calibrate(copied)
    again = read_calibration(copied)
    assert again.to_json() == found.to_json()
    written = export(copied, tmp_path / "exported", onnx=False)
    assert "pams calibrate" in written["calibration.json"]
    one = predicted(cohort, copied, split="test", calibrated=True)
    two = predicted(cohort, tmp_path / "exported", split="test", calibrated=True)
    np.testing.assert_array_equal(one.probabilities[-1], two.probabilities[-1])


def test_the_command(cohort, copied, tmp_path):
    runner = CliRunner()
    shown = runner.invoke(app, ["calibrate", str(copied)])
    assert shown.exit_code == 0, shown.output
    for words in ("60 validation slides of 60 patients", "T = ", "(msce)", "negative log-likelihood", "other patients"):
        assert words in shown.output, words
    said = json.loads(runner.invoke(app, ["calibrate", str(copied), "--json"]).stdout)
    assert said["levels"]["class"]["classes"] == 4
    assert said == json.loads((copied / "calibration.json").read_text())
    arguments = ["predict", str(copied), str(cohort / "manifest.csv"), "--features", str(cohort / "bags")]
    done = runner.invoke(app, [*arguments, "--calibrated", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {
        "predictions_calibrated.csv", "predictions_calibrated_group.csv"
    }  # fmt: skip
    table = read_table(tmp_path / "out" / "predictions_calibrated.csv")
    expected = predicted(cohort, copied, calibrated=True).probabilities[-1]
    np.testing.assert_allclose(np.asarray(table["p_a"], dtype=float), expected[:, 0])
    done = runner.invoke(app, ["evaluate", str(copied), "--calibrated", "--resamples", "0"])
    assert done.exit_code == 0, done.output
    assert (copied / "predictions/manifest-test-calibrated.csv").exists()
    assert (copied / "reports/manifest-test-calibrated/report.html").exists()
    assert not (copied / "reports/manifest-test").exists()


def test_scores_on_other_patients_may_be_unknown_in_the_schema(runs, monkeypatch):
    monkeypatch.setattr("pams_mil.engine.prediction.calibrate.cross_calibrated", lambda *_, **__: None)
    said = calibrate(runs["hxe"]).to_json()
    assert said["levels"]["class"]["scores"]["after"] is None
    Draft202012Validator(json.loads((SCHEMAS / "calibrate.schema.json").read_text("utf-8"))).validate(said)


def test_the_bias_of_a_run_and_the_benchmark_that_uses_it(runs, monkeypatch, capsys):
    bias = run_bias(runs["pams"])
    fitted = calibrate(runs["pams"]).levels[-1].calibration.bias
    np.testing.assert_array_equal(bias.severity, fitted.severity)
    np.testing.assert_array_equal(bias.drift, fitted.drift)
    script = Path(__file__).parents[2] / "benchmarks" / "calibration.py"
    monkeypatch.setattr(sys, "argv", [str(script), str(runs["pams"])])
    runpy.run_path(str(script), run_name="__main__")
    shown = capsys.readouterr().out
    for row in ("as they are", "temperature + both", "temperature + remix", "closed form alone"):
        assert row in shown
