"""Tables that strangers bring: probabilities by pattern, gzip, several models in one file, long names."""

from __future__ import annotations

import gzip
import io
import json
import re

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from pams_mil.cli.audit_table import score_tables
from pams_mil.cli.main import app
from pams_mil.data.tables import read_table
from pams_mil.errors import PredictionsError, TableError
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.predictions.probability_columns import probability_columns
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.audit_html import audit_page
from pams_mil.report.live import Links

CLASSES = """
name: long
classes:
  Harmless: [n, [b1, b2]]
  Grave: [[a1, a2], c1, c2]
display:
  n: Negative for intraepithelial lesion or malignancy
  b1: Benign reactive cellular changes, inflammation
  b2: Benign reactive cellular changes, atrophy
  a1: Atypical squamous cells, cannot exclude HSIL
  a2: Atypical glandular cells, not otherwise specified
  c1: High-grade squamous intraepithelial lesion
  c2: Invasive squamous cell carcinoma
aliases: {n: [NILM]}
"""
LABELS = ("n", "b1", "b2", "a1", "a2", "c1", "c2")


@pytest.fixture
def classes(tmp_path):
    path = tmp_path / "classes.yaml"
    path.write_text(CLASSES)
    return path


@pytest.fixture
def hierarchy(classes):
    return ClassHierarchy.load(classes)


def rows(seed: int = 0, count: int = 60):
    """Slide, true class and the probabilities of two models; the class a2 has no slides."""
    random = np.random.default_rng(seed)
    present = [0, 1, 2, 3, 5, 6]
    for number in range(count):
        true = present[number % 6]
        both = [random.dirichlet(np.ones(7) + 3 * np.eye(7)[true]) for _ in range(2)]
        yield f"s{number}", true, both


def run(*arguments, code=0):
    done = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def write(path, header, lines):
    text = "\n".join([header, *lines]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def finest(done):
    return [one["levels"]["class"] for one in json.loads(done.stdout)["files"]]


@pytest.fixture
def two_models(tmp_path):
    """One file with the calls and the probabilities of two models, in columns of a stranger's naming."""
    named = [f"{model} prob {LABELS[i]}" for model in ("old", "new") for i in range(7)]
    lines = []
    for slide, true, both in rows():
        calls = [LABELS[int(p.argmax())] for p in both]
        lines.append(",".join([slide, LABELS[true], *calls, *(repr(float(v)) for p in both for v in p)]))
    return write(tmp_path / "two.csv", ",".join(["case", "truth", "old", "new", *named]), lines)


def test_patterns_lists_and_numbers_give_the_same_scores(tmp_path, classes, two_models):
    base = ("--classes", classes, "--json", "--resamples", 0, "--true", "truth", "--id", "case")
    by_pattern = finest(run(two_models, *base, "--pred", "old", "--proba", "old prob {class}"))
    listed = ",".join(f"old prob {label}" for label in LABELS)
    assert finest(run(two_models, *base, "--pred", "old", "--proba", listed)) == by_pattern
    assert finest(run(two_models, *base, "--proba", "old prob {class}")) == by_pattern  # the calls are the argmax
    assert by_pattern[0]["auc"] is not None
    assert finest(run(two_models, *base, "--pred", "old"))[0]["auc"] is None
    order = ("c2", "c1", "a2", "a1", "b2", "b1", "n")
    header = ["case", "truth", *(f"p{i}" for i in range(7))]
    lines = [
        ",".join([slide, LABELS[true], *(repr(float(both[0][LABELS.index(label)])) for label in order)])
        for slide, true, both in rows()
    ]
    numbered = write(tmp_path / "numbered.csv", ",".join(header), lines)
    by_number = finest(run(numbered, *base, "--proba", "p{index}", "--index-order", ",".join(order)))
    assert by_number[0]["auc"] == pytest.approx(by_pattern[0]["auc"])
    assert by_number[0]["ascc"] == by_pattern[0]["ascc"]


def test_several_predictions_of_one_file_are_several_models(classes, two_models):
    base = (two_models, "--classes", classes, "--json", "--resamples", 0, "--true", "truth", "--id", "case")
    found = json.loads(run(*base, "--pred", "old", "--pred", "new", "--proba", "{pred} prob {class}").stdout)
    assert [one["name"] for one in found["files"]] == ["old", "new"]
    assert [(c["reference"], c["candidate"]) for c in found["comparisons"]] == [("old", "new")]
    alone = [
        finest(run(*base, "--pred", name, "--proba", f"{name} prob {{class}}"))[0] for name in ("old", "new")
    ]  # fmt: skip
    assert [one["levels"]["class"] for one in found["files"]] == alone
    each = ("--proba", "old prob {class}", "--proba", "new prob {class}")
    assert finest(run(*base, "--pred", "old", "--pred", "new", *each)) == alone
    said = run(*base, "--pred", "old", "--pred", "new", "--proba", "old prob {class}", code=2).stderr
    assert "would give 2 models the same probabilities" in said
    assert "one for each --pred (1)" in run(*base, "--pred", "old", *each, code=2).stderr


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("prob {class}", r"no column 'prob n' for the class 'n'.*Did you mean"),
        ("p_{index}", r"Whose order\? Name them with --index-order"),
        ("a,b", r"lists 2 columns for 7 classes"),
        ("{pred}_{class}", r"there is no --pred"),
    ],
)
def test_patterns_that_do_not_fit_are_refused_in_words(hierarchy, pattern, message):
    header = ["case", *(f"prob_{label}" for label in LABELS)]
    with pytest.raises(PredictionsError, match=message):
        probability_columns(pattern, header, hierarchy)


def test_a_class_may_be_spelled_as_its_file_allows_but_not_twice(hierarchy):
    header = ["P(NILM)", *(f"P({hierarchy.display(label)})" for label in LABELS[1:])]
    assert probability_columns("P({class})", header, hierarchy)[0] == tuple(header)
    with pytest.raises(PredictionsError, match="several columns for the class 'n'"):
        probability_columns("P({class})", [*header, "P(n)"], hierarchy)


def test_gzipped_tables_are_read_by_what_they_are(tmp_path, two_models):
    packed = tmp_path / "two.csv.gz"
    packed.write_bytes(gzip.compress(two_models.read_bytes()))
    hidden = tmp_path / "no-suffix"
    hidden.write_bytes(packed.read_bytes())
    assert read_table(packed) == read_table(two_models) == read_table(hidden)
    truncated = tmp_path / "truncated.csv.gz"
    truncated.write_bytes(packed.read_bytes()[:-40])
    with pytest.raises(TableError, match="damaged or cut short gzip"):
        read_table(truncated)
    flipped = bytearray(packed.read_bytes())
    flipped[len(flipped) // 2] ^= 0xFF
    truncated.write_bytes(bytes(flipped))
    with pytest.raises(TableError):
        read_table(truncated)


def test_a_small_file_with_an_endless_line_is_refused(tmp_path):
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b"a,b\n" + b"x" * (40 << 20)))
    with pytest.raises(TableError, match="line of more than"):
        read_table(bomb)


def audited(hierarchy, names, resamples=50):
    models = []
    for number, name in enumerate(names):
        table = list(rows(seed=number))
        p = np.array([both[0] for _, _, both in table])
        true = np.array([true for _, true, _ in table])
        models.append(Predictions(name, hierarchy, [slide for slide, _, _ in table], true, p.argmax(1), p))
    return audit(models, resamples=resamples)


@pytest.mark.parametrize(("count", "width"), [(2, 80), (4, 80), (5, 80), (4, 200), (1, 40)])
def test_the_terminal_shows_every_name_and_every_interval(hierarchy, count, width):
    names = [f"transmil trained with method number {number} and seed {number}" for number in range(count)]
    result = audited(hierarchy, names)
    console = Console(width=width, record=True, file=io.StringIO())
    for table in score_tables(result, 1, width):
        console.print(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    intervals = sum(key in ("acc", "auc", "ascc", "asmc", "risk", "missed_rate", "false_alarm_rate")
                    for model in result.models for key in model.finest.intervals)  # fmt: skip
    assert text.count("[") == text.count("]") == intervals
    letters = re.sub(r"\s", "", text)
    for number in range(count):
        assert letters.count(f"{number}") >= 2


def test_the_page_shows_names_ties_and_absent_classes_as_they_are(hierarchy):
    result = audited(hierarchy, ["one"], resamples=0)
    page = audit_page(result, {result.models[0].name: Links(pages={"s5": "slides/s5/slide.html"})})
    for label in LABELS:
        assert page.count(hierarchy.display(label)) >= 2  # beside the order and in the matrix
    assert "There are no slides of Atypical glandular cells, not otherwise specified" in page
    chart = page[page.index('aria-label="expected class of errors"') :].split("</svg>")[0]
    assert chart.count("no slides") == 1
    assert "1 slides" not in page
    if ">s5<" in page:
        assert '<a href="slides/s5/slide.html">s5</a>' in page


def test_severe_errors_link_to_the_pages_that_exist(tmp_path, classes, two_models):
    arguments = (two_models, "--classes", classes, "--resamples", 0, "--true", "truth", "--id", "case", "--pred", "old")
    run(*arguments, "--out", tmp_path / "report")
    severe = [line.split(",")[1] for line in (tmp_path / "report/severe_errors.csv").read_text().splitlines()[1:]]
    assert len(severe) >= 2
    page = tmp_path / "report" / "slides" / severe[0] / "slide.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>a page</p>")
    run(*arguments, "--out", tmp_path / "report")
    html = (tmp_path / "report/report.html").read_text()
    assert f'<a href="slides/{severe[0]}/slide.html">{severe[0]}</a>' in html
    assert html.count("<a href=") == 1
