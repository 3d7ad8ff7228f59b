"""Predictions files of every known tool give the same predictions; nothing about class order is guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from tests.strategies import predictions

from pams_mil import ClassHierarchy
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions, recognize
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions

TREE = ClassHierarchy.flat(["low", "mid", "high"], name="grades")
PROBABILITIES = [[0.2, 0.3, 0.5], [0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]
ROWS = list(zip(["01", "02", "10"], ["high", "low", "low"], ["high", "low", "mid"], PROBABILITIES, strict=True))


def spelled(p: list[float], order: tuple[int, ...] = (0, 1, 2)) -> str:
    return ",".join(str(p[index]) for index in order)


OURS = "slide_id,patient_id,split,target,p_low,p_mid,p_high\n" + "".join(
    f"{slide},{slide},test,{true},{spelled(p)}\n" for slide, true, _, p in ROWS
)
SHUFFLED = "p_high,target,p_low,slide_id,p_mid\n" + "".join(
    f"{p[2]},{true},{p[0]},{slide},{p[1]}\n" for slide, true, _, p in ROWS
)
LABELS = "slide_id,target,prediction\n" + "".join(f"{slide},{true},{pred}\n" for slide, true, pred, _ in ROWS)
INDEX = {"high": "0", "low": "1", "mid": "2"}
CLAM = "slide_id,Y,Y_hat,p_0,p_1,p_2\n" + "".join(
    f"{slide},{INDEX[true]}.0,{INDEX[pred]},{spelled(p, (2, 0, 1))}\n" for slide, true, pred, p in ROWS
)
STAMP = "PATIENT,grade,pred,grade_high,grade_low,grade_mid,loss\n" + "".join(
    f"{slide},{true},{pred},{spelled(p, (2, 0, 1))},0.3\n" for slide, true, pred, p in ROWS
)
NAMED = "case,truth,guess,who\n" + "".join(f"{slide},{true},{pred},P{slide}\n" for slide, true, pred, _ in ROWS)
ORDER = ("high", "low", "mid")


@pytest.mark.parametrize(
    ("text", "source", "layout", "scored"),
    [
        (OURS, Source(), "PAMS", True),
        (SHUFFLED, Source(), "PAMS", True),
        (LABELS, Source(), "PAMS", False),
        (CLAM, Source(index_order=ORDER), "CLAM evaluation", True),
        (STAMP, Source(), "STAMP patient-preds", True),
        (NAMED, Source(true="truth", predicted="guess", slide="case", patient="who"), "named columns", False),
    ],
    ids=["ours", "ours shuffled", "labels only", "CLAM", "STAMP", "named"],
)
def test_all_layouts_mean_the_same(tmp_path: Path, text: str, source: Source, layout: str, scored: bool):
    path = tmp_path / "model a.csv"
    path.write_text(text)
    found = read_predictions(path, TREE, source)
    assert found.layout == layout
    assert found.name == "model a"
    assert list(found.slide_ids) == ["01", "02", "10"]
    assert found.target.tolist() == [2, 0, 0]
    assert found.predicted.tolist() == [2, 0, 1]
    assert (found.probabilities is not None) == scored
    if scored:
        assert found.probabilities == pytest.approx(np.array(PROBABILITIES))


def test_clam_columns_by_declared_aliases():
    hierarchy = ClassHierarchy.load("cifar10")
    header = ("slide_id", "Y", "Y_hat", *(f"p_{n}" for n in range(10)))
    layout = recognize(header, hierarchy, Source(), "x.csv")
    assert layout.classes == ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def test_integer_class_names_are_names_unless_an_order_says_otherwise(tmp_path: Path):
    hierarchy = ClassHierarchy.load("isup")
    path = tmp_path / "x.csv"
    path.write_text("slide_id,target,prediction\na,5,0\nb,1,1\n")
    assert read_predictions(path, hierarchy).target.tolist() == [5, 1]
    reversed_order = Source(index_order=("5", "4", "3", "2", "1", "0"))
    assert read_predictions(path, hierarchy, reversed_order).target.tolist() == [0, 4]


def test_the_prediction_column_wins_over_the_largest_probability(tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text("slide_id,target,prediction,p_low,p_mid,p_high\na,high,high,0.5,0.3,0.2\n")
    assert read_predictions(path, TREE).predicted.tolist() == [2]


@pytest.mark.parametrize("total", [0.9991, 1.0009, 1.0])
def test_rounded_probabilities_are_accepted(tmp_path: Path, total: float):
    path = tmp_path / "x.csv"
    path.write_text(f"slide_id,target,p_low,p_mid,p_high\na,high,{total - 0.5},0.25,0.25\n")
    assert len(read_predictions(path, TREE)) == 1


@pytest.mark.parametrize("total", [0.9985, 1.0015, 2.0])
def test_what_is_no_probability_is_refused(tmp_path: Path, total: float):
    path = tmp_path / "x.csv"
    path.write_text(f"slide_id,target,p_low,p_mid,p_high\na,high,{total - 0.5},0.25,0.25\n")
    with pytest.raises(PredictionsError, match="do not sum to 1"):
        read_predictions(path, TREE)


def test_notes_say_what_a_reader_should_know(tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text("slide_id,target,prediction\na,high,high\n")
    assert read_predictions(path, TREE).notes == ("No patient column: every slide counts as its own patient.",)
    path.write_text(
        "slide_id,patient_id,split,target,prediction\na,p,train,high,high\nb,p,test,low,low\nc,q,test,low,low\n"
    )
    contradictory, splits = read_predictions(path, TREE).notes
    assert contradictory == "1 patients have slides with different labels: 'p'."
    assert splits.startswith("Rows of several splits are scored together: 'test (2)', 'train (1)'.")


def test_tags_and_subsets(tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text("slide_id,target,prediction,mixed\na,high,low,yes\nb,low,low,no\nc,mid,mid,yes\n")
    found = read_predictions(path, TREE, Source(tags=("mixed",)))
    subset = found.tagged("mixed", "yes")
    assert list(subset.slide_ids) == ["a", "c"]
    assert subset.name == "x [mixed=yes]"
    with pytest.raises(PredictionsError, match=r"no row has mixed = 'maybe'\. Values there: 'no', 'yes'"):
        found.tagged("mixed", "maybe")


def test_files_larger_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from pams_mil.data.tables import read_chunks
    from pams_mil.evaluate.predictions import prediction_layouts as layouts

    path = tmp_path / "x.csv"
    path.write_text("slide_id,target,prediction\n" + "".join(f"s{n},{TREE.names()[n % 3]},low\n" for n in range(100)))
    monkeypatch.setattr(layouts, "read_chunks", lambda p, progress=None: read_chunks(p, rows=7, progress=progress))
    found = read_predictions(path, TREE)
    assert found.target.tolist() == [n % 3 for n in range(100)]
    path.write_text(path.read_text() + "bad,nowhere,low\n")
    with pytest.raises(PredictionsError, match="column 'target', slide 'bad': 'nowhere' is not a class"):
        read_predictions(path, TREE)


@given(predictions())
def test_write_and_read_back(tmp_path_factory: pytest.TempPathFactory, model: Predictions):
    path = tmp_path_factory.mktemp("round") / "model.csv"
    write_predictions(path, model)
    found = read_predictions(path, model.hierarchy)
    assert list(found.slide_ids) == list(model.slide_ids)
    assert list(found.patient_ids) == list(model.patient_ids)
    assert (found.target == model.target).all()
    assert (found.predicted == model.predicted).all()
    assert (found.probabilities == model.probabilities).all()  # to the last bit


def test_hostile_ids_and_labels_survive(tmp_path: Path):
    names = ["<script>alert(1)</script>", "=cmd()", 'a,"b"\nc\rd', "-x", "'quoted"]
    hierarchy = ClassHierarchy.flat(names)
    slides = ["=1+1", "<img src=x>", "new\nline", "'apostrophe", "-5"]
    model = Predictions("m", hierarchy, slides, np.arange(5), np.arange(5)[::-1], np.eye(5), [f"@{s}" for s in slides])
    write_predictions(tmp_path / "m.csv", model)
    found = read_predictions(tmp_path / "m.csv", hierarchy)
    assert list(found.slide_ids) == slides
    assert list(found.patient_ids) == [f"@{s}" for s in slides]
    assert found.target.tolist() == [0, 1, 2, 3, 4]
    assert (found.probabilities == np.eye(5)).all()


def test_parquet_is_read_like_csv(tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = {"slide_id": ["01", "02"], "target": ["low", "high"], "p_low": [0.5, 0.0], "p_mid": [0.25, 0.0]}
    pyarrow.parquet.write_table(pa.table({**columns, "p_high": [0.25, 1.0]}), tmp_path / "x.parquet")
    found = read_predictions(tmp_path / "x.parquet", TREE)
    assert list(found.slide_ids) == ["01", "02"]
    assert found.probabilities.tolist() == [[0.5, 0.25, 0.25], [0, 0, 1]]


@pytest.mark.parametrize(
    "columns",
    [
        {"slide_ids": ["a"], "target": np.array([0, 1]), "predicted": np.array([0])},
        {"slide_ids": ["a"], "target": np.array([0]), "predicted": np.array([0]), "patient_ids": []},
        {"slide_ids": [], "target": np.array([], int), "predicted": np.array([], int)},
    ],
)
def test_columns_of_unequal_length_cannot_become_predictions(columns: dict[str, object]):
    with pytest.raises(PredictionsError, match="every column must be as long as the slide ids and not empty"):
        Predictions(name="m", hierarchy=TREE, **columns)


GRADES = ClassHierarchy.flat(["low", "high"])
TWO_TARGETS = (
    "PATIENT,GRADE,SITE,pred_GRADE,pred_SITE,GRADE_high,GRADE_low,SITE_colon,SITE_lung,loss\n"
    "p2,high,lung,low,lung,0.25,0.75,0.5,0.5,0.9\np1,low,colon,low,colon,0.125,0.875,0.75,0.25,0.4\n"
)


def test_stamp_with_several_targets_reads_the_one_with_these_classes(tmp_path: Path) -> None:
    path = tmp_path / "patient-preds.csv"
    path.write_text(TWO_TARGETS)
    found = read_predictions(path, GRADES)
    assert (found.layout, tuple(found.slide_ids), tuple(found.patient_ids)) == (
        "STAMP patient-preds", ("p2", "p1"), ("p2", "p1"),
    )  # fmt: skip
    assert (found.target.tolist(), found.predicted.tolist()) == ([1, 0], [0, 0])
    assert found.probabilities.tolist() == [[0.75, 0.25], [0.875, 0.125]]


def test_the_mean_of_stamps_checkpoints_has_the_columns_of_one(tmp_path: Path) -> None:
    path = tmp_path / "patient-preds_95_confidence_interval.csv"
    path.write_text("PATIENT,GRADE,pred,GRADE_low,GRADE_high,loss\np1,low,high,0.25,0.75,0.9\n")
    found = read_predictions(path, GRADES)
    assert (found.target.tolist(), found.predicted.tolist(), found.probabilities.tolist()) == ([0], [1], [[0.25, 0.75]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TWO_TARGETS.replace("SITE_colon", "SITE_low").replace("SITE_lung", "SITE_high"),
            "several.*--true GRADE",
        ),
        (TWO_TARGETS.replace("GRADE_low", "GRADE_mild"), "of the targets 'GRADE', 'SITE' matches"),
    ],
)
def test_targets_of_stamp_that_cannot_be_told_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "patient-preds.csv"
    path.write_text(text)
    with pytest.raises(PredictionsError, match=message):
        read_predictions(path, GRADES)


def test_slides_that_appear_more_than_once_are_counted_once(tmp_path: Path):
    path = tmp_path / "folds.csv"
    path.write_text("slide_id,target,prediction\n" + "a,low,low\n" * 3 + "b,low,low\n")
    with pytest.raises(PredictionsError, match="1 slide ids appear more than once: 'a'"):
        read_predictions(path, TREE)


def test_classes_by_file_preset_and_list(tmp_path: Path):
    (tmp_path / "model.csv").write_text(OURS)
    (tmp_path / "classes.yaml").write_text("classes: [low, mid, high]")
    expected = read_predictions(tmp_path / "model.csv", TREE)
    for classes in (str(tmp_path / "classes.yaml"), tmp_path / "classes.yaml", ["low", "mid", "high"]):
        model = read_predictions(tmp_path / "model.csv", classes)
        assert model.hierarchy.digest == TREE.digest
        assert model.target.tolist() == expected.target.tolist()


def test_decimal_commas_are_read(tmp_path: Path):
    lines = [line.replace(",", ";").replace(".", ",") for line in OURS.splitlines()]
    (tmp_path / "german.csv").write_text("\n".join(lines))
    (tmp_path / "plain.csv").write_text(OURS)
    german, plain = (read_predictions(tmp_path / name, TREE) for name in ("german.csv", "plain.csv"))
    np.testing.assert_array_equal(german.probabilities, plain.probabilities)


def test_missing_columns_are_named_all_at_once(tmp_path: Path):
    (tmp_path / "named.csv").write_text(NAMED)
    with pytest.raises(PredictionsError, match="no column 'gues', 'whose'"):
        read_predictions(
            tmp_path / "named.csv", TREE, Source(true="truth", predicted="gues", slide="case", patient="whose")
        )
