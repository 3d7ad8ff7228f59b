"""`pams audit` as a user meets it: every layout, every complaint, every output."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.reference.figure_1 import figure_1_models
from tests.strategies import random_predictions
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.engine.run.cv_folder import model_names as _names
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions

TREE = ClassHierarchy.load("bracs")
NAMES = TREE.names()
FIGURE_1 = "name: figure-1\nclasses: [Benign, Atypical, Malignant]\n"


def run(*arguments, code=0):
    """An audit, with resamples enough to print every interval unless the test asks for its own number."""
    few = [] if "--resamples" in arguments else ["--resamples", "100"]
    result = CliRunner().invoke(app, ["audit", *map(str, arguments), *few])
    assert result.exit_code == code, result.output
    return result


def made(n=60, *, seed=0, name="model", bias=0.0, slides=None):
    rng = np.random.default_rng(seed)
    target = np.arange(n) % 7
    logits = -0.8 * np.abs(np.arange(7) - target[:, None]) + rng.normal(0, 1, (n, 7)) + bias * np.arange(7)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return Predictions(
        name, TREE, slides or [f"s{i:03d}" for i in range(n)], target, p.argmax(1), p, [f"p{i // 2}" for i in range(n)],
        {"findings": ["mixed" if i % 3 else "pure" for i in range(n)]},
    )  # fmt: skip


@pytest.fixture
def predictions(tmp_path):
    path = tmp_path / "model.csv"
    write_predictions(path, made())
    return path


def table(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_figure_1_gives_the_papers_numbers(tmp_path):
    classes = tmp_path / "classes.yaml"
    classes.write_text(FIGURE_1)
    paths = [tmp_path / f"{model.name}.csv" for model in figure_1_models()]
    for path, model in zip(paths, figure_1_models(), strict=True):
        write_predictions(path, model)
    found = json.loads(run(*paths, "--classes", classes, "--json").stdout)
    a, b = (file["levels"]["class"] for file in found["files"])
    assert [a["ascc"], b["ascc"]] == pytest.approx([0.9209167, 0.92725], abs=1e-7)
    assert [a["asmc"], b["asmc"]] == pytest.approx([0.5144928, 0.7766667], abs=1e-7)
    assert [a["ecc"], b["ecc"]] == pytest.approx([0.935, 0.9341667], abs=1e-7)
    assert [a["emc"], b["emc"]] == pytest.approx([0.8043478, 0.92], abs=1e-7)
    assert [a["risk"], b["risk"]] == pytest.approx([3.326087, 1.82], abs=1e-6)
    assert [a["severe_errors"], b["severe_errors"]] == [15, 6]
    assert [a["acc"], b["acc"]] == [0.885, 0.875]
    assert found["verdicts"][0].startswith("B operates at a different point from A: it misses 4.5 points less")
    assert "neither can be called safer" in found["verdicts"][0]
    assert all("matched" not in level for level in found["comparisons"][0]["levels"].values())
    assert a["curve"] is None
    assert "urgency_auc" not in a


def test_json_has_the_documented_keys(predictions):
    found = json.loads(run(predictions, "--classes", "bracs", "--json").stdout)
    levels = found["files"][0]["levels"]
    assert list(levels) == ["group", "class"]
    documented = {"acc", "balanced_acc", "auc", "ascc", "asmc", "ecc", "emc", "risk", "severe_errors", "missed_rate",
                "false_alarm_rate", "n", "errors", "ci"}  # fmt: skip
    for scores in levels.values():
        assert documented <= set(scores)
        for metric in ("acc", "auc", "ascc", "asmc", "missed_rate"):
            low, high = scores["ci"][metric]
            assert low <= scores[metric] <= high


def test_a_perfect_model_has_no_errors_in_every_form(tmp_path):
    perfect = made()
    path = tmp_path / "perfect.csv"
    write_predictions(path, Predictions("perfect", TREE, perfect.slide_ids, perfect.target, perfect.target))
    scores = json.loads(run(path, "--classes", "bracs", "--json").stdout)["files"][0]["levels"]["class"]
    assert scores["asmc"] is None
    assert scores["no_errors"] is True
    assert "no errors" in run(path, "--classes", "bracs").stdout


def test_out_writes_three_files_that_agree(predictions, tmp_path):
    out = tmp_path / "report"
    printed = json.loads(run(predictions, "--classes", "bracs", "--json", "--out", out).stdout)
    assert sorted(file.name for file in out.iterdir()) == ["report.html", "scores.json", "severe_errors.csv"]
    assert json.loads((out / "scores.json").read_text()) == printed
    rows = list(csv.DictReader(io.StringIO((out / "severe_errors.csv").read_text())))
    assert len(rows) == printed["files"][0]["levels"]["class"]["severe_errors"] > 0
    gravity = [float(row["gravity"]) for row in rows]
    assert gravity == sorted(gravity, reverse=True)


def test_tag_shows_the_subset_beside_the_whole(predictions):
    file = json.loads(run(predictions, "--classes", "bracs", "--json", "--tag", "findings=mixed").stdout)["files"][0]
    assert file["slides"] == 60
    assert file["subset"]["slides"] == 40
    assert file["subset"]["levels"]["class"]["n"] == 40
    assert "Values there: 'mixed', 'pure'" in flat(
        run(predictions, "--classes", "bracs", "--tag", "findings=x", code=2)
    )
    assert "COLUMN=VALUE" in run(predictions, "--classes", "bracs", "--tag", "findings", code=2).output


def test_clam_needs_the_order_of_its_indices(tmp_path):
    model = made()
    order = list(reversed(NAMES))  # someone's own order, most urgent first
    index = [order.index(label) for label in NAMES]
    rows = [
        [slide, float(index[t]), index[r], *[repr(float(p[NAMES.index(label)])) for label in order]]
        for slide, t, r, p in zip(model.slide_ids, model.target, model.predicted, model.probabilities, strict=True)
    ]
    path = table(tmp_path / "fold_0.csv", ["slide_id", "Y", "Y_hat", *[f"p_{i}" for i in range(7)]], rows)
    found = json.loads(run(path, "--classes", "bracs", "--json", "--index-order", ",".join(order)).stdout)["files"][0]
    ours = tmp_path / "ours.csv"
    write_predictions(ours, model)
    expected = json.loads(run(ours, "--classes", "bracs", "--json").stdout)["files"][0]
    assert found["layout"] == "CLAM evaluation"
    assert found["levels"]["class"]["confusion"] == expected["levels"]["class"]["confusion"]
    for key in ("acc", "auc", "ascc", "asmc"):
        assert found["levels"]["class"][key] == pytest.approx(expected["levels"]["class"][key])
    assert "never guessed" in flat(run(path, "--classes", "bracs", code=2))
    assert "every class once" in flat(run(path, "--classes", "bracs", "--index-order", "N,PB", code=2))


def test_stamp_is_recognized(tmp_path):
    model = made()
    header = ["PATIENT", "subtype", "pred", *[f"subtype_{label}" for label in NAMES], "loss"]
    rows = [
        [slide, NAMES[t], NAMES[r], *map(repr, p.tolist()), "0.1"]
        for slide, t, r, p in zip(model.slide_ids, model.target, model.predicted, model.probabilities, strict=True)
    ]
    found = json.loads(run(table(tmp_path / "patient-preds.csv", header, rows), "--classes", "bracs", "--json").stdout)
    assert found["files"][0]["layout"] == "STAMP patient-preds"
    assert found["files"][0]["levels"]["class"]["acc"] == pytest.approx(np.mean(model.target == model.predicted))


def test_any_table_with_named_columns(tmp_path):
    rows = [["a", "x", "IC", "N"], ["b", "x", "N", "N"]]
    path = table(tmp_path / "t.tsv", ["case", "who", "gold", "guess"], rows)
    options = ("--classes", "bracs", "--true", "gold", "--pred", "guess", "--id", "case", "--patient", "who", "--json")
    file = json.loads(run(path, *options).stdout)["files"][0]
    assert (file["slides"], file["patients"], file["levels"]["class"]["severe_errors"]) == (2, 1, 1)
    assert "different labels" in file["notes"][0]


def test_parquet_equals_csv(predictions, tmp_path):
    import pyarrow.csv
    import pyarrow.parquet

    read = pyarrow.csv.read_csv(predictions)
    pyarrow.parquet.write_table(read, tmp_path / "model.parquet")
    one, two = (run(path, "--classes", "bracs", "--json").stdout for path in (predictions, tmp_path / "model.parquet"))
    assert json.loads(one) == json.loads(two)


def test_several_files_are_compared_with_the_reference(tmp_path):
    paths = []
    for number, bias in enumerate((0.0, 0.3, -0.3)):
        paths.append(tmp_path / f"m{number}.csv")
        write_predictions(paths[-1], made(seed=number, bias=bias))
    found = json.loads(run(*paths, "--classes", "bracs", "--json", "--reference", "2").stdout)
    assert [(c["reference"], c["candidate"]) for c in found["comparisons"]] == [("m1", "m0"), ("m1", "m2")]
    difference = found["comparisons"][0]["levels"]["class"]["ascc"]
    assert difference["difference"] == pytest.approx(difference["candidate"] - difference["reference"])
    assert difference["p"] <= difference["adjusted_p"] <= 1
    assert difference["adjusted_ci"][0] <= difference["ci"][0] <= difference["ci"][1] <= difference["adjusted_ci"][1]
    assert len(found["verdicts"]) == 2
    assert "only 3 models" in run(*paths, "--classes", "bracs", "--reference", "4", code=2).output


def test_json_carries_the_operating_points_and_the_matched_comparison(tmp_path):
    paths = [tmp_path / f"{name}.csv" for name in "ab"]
    for seed, path in enumerate(paths):
        write_predictions(path, made(seed=seed, name=path.stem))
    found = json.loads(run(*paths, "--classes", "bracs", "--json", "--resamples", "50").stdout)
    for file in found["files"]:
        for scores in file["levels"].values():
            assert 0 <= scores["urgency_auc"] <= 1
            assert all(0 <= scores[f"missed_at_{share}"] <= 1 for share in (5, 10, 20, 30))
            curve = scores["curve"]
            assert len(curve["kappa"]) == len(curve["missed"]) == len(curve["false_alarms"]) > 2
            assert curve["missed"] == sorted(curve["missed"], reverse=True)
            assert curve["false_alarms"] == sorted(curve["false_alarms"])
    for level in ("group", "class"):
        matched = found["comparisons"][0]["levels"][level]["matched"]
        assert matched["difference"] == pytest.approx(matched["candidate"] - matched["reference"])
        assert matched["ci"][0] <= matched["ci"][1]
        assert 0 < matched["p"] <= 1


def test_decide_anew_before_scoring(predictions, tmp_path):
    plain = json.loads(run(predictions, "--classes", "bracs", "--json", "--resamples", "0").stdout)["files"][0]
    decided = {}
    for rule in ("argmax", "kappa=1", "kappa=4", "kappa=inf", "ascc", "risk"):
        shown = run(predictions, "--classes", "bracs", "--json", "--resamples", "0", "--decide", rule).stdout
        decided[rule] = json.loads(shown)["files"][0]
        assert decided[rule]["decided_by"] == rule
    same = plain["levels"]["class"]["confusion"]
    assert (
        decided["argmax"]["levels"]["class"]["confusion"] == decided["kappa=1"]["levels"]["class"]["confusion"] == same
    )
    urgent = decided["kappa=4"]["levels"]["class"]
    assert urgent["missed_rate"] < plain["levels"]["class"]["missed_rate"]
    assert urgent["false_alarm_rate"] > plain["levels"]["class"]["false_alarm_rate"]
    assert decided["kappa=inf"]["levels"]["class"]["missed_rate"] == 0
    assert urgent["curve"] == plain["levels"]["class"]["curve"]  # another decision, the same probabilities


@pytest.mark.parametrize("rule", ["kappa", "kappa=-1", "kappa=nan", "kappa=x", "argmin", "argmax=2"])
def test_a_decision_that_is_none(predictions, tmp_path, rule):
    out = tmp_path / "report"
    shown = run(predictions, "--classes", "bracs", "--decide", rule, "--out", out, code=2)
    assert "A decision must be argmax, ascc, risk, or kappa=K" in flat(shown)
    assert not out.exists()


def test_deciding_anew_needs_probabilities(tmp_path):
    path, out = table(tmp_path / "t.csv", HEADER, [["s", "N", "N"]]), tmp_path / "report"
    shown = flat(run(path, "--classes", "bracs", "--decide", "kappa=3", "--out", out, code=2))
    assert "has no probabilities, so no decision rule can be applied" in shown
    assert not out.exists()


HEADER = ["slide_id", "target", "prediction"]
BAD = {
    "empty file": (None, "is empty"),
    "header only": ((HEADER, []), "no rows"),
    "unknown columns": ((["a", "b"], [["1", "2"]]), "none of the known layouts"),
    "unknown label": ((HEADER, [["s", "ADHH", "N"]]), "Did you mean 'ADH'"),
    "another case": ((HEADER, [["s", "adh", "N"]]), "matched exactly"),
    "trailing space": ((HEADER, [["s", "ADH ", "N"]]), "Did you mean 'ADH'"),
    "integer labels": ((HEADER, [["s", "3", "0"]]), "--index-order"),
    "duplicate slides": ((HEADER, [["s", "N", "N"], ["s", "N", "PB"]]), "more than once: 's'"),
    "no slide id": ((HEADER, [["", "N", "N"]]), "no slide_id"),
    "neither scores nor prediction": ((["slide_id", "target"], [["s", "N"]]), "neither a column"),
    "some classes without a column": ((["slide_id", "target", "p_N"], [["s", "N", "1"]]), "one per class"),
    "ragged": ((HEADER, [["s", "N"]]), "2 cells where the header has 3"),
}
SCORES = {
    "NaN": (["nan", *"000000"], "not finite"),
    "negative": (["-0.5", "1.5", *"00000"], "negative"),
    "sum": (["0.5", "0.4", *"00000"], "sum to 1"),
    "text": (["high", *"000000"], "numbers"),
}


@pytest.mark.parametrize("defect", BAD)
def test_bad_tables_are_refused_in_words_and_nothing_is_written(defect, tmp_path):
    content, message = BAD[defect]
    path = tmp_path / "bad.csv"
    table(path, *content) if content else path.touch()
    result = run(path, "--classes", "bracs", "--out", tmp_path / "out", code=2)
    assert message in flat(result)
    assert str(path) in flat(result)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("defect", SCORES)
def test_bad_probabilities_are_refused(defect, tmp_path):
    scores, message = SCORES[defect]
    path = table(tmp_path / "bad.csv", ["slide_id", "target", *[f"p_{n}" for n in NAMES]], [["s-7", "N", *scores]])
    assert message in flat(run(path, "--classes", "bracs", "--out", tmp_path / "out", code=2))
    assert not (tmp_path / "out").exists()


def test_missing_file_and_unknown_classes(tmp_path, predictions):
    assert "no file" in flat(run(tmp_path / "absent.csv", "--classes", "bracs", code=2))
    assert "Did you mean 'bracs'" in flat(run(predictions, "--classes", "brac", code=2))


def test_models_on_other_slides_cannot_be_compared(tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    write_predictions(one, made())
    write_predictions(two, made(slides=[f"other{i}" for i in range(60)]))
    assert "share no slide ids" in flat(run(one, two, "--classes", "bracs", code=2))


HOSTILE = ["<script>alert(1)</script>", '"quoted", and comma', "line\nbreak", "=cmd()", "'=twice", "[red]", "{{ 7*7 }}"]


class Visible(HTMLParser):
    """Collects the tags and the text that a browser would show."""

    def __init__(self):
        super().__init__()
        self.tags, self.text, self.shown = [], [], True

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.shown = tag != "script"

    def handle_data(self, data):
        if self.shown:
            self.text.append(data)


def test_hostile_labels_and_ids_survive_harmlessly(tmp_path):
    hierarchy = ClassHierarchy.flat(HOSTILE, name="<b>hostile</b>")
    classes = tmp_path / "classes.yaml"
    classes.write_text(f"name: {json.dumps(hierarchy.name)}\nclasses: {json.dumps(HOSTILE)}\n")
    target = np.arange(7)
    model = Predictions("m", hierarchy, HOSTILE, target, np.zeros(7, int), patient_ids=HOSTILE)
    path, out = tmp_path / "m.csv", tmp_path / "out"
    write_predictions(path, model)
    found = json.loads(run(path, "--classes", classes, "--json", "--out", out).stdout)
    assert found["files"][0]["levels"]["class"]["classes"] == HOSTILE
    rows = list(csv.reader(io.StringIO((out / "severe_errors.csv").read_text(), newline="")))
    assert all(cell[:1] not in "=+@" for row in rows for cell in row if cell)
    page = Visible()
    page.feed((out / "report.html").read_text())
    assert page.tags.count("script") == 3  # the explanations, the handle, and its data
    assert "b" in page.tags
    assert sum("<script>alert(1)</script>" in text for text in page.text) >= 3
    assert "49" not in "".join(page.text).split()
    assert run(path, "--classes", classes).exit_code == 0


def flat(result):
    return " ".join(result.output.split())


def test_two_models_without_resamples(tmp_path):
    paths = [tmp_path / f"{name}.csv" for name in "ab"]
    for seed, path in enumerate(paths):
        write_predictions(path, made(seed=seed, name=path.stem))
    shown = run(*paths, "--classes", "bracs", "--resamples", "0", "--out", tmp_path / "audit").output
    page = (tmp_path / "audit" / "report.html").read_text()
    assert not re.search(r"\bnan\b", shown + page, re.IGNORECASE)


def test_files_of_one_name_are_told_apart_by_their_folders():
    paths = [Path("r/x/a.csv"), Path("/q/r/x/a.csv")]
    assert _names(paths) == ["r/x/a", "q/r/x/a"]


def test_files_of_several_networks_are_one_method(tmp_path):
    """Files of the same slides are seeds, files of other slides folds; networks then count as chance."""
    tree, rng = ClassHierarchy.load("bracs"), np.random.default_rng(0)
    target, patient = np.arange(70) % 7, np.arange(70) // 2
    for method in ("ce", "pams"):
        for seed in range(3):
            model = random_predictions(tree, 70, patients=35, rng=rng, target=target, patient=patient)
            for fold in range(2):
                half = model.take(np.flatnonzero(patient % 2 == fold))
                write_predictions(tmp_path / f"{method}-{seed}-{fold}.csv", half)
    found = json.loads(
        run(
            f"ce={tmp_path}/ce-*.csv", f"pams={tmp_path}/pams-*.csv", "--classes", "bracs", "--json", "--resamples", 50
        ).stdout
    )
    assert [file["name"] for file in found["files"]] == ["ce", "pams"]
    assert [file["seeds"] for file in found["files"]] == [3, 3]
    assert found["files"][0]["levels"]["class"]["networks"] == 6
    assert found["comparisons"][0]["levels"]["class"]["urgency_auc"]["varied"] == "patients and networks"
    assert "Chance: patients and networks (3 and 3 seeds)." in found["verdicts"][0]
    assert found["comparisons"][0]["n"] == 70
    shown = flat(run(f"ce={tmp_path}/nothing-*.csv", "--classes", "bracs", code=2))
    assert "no file matches" in shown


def test_files_of_one_name_in_several_folders_are_all_read(tmp_path):
    lines = "slide_id,patient_id,target,prediction\n"
    for fold in range(3):
        folder = tmp_path / f"fold{fold}"
        folder.mkdir()
        rows = "".join(f"s{fold}{row},p{fold}{row},N,IC\n" for row in range(4))
        (folder / "predictions.csv").write_text(lines + rows)
    done = CliRunner().invoke(
        app, ["audit", f"ce={tmp_path}/fold*/predictions.csv", "--classes", "bracs", "--json", "--resamples", "0"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"][0]["slides"] == 12
