"""`pams.audit` on arrays: every way to hand labels and probabilities over gives the same audit, and shows itself."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import pams_mil as pams
from pams_mil.errors import ParameterError, PredictionsError

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
    ],
)
def test_what_is_wrong_is_said(change, message):
    arguments = {"y": [0, 1, 3], "P": np.eye(4)[[0, 1, 3]], **change}
    y, table = arguments.pop("y"), arguments.pop("P")
    with pytest.raises((ParameterError, PredictionsError), match=message):
        pams.audit(y, table, ORDER, resamples=0, **arguments)


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
