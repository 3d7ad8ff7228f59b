"""`pams certify` and `pams monitor` on tables of predictions, as a user types them."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.evaluate.certify.models import FLAT, TREE, model
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.evaluate.certify import Certificate, certify
from pams_mil.evaluate.certify.make import rates
from pams_mil.evaluate.certify.miss_losses import SlideReach
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions

FLAT_FILE = "name: flat\nclasses: [benign, atypical, malignant]\n"


def pams(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def flat(result):
    return " ".join(result.output.split())


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "model.csv"
    write_predictions(path, model(200))
    return path


def test_one_json_object_with_everything(table, tmp_path):
    words = ("certify", table, "--classes", "bracs", "--alpha", "0.1", "--json", "--out", tmp_path / "out")
    found = json.loads(pams(*words).stdout)
    made = certify(model(200), alpha=0.1)
    assert (found["kappa"], found["n"], found["unit"]) == (made.kappa, 200, "case")
    assert found["smallest_alpha"] == 1 / 201
    assert 0 < found["spread"]["low"] < 0.1 < found["spread"]["high"] < 0.2
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"certificate.json", "certificate.html"}
    assert Certificate.load(tmp_path / "out" / "certificate.json").kappa == made.kappa


def test_patients_are_counted_at_another_kappa_and_nothing_is_written(table, tmp_path):
    words = ("certify", table, "--classes", "bracs", "--alpha", "0.1", "--out", tmp_path / "out", "--kappa")
    least, slides = certify(model(200), alpha=0.1).kappa, SlideReach.of(model(200))
    for kappa in (0.5 * least, least, 2 * least):
        counted, expected = json.loads(pams(*words, repr(kappa), "--json").stdout), rates(slides, kappa, "case")
        assert counted["missed"] / counted["patients"] == pytest.approx(expected.missed_rate)
        assert counted["false_alarms"] / counted["patients"] == pytest.approx(expected.false_alarm_rate)
        assert counted["meets_bounds"] == (kappa >= least)
        assert counted["sentence"] in flat(pams(*words, repr(kappa)))
    assert not (tmp_path / "out").exists()


def test_words_for_people(table):
    text = flat(pams("certify", table, "--classes", "bracs", "--alpha", "0.1", "--at", "Malignant=0.05"))
    assert "a missed urgency counts as much as" in text
    assert "At most 10 % of patients are called below their label, on average" in text
    assert "At most 5 % of patients at or above Malignant are called below Malignant" in text
    assert "FEA or ADH" in text
    assert "was not checked" in text


@pytest.mark.parametrize("unit", ["case", "slide"])
@pytest.mark.parametrize("guarantee", ["mean", "0.9"])
def test_every_unit_and_guarantee(table, unit, guarantee, tmp_path):
    words = ("--alpha", "0.2", "--unit", unit, "--guarantee", guarantee, "--out", tmp_path / "out", "--json")
    found = json.loads(pams("certify", table, "--classes", "bracs", *words).stdout)
    assert found["unit"] == unit
    assert found["guarantee"] == ("mean" if guarantee == "mean" else 0.9)
    page = (tmp_path / "out" / "certificate.html").read_text()
    assert "nan" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL).lower()
    assert "not a guarantee" not in page.lower()


def test_too_small_an_alpha_is_refused_and_nothing_is_written(table, tmp_path):
    words = ("certify", table, "--classes", "bracs", "--alpha", "0.001", "--at", "IC=0.01", "--out", tmp_path / "out")
    text = flat(pams(*words, code=2))
    assert "all patients: 200 in the calibration set" in text
    assert "0.1 % takes 999, that is 799 more" in text
    assert "patients at or above IC" in text
    assert not (tmp_path / "out").exists()


def test_rows_that_trained_or_chose_are_refused_unless_it_is_no_guarantee(tmp_path):
    found = model(120)
    path = tmp_path / "all.csv"
    splits = np.array(["train", "val", "calib"])[found.patient % 3].tolist()
    write_predictions(path, found, splits=splits)
    words = ("certify", path, "--classes", "bracs", "--alpha", "0.1")
    assert "40 of 120 patients trained the model" in flat(pams(*words, code=2))
    assert "40 of 40 patients chose its epoch" in flat(pams(*words, "--calibration", "val", code=2))
    only = json.loads(pams(*words, "--calibration", "calib", "--json").stdout)
    assert (only["n"], only["is_guarantee"]) == (40, True)
    shown = pams(*words, "--seen-patients", "--out", tmp_path / "out")
    assert "Not a guarantee" in shown.output
    assert "Not a guarantee." in (tmp_path / "out" / "certificate.html").read_text()
    assert json.loads((tmp_path / "out" / "certificate.json").read_text())["is_guarantee"] is False
    assert "no row has split = 'tset'" in flat(pams(*words, "--calibration", "tset", code=2))


def test_a_table_of_another_tool(tmp_path):
    """CLAM numbers its classes and names no patients; the certificate says what that means."""
    found = model(150, hierarchy=FLAT, most=1)
    (tmp_path / "classes.yaml").write_text(FLAT_FILE)
    with (tmp_path / "clam.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["slide_id", "Y", "Y_hat", "p_0", "p_1", "p_2"])
        for slide, t, r, p in zip(found.slide_ids, found.target, found.predicted, found.probabilities, strict=True):
            writer.writerow([slide, float(t), float(r), *map(repr, p.tolist())])
    words = ("certify", tmp_path / "clam.csv", "--classes", tmp_path / "classes.yaml", "--alpha", "0.1")
    order = ("--index-order", "benign,atypical,malignant")
    assert "names no patients, and the guarantee counts patients" in flat(pams(*words, *order, code=2))
    shown = pams(*words, *order, "--patients-are-slides", "--json")
    assert json.loads(shown.stdout)["kappa"] == certify(replace(found, patient_ids=None), alpha=0.1).kappa
    assert any("own patient" in note for note in json.loads(shown.stdout)["notes"])
    assert "--index-order" in flat(pams(*words, code=2))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to bound"),
        (("--alpha", "1.5"), "above 0 and below 1"),
        (("--alpha", "nan"), "above 0 and below 1"),
        (("--at", "Malignant"), "--at must be CLASS=SHARE"),
        (("--at", "Malignent=0.1"), "Did you mean 'Malignant'"),
        (("--at", "N=0.1"), "nothing can be called below it"),
        (("--alpha", "0.1", "--guarantee", "sure"), "'mean' or a confidence"),
        (("--alpha", "0.1", "--unit", "patient"), "'case', 'slide'"),
        (("--alpha", "0.1", "--prevalence", "N=1"), "all classes of one level"),
        (("--alpha", "0.1", "--calibration", "calib"), "no row has split"),
    ],
)
def test_complaints(table, words, message):
    assert message in flat(pams("certify", table, "--classes", "bracs", *words, code=2))


def test_complaints_about_the_table(tmp_path, table):
    assert "needs --classes" in flat(pams("certify", table, "--alpha", "0.1", code=2))
    assert "There is no file" in flat(
        pams("certify", tmp_path / "x.csv", "--classes", "bracs", "--alpha", "0.1", code=2)
    )
    write_predictions(table, replace(model(30), probabilities=None))
    assert "no operating point to choose" in flat(
        pams("certify", table, "--classes", "bracs", "--alpha", "0.1", code=2)
    )
    text = table.read_text().splitlines()
    table.write_text(
        "\n".join([text[0] + "".join(f",p_{n}" for n in TREE.names()), *(f"{t},nan,0,0,0,0,0,1" for t in text[1:])])
    )
    assert "not finite" in flat(pams("certify", table, "--classes", "bracs", "--alpha", "0.1", code=2))


def test_a_prevalence_is_on_the_page(tmp_path, table):
    shares = {"Benign": 0.8, "Atypical": 0.15, "Malignant": 0.05}
    options = [word for name, share in shares.items() for word in ("--prevalence", f"{name}={share}")]
    pams("certify", table, "--classes", "bracs", "--alpha", "0.1", *options, "--out", tmp_path / "out")
    page = (tmp_path / "out" / "certificate.html").read_text()
    assert "was re-weighted to the shares Benign 80 %, Atypical 15 %, Malignant 5 %" in page
    assert "upper end" in page
    assert "Not a guarantee." in page


def test_infinity_is_drawn_and_written(tmp_path):
    (tmp_path / "classes.yaml").write_text(FLAT_FILE)
    blind = Predictions("m", FLAT, [f"s{i}" for i in range(30)], np.full(30, 2), np.zeros(30, int), np.eye(3)[[0] * 30])
    write_predictions(tmp_path / "m.csv", blind)
    words = ("certify", tmp_path / "m.csv", "--classes", tmp_path / "classes.yaml", "--alpha", "0.05")
    found = json.loads(pams(*words, "--patients-are-slides", "--json", "--out", tmp_path / "out").stdout)
    assert found["kappa"] == "inf"
    assert "κ = ∞" in (tmp_path / "out" / "certificate.html").read_text()


def test_hostile_names_are_only_text(tmp_path):
    names = ["<script>alert(1)</script>", "[red]b", "{{ 7*7 }}"]
    (tmp_path / "classes.yaml").write_text(f"name: <b>x</b>\nclasses: {json.dumps(names)}\n")
    from pams_mil import ClassHierarchy

    hostile = model(60, hierarchy=ClassHierarchy.load(tmp_path / "classes.yaml"))
    write_predictions(tmp_path / "m.csv", hostile)
    words = ("certify", tmp_path / "m.csv", "--classes", tmp_path / "classes.yaml", "--alpha", "0.2")
    shown = pams(*words, "--at", f"{names[2]}=0.3", "--out", tmp_path / "out")
    assert "[red]b" in shown.output
    page = (tmp_path / "out" / "certificate.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert "{{ 7*7 }}" in page


def test_monitor_with_labels_without_and_broken(tmp_path, table):
    pams("certify", table, "--classes", "bracs", "--alpha", "0.1", "--at", "Malignant=0.1", "--out", tmp_path)
    certificate = tmp_path / "certificate.json"
    write_predictions(tmp_path / "new.csv", model(150, seed=7))
    text = flat(pams("monitor", certificate, tmp_path / "new.csv"))
    assert "No evidence against the guarantee" in text
    assert "no sign that they differ from the calibration patients at the level 0.01" in text
    write_predictions(tmp_path / "worse.csv", model(300, seed=8, shift=-1.5))
    broken = pams("monitor", certificate, tmp_path / "worse.csv", "--json", "--out", tmp_path / "watch.json", code=1)
    assert json.loads(broken.stdout)["violated"] is True
    assert json.loads((tmp_path / "watch.json").read_text()) == json.loads(broken.stdout)
    assert "The guarantee is violated" in flat(pams("monitor", certificate, tmp_path / "worse.csv", code=1))
    rows = [line.split(",") for line in (tmp_path / "worse.csv").read_text().splitlines()]
    at = [rows[0].index(name) for name in ("target", "prediction")]
    (tmp_path / "blank.csv").write_text(
        "\n".join(",".join(cell for i, cell in enumerate(row) if i not in at) for row in rows) + "\n"
    )
    renamed = (tmp_path / "worse.csv").read_text().replace("target", "label", 1)
    (tmp_path / "label.csv").write_text(renamed)
    text = flat(pams("monitor", certificate, tmp_path / "label.csv", code=2))
    assert "Name it with --true label" in text  # labels under another name are not silently ignored
    text = flat(pams("monitor", certificate, tmp_path / "label.csv", "--true", "label", "--id", "slide_id",
                     "--pred", "prediction", "--patient", "patient_id", code=1))  # fmt: skip
    assert "The guarantee is violated" in text
    text = flat(pams("monitor", certificate, tmp_path / "blank.csv"))
    assert "they differ from the calibration patients at the level 0.01" in text
    assert "the guarantee itself is not tested" in text
    lacking = flat(pams("monitor", certificate, tmp_path / "blank.csv", "--patient", "patient", code=2))
    assert "has no column 'patient'" in lacking  # slides must not pass for patients
    (tmp_path / "other.csv").write_text("slide_id,p_x\ns,1\n")
    assert "expected one column p_<class> per class: 'p_N'" in flat(
        pams("monitor", certificate, tmp_path / "other.csv", code=2)
    )


def test_every_subgroup_gets_its_own_certificate(tmp_path):
    """Each holds for its own patients: it is what the patients of that group alone certify."""
    found = model(300)
    sites = ["north" if patient % 3 else "south/2" for patient in found.patient.tolist()]
    path = tmp_path / "sites.csv"
    write_predictions(path, replace(found, tags={"site": sites}))
    words = ("certify", path, "--classes", "bracs", "--alpha", "0.2", "--by", "site")
    told = json.loads(pams(*words, "--out", tmp_path / "out", "--json").stdout)
    assert told["by"] == "site"
    assert list(told["certificates"]) == list(dict.fromkeys(sites))
    for group, folder in (("north", "north"), ("south/2", "south%2F2")):
        alone = certify(found.where(np.array(sites) == group), alpha=0.2)
        written = Certificate.load(tmp_path / "out" / "certificates" / folder / "certificate.json")
        assert told["certificates"][group]["kappa"] == written.kappa == alone.kappa
        assert written.n == alone.n
        assert any(group in note for note in written.notes)
        page = (tmp_path / "out" / "certificates" / folder / "certificate.html").read_text()
        assert f"of {alone.n} patients" in page
    text = flat(pams(*words))
    assert "site north" in text
    assert "site south/2" in text
    assert "hospital" in flat(pams(*words[:-1], "hospital", code=2))
    write_predictions(path, replace(found, tags={"site": ["", *sites[1:]]}))
    assert "1 of" in flat(pams(*words, code=2))
    few = ["rare" if patient < 3 else "many" for patient in found.patient.tolist()]
    write_predictions(path, replace(found, tags={"site": few}))
    assert "1 of 2 subgroups have too few calibration patients: 'rare'" in flat(pams(*words, code=2))


def test_monitor_refuses_a_changed_certificate(tmp_path, table):
    pams("certify", table, "--classes", "bracs", "--alpha", "0.1", "--out", tmp_path)
    path = tmp_path / "certificate.json"
    path.write_text(path.read_text().replace('"alpha": 0.1', '"alpha": 0.01'))
    assert "was changed after it was written" in flat(pams("monitor", path, table, code=2))
