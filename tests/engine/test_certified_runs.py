"""Certificates of trained runs: who may calibrate, what `predict` applies and refuses, what export carries."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.cohort import make_cohort, run, settings
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data.tables import read_table
from pams_mil.engine import load, predict
from pams_mil.engine.prediction.predict import identity_of
from pams_mil.errors import CertificateError
from pams_mil.evaluate.certify import Certificate, apply_certificate
from pams_mil.view.opening import Asked, open_session


def pams(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def flat(result):
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """The tiny cohort, its test slides in calib."""
    folder = make_cohort(tmp_path_factory.mktemp("calibrated"))
    text = (folder / "manifest.csv").read_text()
    (folder / "manifest.csv").write_text(text.replace(",test,", ",calib,").replace(",test\n", ",calib\n"))
    return folder


@pytest.fixture(scope="module")
def runs(cohort, tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    kinds = {"chosen": {}, "last": {"select": "last"}, "other": {"seed": 1}}
    return {name: run(settings(cohort, epochs=1, **changes), home / name) for name, changes in kinds.items()}


@pytest.fixture(scope="module")
def certified(runs):
    pams("certify", runs["chosen"], "--alpha", "0.3")
    return runs["chosen"] / "certificate.json"


def test_the_part_calib_is_the_default_and_the_run_keeps_the_certificate(runs, certified):
    made = Certificate.load(certified)
    assert (made.n, made.reservations) == (8, ())
    assert made.weights == (identity_of(load(runs["chosen"])),)
    assert (runs["chosen"] / "certificate.html").exists()


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [("chosen", "train", "12 of 12 patients trained the model"), ("last", "train", "trained the model"),
     ("chosen", "val", "8 of 8 patients chose its epoch")],
)  # fmt: skip
def test_patients_that_trained_or_chose_are_refused(runs, name, split, message, tmp_path):
    words = ("certify", runs[name], "--alpha", "0.3", "--calibration", split, "--out", tmp_path / "out")
    text = flat(pams(*words, code=2))
    assert message in text
    assert "pams split --calib-share" in text
    assert not (tmp_path / "out").exists()
    shown = pams(*words, "--seen-patients")
    assert "Not a guarantee" in shown.output
    page = (tmp_path / "out" / "certificate.html").read_text()
    assert "Not a guarantee." in page
    assert message in page


def test_val_calibrates_where_it_chose_nothing(runs):
    found = json.loads(pams("certify", runs["last"], "--alpha", "0.3", "--calibration", "val", "--json").stdout)
    assert (found["n"], found["is_guarantee"]) == (8, True)


def test_without_calib_the_default_is_an_unused_val_or_nothing(tmp_path):
    folder = make_cohort(tmp_path / "cohort")
    chosen = run(settings(folder, epochs=1), tmp_path / "chosen")
    last = run(settings(folder, epochs=1, select="last"), tmp_path / "last")
    text = flat(pams("certify", chosen, "--alpha", "0.3", code=2))
    assert "has no split 'calib', and the split 'val' chose the epoch" in text
    assert json.loads(pams("certify", last, "--alpha", "0.3", "--json").stdout)["n"] == 8
    assert "must be a split" in flat(pams("certify", last, "--alpha", "0.3", "--calibration", "calibb", code=2))


def test_another_table_is_held_against_the_training_patients(cohort, runs, tmp_path):
    lines = (cohort / "manifest.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join([lines[0], *(line for line in lines if ",calib" in line)]) + "\n")
    words = (
        "certify",
        runs["chosen"],
        "--alpha",
        "0.3",
        "--features",
        cohort / "bags",
        "--out",
        tmp_path / "o",
        "--json",
    )
    assert json.loads(pams(*words, "--calibration", tmp_path / "new.csv").stdout)["is_guarantee"] is True
    (tmp_path / "mixed.csv").write_text("\n".join(lines) + "\n")  # its split calib is taken
    assert json.loads(pams(*words, "--calibration", tmp_path / "mixed.csv").stdout)["n"] == 8
    (tmp_path / "mixed.csv").write_text("\n".join(lines).replace(",calib", ",") + "\n")
    assert "trained" in flat(pams(*words, "--calibration", tmp_path / "mixed.csv", code=2))


def test_predict_writes_what_was_certified(cohort, runs, certified, tmp_path):
    words = ("predict", runs["chosen"], cohort / "manifest.csv", "--features", cohort / "bags")
    shown = pams(*words, "--certificate", certified, "--out", tmp_path)
    assert "At most 30 % of patients are called below their label" in flat(shown)
    table = read_table(tmp_path / "predictions.csv")
    found = predict([runs["chosen"]], cohort / "manifest.csv", features=cohort / "bags")
    calls = apply_certificate(Certificate.load(certified), found.probabilities[-1], found.sample.patients)
    for name, cells in calls.columns().items():
        assert table[name] == cells
    names = found.hierarchy.names()
    assert table["prediction"] == [names[row] for row in found.probabilities[-1].argmax(1)]
    assert (np.asarray(calls.low) <= calls.high).all()
    pams(*words, "--certificate", certified, "--out", tmp_path / "unlabelled", "--no-labels")
    assert read_table(tmp_path / "unlabelled" / "predictions.csv")["certified"] == table["certified"]


def test_the_call_of_a_patient_with_a_slide_that_failed_is_withheld(cohort, runs, certified, tmp_path):
    """The missing slide may be the most urgent one."""
    bags = shutil.copytree(cohort / "bags", tmp_path / "bags")
    (bags / "test-1.h5").write_bytes(b"truncated")
    rows = ["slide_id,patient_id", "test-0,torn", "test-1,torn", "test-2,whole", "test-3,whole"]
    (tmp_path / "new.csv").write_text("\n".join(rows) + "\n")
    words = ("predict", runs["chosen"], tmp_path / "new.csv", "--features", bags, "--certificate", certified)
    pams(*words, "--out", tmp_path / "out", code=1)
    table = read_table(tmp_path / "out/predictions.csv")
    assert table["slide_id"] == ["test-0", "test-2", "test-3"]
    assert [bool(cell) for cell in table["certified"]] == [False, True, True]


def test_other_weights_a_changed_file_and_other_classes_are_refused(cohort, runs, certified, tmp_path):
    words = (cohort / "manifest.csv", "--features", cohort / "bags", "--out", tmp_path / "out")
    for others in ([runs["other"]], [runs["chosen"], runs["other"]]):
        text = flat(pams("predict", *others, *words, "--certificate", certified, code=2))
        assert "Other weights make other mistakes" in text
    changed = tmp_path / "changed.json"
    changed.write_text(certified.read_text().replace('"kappa_low"', '"kappa_Low"'))
    assert "was changed after" in flat(pams("predict", runs["chosen"], *words, "--certificate", changed, code=2))
    assert not (tmp_path / "out").exists()
    other = make_cohort(tmp_path / "cohort")
    (other / "classes.yaml").write_text("name: tiny\nclasses:\n  Low: [a]\n  High: [b, c, d]\n")
    model = run(settings(other, epochs=1), tmp_path / "run")
    assert "Names, groups and ranks" in flat(pams("predict", model, *words, "--certificate", certified, code=2))


def test_several_runs_are_certified_as_their_average(cohort, runs, tmp_path):
    both = (runs["chosen"], runs["other"])
    pams("certify", *both, "--alpha", "0.3", "--out", tmp_path)
    words = (cohort / "manifest.csv", "--features", cohort / "bags", "--out", tmp_path / "p")
    pams("predict", *reversed(both), *words, "--certificate", tmp_path / "certificate.json")
    assert "Other weights" in flat(
        pams("predict", runs["other"], *words, "--certificate", tmp_path / "certificate.json", code=2)
    )


def test_export_and_card_carry_it_and_the_exported_weights_are_the_same(cohort, runs, certified, tmp_path):
    pams("export", runs["chosen"], "--out", tmp_path / "export", "--no-onnx")
    card = (tmp_path / "export" / "README.md").read_text()
    assert "## Certificate: a guarantee" in card
    assert "At most 30 % of patients are called below their label" in card
    words = (cohort / "manifest.csv", "--features", cohort / "bags", "--out", tmp_path / "p")
    pams("predict", tmp_path / "export", *words, "--certificate", tmp_path / "export" / "certificate.json")
    assert (tmp_path / "p" / "predictions.csv").exists()
    text = flat(pams("certify", tmp_path / "export", "--alpha", "0.3", code=2))
    assert "name one with --calibration" in text


def test_export_leaves_out_a_certificate_of_other_weights(runs, certified, tmp_path):
    target = Path(runs["other"]) / "certificate.json"
    target.write_text(certified.read_text())
    shown = pams("export", runs["other"], "--out", tmp_path / "export", "--no-onnx")
    assert "left out: The certificate holds for the weights" in flat(shown)
    assert not (tmp_path / "export" / "certificate.json").exists()
    assert "pams certify" in (tmp_path / "export" / "README.md").read_text()
    target.unlink()


def test_calibrated_probabilities_have_a_certificate_of_their_own(tmp_path):
    cohort = make_cohort(tmp_path / "cohort")
    text = re.sub(r"(?m)^(test-.*),test\b", r"\1,calib", (cohort / "manifest.csv").read_text())
    (cohort / "manifest.csv").write_text(re.sub(r"(?m)^(train-[4-7],.*),train\b", r"\1,val", text))
    last = run(settings(cohort, epochs=40, select="last", lr=1e-2), tmp_path / "last")
    pams("calibrate", last)
    words = ("certify", last, "--alpha", "0.3", "--calibrated")
    assert "fitted its probability calibration" in flat(pams(*words, "--calibration", "val", code=2))
    pams(*words)
    table = (cohort / "manifest.csv", "--features", cohort / "bags", "--certificate", last / "certificate.json")
    assert "Other weights" in flat(pams("predict", last, *table, "--out", tmp_path / "raw", code=2))
    pams("predict", last, *table, "--calibrated", "--out", tmp_path / "p")
    assert "certified" in read_table(tmp_path / "p" / "predictions_calibrated.csv")
    pams("export", last, "--out", tmp_path / "export", "--no-onnx")
    assert "predict with --calibrated" in (tmp_path / "export" / "README.md").read_text()


def test_a_table_that_states_its_weights_is_not_viewed_under_a_certificate_of_others(cohort, runs, certified, tmp_path):
    words = (cohort / "manifest.csv", "--split", "val", "--features", cohort / "bags", "--out")
    for name in ("chosen", "other"):
        pams("predict", runs[name], *words, tmp_path / name)
    asked = Asked(
        [tmp_path / "chosen/predictions.csv"], classes=[str(cohort / "classes.yaml")], certificate=certified,
        reviews=tmp_path / "reviews",
    )  # fmt: skip
    assert not [note for note in open_session(asked).notes if "certified weights" in note]
    with pytest.raises(CertificateError, match="holds for the weights"):
        open_session(replace(asked, paths=[tmp_path / "other/predictions.csv"]))
    (tmp_path / "other/predictions.json").unlink()  # then nobody knows
    unknown = open_session(replace(asked, paths=[tmp_path / "other/predictions.csv"]))
    assert [note for note in unknown.notes if "certified weights" in note]
