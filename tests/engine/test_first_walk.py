"""What a first walk stumbled over: foreign tables, decimal commas, files in the wrong place, missing features."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.engine.cohort import settings
from typer.testing import CliRunner

import pams_mil
from pams_mil.cli.main import app
from pams_mil.engine import train


def pams(*words: object, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "400"}).invoke(app, [str(word) for word in words])
    assert done.exit_code == code, f"{done.output}\n{done.exception!r}"
    return done.output.replace("\n", " ")


@pytest.fixture(scope="module")
def run(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(settings(cohort, epochs=1), tmp_path_factory.mktemp("walk") / "run").path


def test_a_table_of_another_hospital_needs_no_split(run: Path, cohort: Path, tmp_path: Path):
    rows = (cohort / "manifest.csv").read_text().splitlines()
    columns = rows[0].split(",")
    kept = [columns.index(name) for name in ("slide_id", "patient_id", "label")]
    lines = [row.split(",") for row in rows if row == rows[0] or row.startswith("test-")]
    table = tmp_path / "hospital.csv"
    table.write_text("\n".join(",".join(line[place] for place in kept) for line in lines) + "\n")
    out = pams("evaluate", run, "--manifest", table, "--features", cohort / "bags", "--resamples", 10)
    assert "AsCC" in out
    before = {path: path.read_bytes() for path in (run / "predictions").glob("manifest-*")}
    pams("predict", run, table, "--features", cohort / "bags")
    assert all(path.read_bytes() == content for path, content in before.items())
    assert (run / "predictions/hospital-all.csv").is_file()


def test_decimal_commas_strings_for_classes_and_rules(tmp_path: Path):
    (tmp_path / "classes.yaml").write_text("name: two\nclasses: [N, IC]\n")
    table = tmp_path / "table.csv"
    table.write_text("slide_id;target;prediction;p_N;p_IC\ns1;N;N;0,658;0,342\ns2;IC;IC;0,1;0,9\n")
    predictions = pams_mil.read_predictions(table, str(tmp_path / "classes.yaml"))
    assert predictions.probabilities is not None
    assert predictions.probabilities[0].tolist() == [0.658, 0.342]
    # 3 · 0.342 > 0.658: a miss that costs three false alarms is not risked
    assert pams_mil.redecide(predictions, "kappa=3").predicted.tolist() == [1, 1]


def test_a_feature_file_is_not_taken_for_a_table(run: Path, cohort: Path):
    file = next((cohort / "bags").glob("*.h5"))
    assert "is an HDF5 file, such as the features of one slide, not a table" in pams("predict", run, file, code=2)


def test_missing_features_are_counted_and_do_not_block_the_corrected_command(cohort: Path, tmp_path: Path):
    shutil.copytree(cohort / "bags", tmp_path / "bags")
    for number in range(3):
        (tmp_path / f"bags/train-{number}.h5").unlink()
    words = ["train", "--manifest", cohort / "manifest.csv", "--classes", cohort / "classes.yaml", "--epochs", 1]
    words += ["--out", tmp_path / "run", "accelerator=cpu", "--features"]
    refused = pams(*words, tmp_path / "bags", code=2)
    assert "3" in refused
    assert "pams check" in refused
    pams(*words, cohort / "bags")


def test_a_cross_validation_that_trained_nothing_does_not_block_the_corrected_command(cohort: Path, tmp_path: Path):
    rows = (cohort / "manifest.csv").read_text()
    (tmp_path / "more.csv").write_text(rows + rows.splitlines()[1].replace("train-0", "gone", 1) + "\n")
    words = [
        "--classes",
        cohort / "classes.yaml",
        "--method",
        "ce",
        "--model",
        "mean_pool",
        "--epochs",
        1,
        "--folds",
        3,
    ]
    words += ["--features", cohort / "bags", "--out", tmp_path / "cv", "--resamples", 0, "accelerator=cpu"]
    assert "'gone'" in pams("cv", tmp_path / "more.csv", *words, code=2)
    assert not list((tmp_path / "cv").rglob("*.safetensors"))
    pams("cv", cohort / "manifest.csv", *words)
    assert "gone" not in (tmp_path / "cv/manifest.csv").read_text()
    for last in (tmp_path / "cv").rglob("last.safetensors"):
        last.unlink()  # to save space: what is left was trained all the same
    started = (tmp_path / "cv/cv.json").read_bytes()
    pams("cv", cohort / "manifest.csv", *words, "--seed", 7, code=2)
    assert (tmp_path / "cv/cv.json").read_bytes() == started


def test_what_is_in_the_wrong_place_is_named(run: Path, cohort: Path, tmp_path: Path):
    table = cohort / "manifest.csv"
    words = ("--features", cohort / "bags", "--out", tmp_path / "out")
    assert "manifest.csv is a file, where a run folder" in pams("predict", table, run, *words, code=2)
    for place in (tmp_path / "none.json", run):
        assert "there is no such file" in pams("monitor", place, table, code=2)


def test_a_whole_cohort_of_problems_is_a_line_each(cohort: Path, tmp_path: Path):
    (tmp_path / "bags").mkdir()
    table, own = cohort / "manifest.csv", ("--classes", cohort / "classes.yaml")
    missing = pams("check", table, *own, "--features", tmp_path / "bags", code=1)
    assert missing.count("missing bag") == missing.count("no feature file:") == 1
    labels = pams("check", table, "--classes", "bracs", "--no-features", code=1)
    assert labels.count("unknown label") == labels.count("Labels are matched exactly") == 1
    named = ("--slide-column", "nope", "--label-column", "nada")
    columns = pams("check", table, *own, "--no-features", *named, code=2)
    assert "no column 'nope', and no column 'nada'" in columns


def test_classes_that_are_not_ordered_yet(cohort: Path, tmp_path: Path):
    pams("classes", "init", tmp_path / "mine.yaml", "--from", cohort / "manifest.csv")
    assert "they are comments: order them" in pams("classes", "show", tmp_path / "mine.yaml", code=2)


def test_what_a_richer_model_derives_from_is_public():
    from pams_mil import models

    assert {"Embedded", "MILModel", "BagBatch", "create_model"} <= set(models.__all__)
