"""Every verb and every role of a patient: what is refused, noted, marked or allowed is what the table says."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from tests.engine.cohort import make_cohort, run, settings
from typer.testing import CliRunner

from pams_mil.cli.main import VERBS, app
from pams_mil.data.exposure import MARK, ROLES, RULES, Exposure, parse_roles, role_cell
from pams_mil.data.tables import read_table
from pams_mil.engine.prediction import predict as predict_module
from pams_mil.engine.prediction.predict import load, predict
from pams_mil.engine.prediction.scored_runs import stored_predictions
from pams_mil.engine.run.cv_folder import CrossValidationFolder
from pams_mil.engine.run.folder import RunFolder
from pams_mil.evaluate.certify import Certificate
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.sidecar import OUT_OF_FOLD

PURPOSES = {
    "audit": "test scores", "evaluate": "test scores", "export": "test scores", "certify": "guarantee",
    "monitor": "monitoring", "view": "viewing", "predict": None,
}  # fmt: skip
"""The verbs that use patients for something; `predict` only writes down which of them the model has seen."""
WRITERS = {"train", "cv", "tune", "bench", "calibrate"}
"""The verbs that give patients a role."""
WITHOUT_PATIENTS = {
    "classes", "demo", "check", "split", "pack", "unpack", "cohort", "extract", "heatmap", "init", "remix", "reveal",
}  # fmt: skip
"""The verbs that neither score, guarantee nor monitor: data, pictures of single slides, readers' own verdicts."""


def pams(*words, code=0):
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = make_cohort(tmp_path_factory.mktemp("cohort"), sizes={"calib": 12})
    return folder


@pytest.fixture(scope="module")
def trained(cohort, tmp_path_factory):
    """A run, and a certificate of it."""
    folder = run(settings(cohort, epochs=1), tmp_path_factory.mktemp("runs") / "run")
    pams("certify", folder, "--alpha", "0.3")
    return folder


def exposed(trained, folder, role):
    """The run, as if its test patients had a role."""
    shutil.copytree(trained, folder)
    rows = [(f"test-{i}", f"p-test-{i}", role) for i in range(8)]
    if role == "certify":
        certificate = Certificate.load(folder / "certificate.json")
        object.__setattr__(certificate, "exposure", certificate.exposure | Exposure.of(rows))
        certificate.write(folder / "certificate.json")
    RunFolder(folder).expose(Exposure.of(rows))
    return folder


def test_every_verb_has_an_entry():
    """A new verb fails here until it says whether it uses patients, and for what."""
    names = {module if name == "app" else name for _, module, name in VERBS}
    assert names == set(PURPOSES) | WRITERS | WITHOUT_PATIENTS
    assert not set(PURPOSES) & (WRITERS | WITHOUT_PATIENTS)


def test_every_purpose_decides_on_every_role():
    assert all(set(rules) == set(ROLES) for rules in RULES.values())
    assert {purpose for purpose in PURPOSES.values() if purpose} == set(RULES)


@pytest.mark.parametrize("role", ROLES)
def test_every_verb_obeys_the_table(cohort, trained, tmp_path, role):
    folder = exposed(trained, tmp_path / "run", role)
    table = ("--features", cohort / "bags", "--split", "test")
    pams("predict", folder, cohort / "manifest.csv", *table)  # allowed, and written down
    file = folder / "predictions/manifest-test.csv"
    assert set(read_table(file)["exposure"]) == {role}
    stored = stored_predictions(load(folder), "test")
    assert [RULES["viewing"][one] for roles in stored.roles for one in roles] == ["badge"] * 8
    words = {
        "evaluate": ("evaluate", folder, "--resamples", 0),
        "audit": ("audit", file, "--classes", cohort / "classes.yaml", "--resamples", 0, "--out", tmp_path / "audit"),
        "certify": ("certify", folder, "--calibration", "test", "--alpha", "0.4", "--out", tmp_path / "certified"),
        "monitor": ("monitor", folder / "certificate.json", file, "--out", tmp_path / "monitor.json"),
    }
    for verb, command in words.items():
        action = RULES[PURPOSES[verb]][role]
        shown = CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(word) for word in command])
        text = " ".join(shown.output.split())
        assert (shown.exit_code == 2) == (action == "refuse"), (verb, text)
        assert ("8 of 8 patients" in text) == (action in ("refuse", "note")), (verb, text)
        if action == "refuse":
            assert "--seen-patients" in text
            marked = CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(one) for one in (*command, "--seen-patients")])
            assert marked.exit_code in (0, 1), marked.output
            assert MARK in marked.output, verb
    marks = {
        "test scores": [folder / "reports/manifest-test/scores.json", folder / "reports/manifest-test/report.html",
                        tmp_path / "audit/scores.json", tmp_path / "audit/report.html"],
        "guarantee": [tmp_path / "certified/certificate.json", tmp_path / "certified/certificate.html"],
        "monitoring": [tmp_path / "monitor.json"],
    }  # fmt: skip
    for purpose, files in marks.items():
        for path in files:
            assert (MARK in path.read_text()) == (RULES[purpose][role] == "refuse"), path
    pams("export", folder, "--out", tmp_path / "export", "--no-onnx")
    card = (tmp_path / "export/README.md").read_text()
    refused = RULES["test scores"][role] == "refuse"
    assert ("## Not test scores: patients that the model has seen" in card) == refused
    assert ("## Test scores, with 95 % intervals" in card) != refused
    again = predict([tmp_path / "export"], cohort / "manifest.csv", features=cohort / "bags", split="test")
    assert {role_cell(roles) for roles in again.sample.roles} == {role}  # an export remembers


def test_training_writes_down_who_trained_and_who_chose_the_epoch(cohort, trained, tmp_path):
    found = predict([trained], cohort / "manifest.csv", features=cohort / "bags")
    roles = {split: {role_cell(one) for one, of in zip(found.sample.roles, found.splits, strict=True) if of == split}
             for split in ("train", "val", "test", "calib")}  # fmt: skip
    assert roles == {"train": {"train"}, "val": {"select"}, "test": {"none"}, "calib": {"none"}}
    last = run(settings(cohort, epochs=1, select="last"), tmp_path / "last")
    found = predict([last], cohort / "manifest.csv", features=cohort / "bags", split="val")
    assert {role_cell(one) for one in found.sample.roles} == {"none"}  # the last epoch is taken whatever val says
    (trained / "exposure.json").rename(tmp_path / "kept.json")
    assert "Cannot determine which patients" in pams("evaluate", trained, code=2)
    shutil.copy(tmp_path / "kept.json", trained / "exposure.json")
    text = (trained / "exposure.json").read_text()
    assert "p-train" not in text
    (trained / "exposure.json").write_text(text.replace('"train"', '"none"', 1))
    assert "was changed after it was written" in pams("evaluate", trained, code=2)
    shutil.copy(tmp_path / "kept.json", trained / "exposure.json")


def test_a_table_that_calls_training_slides_test_is_refused(cohort, trained, tmp_path):
    lines = (cohort / "manifest.csv").read_text().splitlines()
    renamed = [re.sub(r",train\b", ",test", line) for line in lines if line.startswith("train-")]
    (tmp_path / "other.csv").write_text("\n".join([lines[0], *renamed]).replace("p-train", "P-TRAIN ") + "\n")
    words = ("evaluate", trained, "--manifest", tmp_path / "other.csv", "--features", cohort / "bags")
    assert "12 of 12 patients trained the model" in pams(*words, "--resamples", 0, code=2)  # in any spelling


def test_labels_that_changed_after_training_are_named(cohort, tmp_path):
    folder = tmp_path / "cohort"
    shutil.copytree(cohort, folder)
    done = run(settings(folder, epochs=1), tmp_path / "run")
    assert "changed after training" not in pams("evaluate", done, "--resamples", 0)
    table = (folder / "manifest.csv").read_text()
    (folder / "manifest.csv").write_text(table.replace("test-1,p-test-1,b,", "test-1,p-test-1,d,"))
    text = pams("evaluate", done, "--resamples", 0)
    assert "labels of 1 of 8 slides were changed after training: 'test-1: was b, is now d'" in text
    for name in ("scores.json", "report.html"):
        assert "changed after training" in (done / "reports/manifest-test" / name).read_text()
    # More epochs do not make the new labels those of the training.
    pams("train", "--resume", "epochs=2", "--out", done)
    assert "changed after training" in pams("evaluate", done, "--resamples", 0)


def test_another_hospital_needs_no_split_and_never_replaces_the_runs_own_predictions(cohort, trained, tmp_path):
    pams("evaluate", trained, "--resamples", 0)
    own = (trained / "predictions/manifest-test.csv").read_bytes()
    rows = [f"test-{i},q{i},{'abcd'[i % 4] if i < 6 else ''}" for i in range(8)]
    (tmp_path / "hospital.csv").write_text("\n".join(["slide_id,patient_id,label", *rows]) + "\n")
    words = ("--features", cohort / "bags")
    text = pams("evaluate", trained, "--manifest", tmp_path / "hospital.csv", *words, "--resamples", 0)
    assert "External validation on hospital.csv: 6 labeled slides of 6 patients; the model has seen none" in text
    assert "2 slides of hospital.csv without a label are not scored" in text
    assert (trained / "predictions/hospital-all.csv").is_file()
    same_name = tmp_path / "manifest.csv"
    same_name.write_text((tmp_path / "hospital.csv").read_text())
    pams("predict", trained, same_name, *words, "--attention")
    assert (trained / "predictions/manifest-test.csv").read_bytes() == own
    (beside,) = (trained / "predictions").glob("manifest-all-????????.csv")
    assert len(list((beside.with_suffix("") / "attention").iterdir())) == 8
    (tmp_path / "unlabeled.csv").write_text("slide_id,patient_id\ntest-0,q\n")
    text = pams("evaluate", trained, "--manifest", tmp_path / "unlabeled.csv", *words, code=2)
    assert "has a label, so there is nothing to score" in text


def test_monitor_knows_the_weights_the_patients_and_the_labels(cohort, trained, tmp_path):
    certificate, words = trained / "certificate.json", ("--features", cohort / "bags")
    pams("predict", trained, cohort / "manifest.csv", *words, "--out", tmp_path / "all")
    text = pams("monitor", certificate, tmp_path / "all/predictions.csv", code=2)
    for count, what in ((12, "trained the model"), (8, "chose its epoch"), (12, "are calibration patients")):
        assert f"{count} of 40 patients {what}" in text
    other = run(settings(cohort, epochs=1, seed=3), tmp_path / "other")
    pams("predict", other, cohort / "manifest.csv", *words, "--split", "test", "--out", tmp_path / "others")
    assert "Other weights make other mistakes" in pams(
        "monitor", certificate, tmp_path / "others/predictions.csv", code=2
    )
    pams("predict", trained, cohort / "manifest.csv", *words, "--split", "test", "--out", tmp_path / "test")
    own = (tmp_path / "test/predictions.csv").read_text()
    for name in ("label", "y_true", "pathologist"):
        (tmp_path / "foreign.csv").write_text(own.replace(",target,", f",{name},", 1))
        text = pams("monitor", certificate, tmp_path / "foreign.csv", code=2)
        assert f"--true {name}" in text
        tested = CliRunner().invoke(app, ["monitor", str(certificate), str(tmp_path / "foreign.csv"), "--true", name])
        assert "of 8 new ones" in " ".join(tested.output.split()), tested.output
        assert "is not tested" in pams("monitor", certificate, tmp_path / "foreign.csv", "--no-labels")
    head, *rows = own.splitlines()
    place = head.split(",").index("target")
    blank = [",".join([*row.split(",")[:place], "", *row.split(",")[place + 1 :]]) for row in rows]
    (tmp_path / "blank.csv").write_text("\n".join([head, *blank]) + "\n")
    assert "is not tested" in pams("monitor", certificate, tmp_path / "blank.csv")


def test_a_guarantee_needs_patients(cohort, trained, tmp_path):
    (tmp_path / "slides.csv").write_text(
        "slide_id,label\n" + "".join(f"calib-{i},{'abcd'[i % 4]}\n" for i in range(12))
    )
    words, flag = ("--features", cohort / "bags"), "--patients-are-slides"
    applied = ("predict", trained, tmp_path / "slides.csv", *words, "--certificate", trained / "certificate.json")
    assert "names no patients" in pams(*applied, "--out", tmp_path / "a", code=2)
    pams(*applied, "--out", tmp_path / "b", flag)
    made = ("certify", trained, "--alpha", "0.4", "--calibration", tmp_path / "slides.csv", *words, "--out", tmp_path)
    assert "names no patients" in pams(*made, code=2)
    pams(*made, flag)


def test_a_laxer_certificate_never_replaces_a_stricter_one(trained, tmp_path):
    run_ = shutil.copytree(trained, tmp_path / "run")
    before = (run_ / "certificate.json").read_bytes()
    assert "certificate-alpha0.5.json" in pams("certify", run_, "--alpha", "0.5")
    assert (run_ / "certificate.json").read_bytes() == before
    assert (run_ / "certificate-alpha0.5.html").is_file()
    pams("certify", run_, "--alpha", "0.25")  # stricter: it is what others find, and the old one stays
    assert (run_ / "certificate-alpha0.3.json").read_bytes() == before
    assert [bound.alpha for bound in Certificate.load(run_ / "certificate.json").bounds] == [0.25]
    pams("export", run_, "--out", tmp_path / "export", "--no-onnx")
    names = {path.name for path in (tmp_path / "export").glob("certificate*")}
    assert names == {"certificate.json", "certificate-alpha0.3.json", "certificate-alpha0.5.json"}
    card = (tmp_path / "export/README.md").read_text()
    assert card.count("## Certificate: a guarantee") == 3
    assert card.index("25 %") < card.index("50 %")


def test_the_card_has_no_scores_that_the_report_did_not_have(trained, tmp_path):
    """A report that was changed after it was written, or was put there by hand, is not handed on."""
    run_ = shutil.copytree(trained, tmp_path / "run")
    pams("evaluate", run_, "--resamples", 0)
    stored = run_ / "reports/manifest-test/scores.json"
    assert json.loads((run_ / "reports/manifest-test.json").read_text())["weights"] == [[load(run_).weights]]
    pams("export", run_, "--out", tmp_path / "one", "--no-onnx")
    assert "## Test scores, with" in (tmp_path / "one/README.md").read_text()
    content = json.loads(stored.read_text())
    content["files"][0]["levels"]["class"]["acc"] = 0.999
    stored.write_text(json.dumps(content))
    shutil.copytree(stored.parent, run_ / "reports/other")
    pams("export", run_, "--out", tmp_path / "two", "--no-onnx")
    card = (tmp_path / "two/README.md").read_text()
    assert "0.999" not in card
    assert "None yet" in card


def test_ensembles_and_other_runs_leave_nothing_in_a_member(cohort, trained, tmp_path):
    other = run(settings(cohort, epochs=1, seed=3), tmp_path / "other")
    before = sorted(path.name for path in trained.rglob("*"))
    table = (cohort / "manifest.csv", "--features", cohort / "bags", "--split", "test")
    for verb in (("predict", trained, other, *table), ("certify", trained, other, "--alpha", "0.4")):
        assert "with --out" in pams(*verb, code=2)
    assert sorted(path.name for path in trained.rglob("*")) == before
    out = ("--out", tmp_path / "out")
    pams("predict", trained, *table, *out, "--attention", "--parquet")
    text = pams("predict", other, *table, *out, code=2)
    assert "holds predictions of other weights" in text
    pams("predict", trained, *table, *out)
    assert not (tmp_path / "out/predictions.parquet").exists()


def test_rows_that_say_train_are_said_to_be_no_test(tmp_path):
    (tmp_path / "classes.yaml").write_text("name: two\nclasses: [benign, malignant]\n")
    rows = [f"s{i},p{i},{'train' if i < 4 else 'test'},{'benign' if i % 2 else 'malignant'},0.4,0.6" for i in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(["slide_id,patient_id,split,target,p_benign,p_malignant", *rows]) + "\n")
    text = pams("audit", tmp_path / "t.csv", "--classes", tmp_path / "classes.yaml", "--resamples", 0)
    assert f"{MARK}, by the column split: 4 of 8 patients trained the model" in text


def test_a_cross_validation_keeps_calibration_patients_out_of_its_folds(cohort, tmp_path):
    words = ("cv", cohort / "manifest.csv", "--classes", cohort / "classes.yaml", "--features", cohort / "bags")
    pams(*words, "--folds", 3, "--method", "ce", "--model", "abmil", "--epochs", 1, "--resamples", 0, "--workers", 1,
         "--out", tmp_path / "cv")  # fmt: skip
    table = read_table(tmp_path / "cv/manifest.csv")
    for fold in ("fold_0", "fold_1", "fold_2"):
        assert [name == "calib" for name in table[fold]] == [slide.startswith("calib-") for slide in table["slide_id"]]
    assert not any(slide.startswith("calib-") for slide in read_table(tmp_path / "cv/predictions.csv")["slide_id"])
    text = pams("certify", tmp_path / "cv", "--alpha", "0.4")  # the mean of all folds, on patients that none has seen
    assert "not a guarantee" not in text
    assert Certificate.load(tmp_path / "cv/certificate.json").n == 12
    text = pams(
        "evaluate", tmp_path / "cv", "--manifest", cohort / "manifest.csv", "--features", cohort / "bags", code=2
    )
    assert "trained the model" in text
    assert {role_cell(parse_roles(cell)) for cell in read_table(tmp_path / "cv/predictions.csv")["exposure"]} == {
        "none"
    }


def test_out_of_fold_predictions_say_whose_they_are_and_certify_no_mean(cohort, tmp_path):
    """A cross-validation without calibration patients: the bound is of its folds, and says that it is no guarantee."""
    (tmp_path / "manifest.csv").write_text(re.sub(r",calib\b", ",test", (cohort / "manifest.csv").read_text()))
    words = ("--classes", cohort / "classes.yaml", "--features", cohort / "bags", "--folds", 3, "--epochs", 1)
    pams("cv", tmp_path / "manifest.csv", *words, "--members", 2, "--reference", 0, "--resamples", 0, "--workers", 1,
         "--out", tmp_path / "cv")  # fmt: skip
    pooled = read_predictions(tmp_path / "cv/predictions.csv", cohort / "classes.yaml")
    members = [load(run) for run in CrossValidationFolder(tmp_path / "cv").runs()]
    assert sorted(pooled.weights) == sorted(one.weights for one in members)
    assert len(pooled.made_by) == 6
    assert pooled.table["split"] == OUT_OF_FOLD
    assert {role_cell(roles) for roles in pooled.roles} == {"none"}  # each row by networks that have not seen it
    seen = pooled.exposure.roles(pooled.slide_ids, pooled.patient_ids)
    assert {role_cell(roles) for roles in seen} == {"train"}  # yet all of them together have
    text = pams("certify", tmp_path / "cv", "--alpha", "0.4")
    assert "not a guarantee" in text.lower()
    assert "Each calibration patient was called by the networks of the fold that had not seen them" in text
    certificate = Certificate.load(tmp_path / "cv/certificate.json")
    assert (certificate.n, bool(certificate.reservations)) == (40, True)
    file = ("certify", tmp_path / "cv/predictions.csv", "--classes", cohort / "classes.yaml", "--alpha", "0.4")
    assert "not a guarantee" in pams(*file).lower()  # the file says it, whoever reads it
    watched = ("monitor", tmp_path / "cv/certificate.json", tmp_path / "cv/predictions.csv")
    assert "40 of 40 patients trained the model" in pams(*watched, code=2)
    scored = ("predict", tmp_path / "cv", cohort / "manifest.csv", "--features", cohort / "bags", "--split", "test")
    text = pams(*scored, "--certificate", tmp_path / "cv/certificate.json", "--out", tmp_path / "out")
    assert "not a guarantee" in text.lower()


@pytest.mark.parametrize("most", [1, 2])
def test_one_command_loads_each_checkpoint_once(cohort, trained, tmp_path, monkeypatch, most):
    loaded = []
    load = predict_module.checkpoint.load
    monkeypatch.setattr(predict_module.checkpoint, "load", lambda path: loaded.append(path) or load(path))
    runs = [trained, run(settings(cohort, epochs=1, seed=4), tmp_path / "two")][:most]
    loaded.clear()
    words = (*runs, cohort / "manifest.csv", "--features", cohort / "bags", "--classes", cohort / "classes.yaml")
    one = ("--certificate", trained / "certificate.json") if most == 1 else ()
    pams("predict", *words, *one, "--tiles", "--attention", "--split", "test", "--out", tmp_path / "out")
    assert len(loaded) == most
    loaded.clear()
    pams("evaluate", *runs, "--resamples", 0, "--out", tmp_path / "report")
    assert len(loaded) == most
    monkeypatch.setattr("pams_mil.view.serve.Server.run", lambda server: server.close())
    commands = [
        ("certify", *runs, "--alpha", "0.4", "--out", tmp_path / "certified"),
        ("view", *runs, "--no-browser", "--reviews", tmp_path / "reviews"),
        *[("export", trained, "--out", tmp_path / "export", "--onnx")][: most == 1],
    ]
    for command in commands:
        loaded.clear()
        pams(*command)
        # An export reads back what it wrote, as every checkpoint that is saved.
        assert len([path for path in loaded if path.parent in runs]) == most, command
