"""`pams.audit` on arrays: every way to hand labels and probabilities over gives the same audit, and shows itself."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import pams_mil as pams
from pams_mil.atomic import strict_json
from pams_mil.cli.main import app
from pams_mil.errors import ParameterError, PredictionsError
from pams_mil.evaluate.predictions.prediction_layouts import Source

ORDER = ["normal", ["FEA", "ADH"], "cancer"]
NAMES = ["normal", "FEA", "ADH", "cancer"]


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(0)
    target = random.integers(0, 4, 200)
    p = random.dirichlet(np.ones(4), 200) * 0.7 + 0.3 * np.eye(4)[target]
    q = random.dirichlet(np.ones(4), 200) * 0.8 + 0.2 * np.eye(4)[target]
    return target, p, q, [f"patient {row // 2}" for row in range(200)]


def content(report):
    return json.dumps(report.scores.to_json()["files"], sort_keys=True, default=str)


def test_lists_names_numbers_and_frames_are_one_audit(arrays):
    target, p, q, patients = arrays
    models = {"mine": p, "baseline": q}
    first = pams.audit(target, models, ORDER, patients=patients, resamples=20)
    names = [NAMES[index] for index in target]
    by_name = sorted(NAMES)
    columns = [NAMES.index(name) for name in by_name]
    sorted_tables = {name: table[:, columns] for name, table in models.items()}
    lists = {name: table.tolist() for name, table in models.items()}
    rest = {"patients": patients, "resamples": 20}
    same = [
        pams.audit(names, models, ORDER, **rest),
        pams.audit(target.tolist(), lists, pams.ClassHierarchy.of(ORDER), **rest),
        pams.audit(names, sorted_tables, ORDER, labels=by_name, **rest),
        pams.audit(target.astype(float), models, ORDER, **rest),
    ]
    for other in same:
        assert content(other) == content(first)
    assert first.scores.models[0].predictions.num_patients == 100


def test_rows_in_another_order_are_refused_and_numbered_rows_are_not(arrays):
    pandas = pytest.importorskip("pandas")
    y, p, _, _ = arrays
    ids = [f"slide-{row}" for row in range(len(y))]
    labels, table = pandas.Series(y, index=ids), pandas.DataFrame(p, index=ids)
    whole = pams.audit(labels, table, ORDER, resamples=0).scores.models[0].finest.values["missed_rate"]
    with pytest.raises(
        ParameterError, match=r"mine has the rows of y_true in another order.*mine\.loc\[y_true\.index\]"
    ):
        pams.audit(labels, {"mine": table[::-1]}, ORDER, resamples=0)
    shuffled = pandas.Series(y, index=ids[::-1])  # the probabilities came from an array: their rows have no names
    assert (
        pams.audit(shuffled, pandas.DataFrame(p), ORDER, resamples=0).scores.models[0].finest.values["missed_rate"]
        == whole
    )


def test_frames_of_pandas_and_polars(arrays):
    pandas = pytest.importorskip("pandas")
    target, p, _, patients = arrays
    names = [NAMES[index] for index in target]
    shuffled = ["cancer", "ADH", "normal", "FEA"]
    columns = [NAMES.index(name) for name in shuffled]
    first = pams.audit(target, p, ORDER, patients=patients, resamples=0)
    frame = pandas.DataFrame(p[:, columns], columns=shuffled)
    people = pandas.Series(patients, name="patient_id")
    found = pams.audit(
        pandas.Series(names), frame, ORDER, patients=people, by=pandas.DataFrame({"site": patients}), resamples=0
    )
    assert content(found) == content(first)
    table = found.to_frame()
    assert table[table.metric == "missed_rate"].value.iloc[0] == found.scores.models[0].finest.values["missed_rate"]
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({f"p_{name}": p[:, NAMES.index(name)] for name in shuffled})
    assert content(
        pams.audit(polars.Series(names), frame, ORDER, patients=polars.Series(patients), resamples=0)
    ) == content(first)


def test_calls_alone_and_one_column_of_two_classes(arrays):
    target, p, _, _ = arrays
    calls = pams.audit(target, {"calls": [NAMES[index] for index in p.argmax(1)]}, ORDER, resamples=0)
    whole = pams.audit(target, {"calls": p}, ORDER, resamples=0)
    assert calls.scores.models[0].finest.confusion.tolist() == whole.scores.models[0].finest.confusion.tolist()
    assert calls.scores.models[0].points[-1] is None
    two = (target > 1).astype(int)
    urgent = p[:, 2:].sum(1)
    one = pams.audit(two, urgent, ["low", "high"], resamples=0)
    both = pams.audit(two, np.stack([1 - urgent, urgent], 1), ["low", "high"], resamples=0)
    assert content(one) == content(both)
    assert pams.audit(two == 1, urgent, ["low", "high"], resamples=0).scores.models[0].finest.n == 200


def test_columns_in_the_wrong_order_are_refused(arrays):
    target, p, _, _ = arrays
    names = [NAMES[index] for index in target]
    alphabetical = p[:, [NAMES.index(name) for name in sorted(NAMES)]]
    for labels in (target, names):
        with pytest.raises(ParameterError, match="labels="):
            pams.audit(labels, {"mine": alphabetical}, ORDER)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": []}, "empty"),
        ({"y": ["normal", "tumor", "cancer"]}, "row 1.*'tumor'"),
        ({"y": [0, 4, 1]}, "row 1: 4 is not a class"),
        ({"y": [0, float("nan"), 1]}, "row 1: nan"),
        ({"y": [0, None, 1]}, "row 1: None"),
        ({"P": np.eye(4)[:2]}, "2 rows, but y_true has 3"),
        ({"P": np.eye(3)}, "4 columns"),
        ({"P": np.full((3, 4), 0.5)}, "do not sum to 1"),
        ({"patients": ["a", "b"]}, "patients has 2 rows"),
        ({"patients": ["a", None, "b"]}, "row 1"),
        ({"slides": ["a", "a", "b"]}, "must all differ"),
        ({"reference": "other"}, "one of 'model'"),
        ({"labels": ["a", "b", "c", "d"]}, "expected one for each class"),
        ({"y": None}, "y_true must be a list"),
        ({"P": None}, "Expected audit"),
        ({"P": 3}, r"found shape \(\)"),
        ({"P": np.zeros((3, 4, 2))}, r"found shape \(3, 4, 2\)"),
        ({"P": [[0.1, 0.2, 0.3, 0.4], [0.5], [1.0]]}, "rows of one length"),
        ({"P": np.array([["low", "x", "y", "z"]] * 3)}, "could not convert string"),
        ({"P": ["normal", None, "FEA"]}, "row 1: None"),
    ],
)
def test_what_is_wrong_is_said(change, message):
    arguments = {"y": [0, 1, 3], "P": np.eye(4)[[0, 1, 3]], **change}
    y, table = arguments.pop("y"), arguments.pop("P")
    with pytest.raises((ParameterError, PredictionsError), match=message):
        pams.audit(y, table, ORDER, resamples=0, **arguments)


def test_missing_values_of_pandas_are_named_by_their_row():
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(["normal", None, "FEA"], dtype="string")
    calls = {"mine": [0, 1, 3]}
    with pytest.raises(ParameterError, match="patients has no value in 1 rows, the first is row 1"):
        pams.audit([0, 1, 3], calls, ORDER, patients=column, resamples=0)
    with pytest.raises(ParameterError, match="y_true, row 1: <NA>"):
        pams.audit(column, calls, ORDER, resamples=0)
    with pytest.raises(ParameterError, match="mine, row 1: <NA>"):
        pams.audit([0, 1], {"mine": pandas.Series([0, None], dtype="Int64")}, ["a", "b"], resamples=0)
    assert pams.audit([0, 1, 3], calls, ORDER, by={"site": column}, resamples=0).predictions[0].tags["site"][1] == ""


def test_predictions_stand_alone_and_nothing_is_ignored_beside_them(arrays):
    y, p, _, _ = arrays
    audited = pams.audit(y, {"mine": p}, ORDER, resamples=0)
    assert content(pams.audit(audited.predictions, resamples=0)) == content(audited)
    for arguments in ([[]], [[], None, ORDER], [audited.predictions[0], {"other": p}], [y]):
        with pytest.raises(ParameterError, match="Expected audit"):
            pams.audit(*arguments)


def test_it_shows_itself(arrays, tmp_path):
    target, p, q, patients = arrays
    report = pams.audit(target, {"mi<ne": p, "baseline": q}, ORDER, patients=patients, resamples=20)
    html = report._repr_html_()
    assert "mi&lt;ne misses urgency in" in html
    assert "mi<ne" not in html
    assert "data:image/svg+xml" in html
    assert "<style" not in html  # a notebook's own styles stay as they are
    assert re.search(r"^mi<ne +200 ", repr(report), re.M)
    page = report.save(tmp_path / "report")
    assert page.read_text().startswith("<!doctype html>")
    assert "report.decide({})" in page.read_text()  # the line that is copied, without its κ
    assert json.loads((tmp_path / "report" / "scores.json").read_text())["files"][0]["name"] == "mi<ne"
    worst = report.worst(5)
    assert len(worst.rows) == 5
    gravity = [float(row[4]) for row in worst.rows]
    assert gravity == sorted(gravity, reverse=True)
    assert report.worst(3, model="baseline").rows[0][0].text.startswith("slide ")
    with pytest.raises(ParameterError, match="No model is called"):
        report.worst(model="other")


def test_decide_and_certify(arrays):
    target, p, q, patients = arrays
    report = pams.audit(target, {"mine": p, "baseline": q}, ORDER, patients=patients, resamples=0)
    urgent = report.decide(kappa=4)
    expected = pams.evaluate.decision_path(p, report.scores.hierarchy).calls(4.0)
    assert urgent.predictions[0].predicted.tolist() == expected.tolist()
    assert urgent.predictions[0].decided_by == "kappa=4"
    assert urgent.scores.models[0].finest.values["missed_rate"] < report.scores.models[0].finest.values["missed_rate"]
    with pytest.raises(ParameterError, match="decide\\(kappa=3\\)"):
        report.decide()
    certificate = report.certify(alpha=0.1, model="baseline")
    assert certificate.kappa == pams.certify(report.predictions[1], alpha=0.1).kappa


def test_plots_go_onto_the_axes_they_are_given(arrays):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    target, p, q, _ = arrays
    figure, axes = plt.subplots(1, 3)
    report = pams.audit(target, {"mine": p, "baseline": q}, ORDER, resamples=20)
    shown = report.plot(ax=axes[0])
    assert shown.ax_ is axes[0]
    assert shown.figure_ is figure
    curve = pams.metrics.operating_curve(target, p, report.scores.hierarchy)
    line = shown.lines_[0].get_xydata()
    assert line[:, 0] == pytest.approx(100 * curve.false_alarms)
    assert line[:, 1] == pytest.approx(100 * curve.missed)
    assert pams.OperatingCurveDisplay.from_predictions(target, p, ORDER, ax=axes[1]).ax_ is axes[1]
    cells = pams.SeverityConfusionDisplay.from_predictions(target, p.argmax(1), ORDER, ax=axes[2])
    assert [text.get_text() for text in cells.ax_.texts] == [str(count) for count in cells.cells.ravel()]
    assert cells.cells.sum() == 200
    image = axes[2].get_images()[0].get_array()
    missed, raised = image[3, 1], image[1, 3]
    assert missed[0] > missed[2]  # reddish
    assert raised[2] > raised[0]  # bluish
    plt.close("all")
    fresh = pams.OperatingCurveDisplay.from_predictions(target, p, ORDER)
    assert fresh.figure_ is not figure
    plt.close("all")


def test_colors_of_displays_are_those_of_the_pages():
    from pams_mil.report import svg
    from pams_mil.report.page import static

    sheet = str(static("page.css")).split("@media")[0]
    for number, color in enumerate(svg.SERIES):
        assert f"--s{number}: {color};" in sheet
    for kind, color in svg.KINDS.items():
        assert f"--{kind}: {color};" in sheet


SETS = pams.ClassHierarchy.flat(["N", ["UDH", "ADH"], "DCIS"], findings="several", nothing="N")
FINDINGS = ["UDH", "ADH", "DCIS"]


def sets_of_findings(n=120):
    random = np.random.default_rng(1)
    present = random.random((n, 3)) < 0.4
    return present, np.clip(0.6 * present + 0.4 * random.random((n, 3)), 0, 1), [f"p{row // 2}" for row in range(n)]


def test_sets_in_every_form_are_the_audit_of_the_table(tmp_path):
    present, p, patients = sets_of_findings()
    lists = [[FINDINGS[k] for k in np.flatnonzero(row)] for row in present]
    cells = ["; ".join(names) or "N" for names in lists]
    rows = zip([f"slide {row}" for row in range(len(p))], patients, cells, p.tolist(), strict=True)
    lines = [f"{slide},{patient},{cell},{','.join(map(repr, scores))}" for slide, patient, cell, scores in rows]
    (tmp_path / "mine.csv").write_text("\n".join(["slide_id,patient_id,target,p_UDH,p_ADH,p_DCIS", *lines]))
    (tmp_path / "classes.yaml").write_text("classes: [N, [UDH, ADH], DCIS]\nfindings: several\nnothing: N\n")
    command = [tmp_path / "mine.csv", "--classes", tmp_path / "classes.yaml", "--resamples", 20, "--json"]
    done = CliRunner().invoke(app, ["audit", *map(str, command)])
    assert done.exit_code == 0, done.output
    expected = json.loads(done.stdout)["files"][0]
    assert [finding["name"] for finding in expected["findings"]["findings"]] == FINDINGS
    by_name = sorted(FINDINGS)  # as scikit-learn's MultiLabelBinarizer has them
    order = [FINDINGS.index(name) for name in by_name]
    for y, table, labels in (
        (cells, p, FINDINGS),
        (lists, p.tolist(), FINDINGS),
        ([set(names) for names in lists], p[:, order], by_name),
        (present, p, FINDINGS),
        (present[:, order].astype(int).tolist(), p[:, order], by_name),
    ):
        report = pams.audit(y, {"mine": table}, SETS, labels=labels, patients=patients, resamples=20)
        found = json.loads(strict_json(report.scores.to_json()["files"][0]))
        for key in ("findings", "levels"):
            assert found[key] == expected[key]
    marks = ["slide_id,patient_id,UDH,ADH,DCIS,p_UDH,p_ADH,p_DCIS"]
    for row in range(len(p)):
        marks.append(
            ",".join([f"s{row}", patients[row], *map(str, present[row].astype(int)), *map(repr, p[row].tolist())])
        )
    (tmp_path / "marks.csv").write_text("\n".join(marks))
    read = pams.read_predictions(tmp_path / "marks.csv", SETS)  # the truth in columns of 0 and 1
    assert (read.finding_targets == present).all()
    assert read.target.tolist() == [SETS.index(cell) for cell in cells]
    named = (tmp_path / "mine.csv").read_text().replace("p_", "score of ").replace("target", "truth")
    (tmp_path / "named.csv").write_text(named)
    for pattern in ("score of {class}", "score of UDH,score of ADH,score of DCIS"):
        source = Source(true="truth", scores=pattern)
        read = pams.read_predictions(tmp_path / "named.csv", SETS, source)
        np.testing.assert_array_equal(read.finding_probabilities, p)


def test_frames_of_sets_name_their_columns():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    present, p, _ = sets_of_findings()
    lists = [[FINDINGS[k] for k in np.flatnonzero(row)] for row in present]
    expected = content(pams.audit(lists, p, SETS, labels=FINDINGS, resamples=0))
    by_name, order, whole = sorted(FINDINGS), [1, 2, 0], np.column_stack([~present.any(1), present]).astype(int)
    softmax = np.random.default_rng(2).dirichlet(np.ones(4), len(p))
    both = [*(f"p_{name}" for name in SETS), *(f"f_{name}" for name in FINDINGS)]
    for y, table in (
        (pandas.DataFrame(present, columns=FINDINGS), pandas.DataFrame(p[:, order], columns=by_name)),
        (polars.DataFrame(whole, schema=list(SETS)), polars.DataFrame(p, schema=FINDINGS)),
        (pandas.Series(lists), pandas.DataFrame(p, columns=[f"f_{name}" for name in FINDINGS])),
    ):
        assert content(pams.audit(y, table, SETS, resamples=0)) == expected
    frame = pandas.DataFrame(np.column_stack([softmax, p]), columns=both)
    model = pams.audit(lists, frame, SETS, resamples=0).predictions[0]  # with a head for the most urgent finding
    np.testing.assert_array_equal(model.probabilities, softmax)
    np.testing.assert_array_equal(model.finding_probabilities, p)


def test_models_of_sets_beside_models_of_classes_and_calls_alone():
    present, p, _ = sets_of_findings()
    cells = ["; ".join(FINDINGS[k] for k in np.flatnonzero(row)) or "N" for row in present]
    softmax = np.random.default_rng(2).dirichlet(np.ones(4), len(p))
    models = {"head": softmax, "sets": cells}
    head, sets = pams.audit(cells, models, SETS, labels=list(SETS), resamples=0).predictions
    assert head.finding_probabilities is None
    np.testing.assert_array_equal(head.probabilities, softmax)
    assert (sets.predicted == sets.target).all()
    unnamed = pams.ClassHierarchy.flat(["A", "B"], findings="several")
    for high, single in ((0.7, False), (0.9, True)):  # rows that sum to 1 are of classes
        model = pams.audit(["A; B", "B"], [[0.3, high], [0.8, 0.2]], unnamed, resamples=0).scores.models[0]
        assert (model.findings is not None) == single


def test_sets_that_cannot_be_meant_are_refused_in_words():
    present, p, _ = sets_of_findings(4)
    good = ["UDH", "N", "DCIS", "ADH; DCIS"]
    without = pams.ClassHierarchy.flat(["A", "B"], findings="several")
    for y, table, tree, labels, words in (
        (["N; UDH", *good[1:]], p, SETS, FINDINGS, "row 0: 'N; UDH' names 'N', which means that nothing was found"),
        ([["UDH", "XX"], *([name] for name in good[1:3]), []], p, SETS, FINDINGS, "row 0: 'XX' is not a class"),
        ([["A"], [], ["B"], ["A"]], p[:, :2], without, None, "row 1: the set is empty.*under 'nothing:'"),
        (present * 2, p, SETS, FINDINGS, "expected 0 or 1 in the column"),
        (good, p + 0.9, SETS, FINDINGS, "from 0 to 1"),
        (good, p, SETS, None, "not certain which column of model is which finding.*labels="),
        (present, p, SETS, None, "not certain which column of y_true"),
        (present[:, :2], p, SETS, FINDINGS, "y_true has 2 columns; expected one for each of"),
        (good, p, SETS, ["UDH", "ADH", "XX"], "expected one for each class of"),
        (["A; B", "B"], [[0.3, 0.7]] * 2, ["A", "B"], None, "names several findings, but the classes of"),
    ):
        with pytest.raises(ParameterError, match=re.compile(words, re.DOTALL)):
            pams.audit(y, table, tree, labels=labels, resamples=0)
