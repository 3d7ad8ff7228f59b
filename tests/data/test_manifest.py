"""Cohort tables of every known shape; ids are text; what is missing is asked for and never guessed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.cohorts import TREE

from pams_mil.data import Manifest, SlideRecord
from pams_mil.data.examine import examine_manifest
from pams_mil.data.manifest import manifest_reader
from pams_mil.data.manifest.foreign_tables import read_splits, write_splits
from pams_mil.data.manifest.manifest import bag_sources, most_urgent
from pams_mil.errors import ManifestError
from pams_mil.hierarchy import ClassHierarchy

ROWS = [("007", "0012", "N"), ("008", "0012", "DCIS"), ("1e5", "13", "IC")]


def _table(path: Path, header: list[str], rows: list[tuple[str, ...]]) -> Path:
    if path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in (header, *rows):
            book.active.append(list(row))
        book.save(path)
    elif path.suffix == ".parquet":
        columns = {name: [row[number] for row in rows] for number, name in enumerate(header)}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        path.write_text("\n".join(separator.join(row) for row in (header, *rows)) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".xlsx", ".parquet"])
@pytest.mark.parametrize("patient", ["patient_id", "case_id", "PATIENT"])
def test_ids_are_text_in_every_format(tmp_path: Path, suffix: str, patient: str) -> None:
    path = _table(tmp_path / f"m{suffix}", ["slide_id", patient, "label"], ROWS)
    manifest = Manifest.read(path)
    assert [(r.slide_id, r.patient_id, r.label) for r in manifest] == ROWS
    assert manifest.targets(TREE).tolist() == [0, 5, 6]


def test_patients_are_never_invented_silently(tmp_path: Path) -> None:
    path = _table(tmp_path / "m.csv", ["slide_id", "label"], [("a", "N"), ("b", "IC")])
    with pytest.raises(ManifestError, match="--patients-are-slides"):
        Manifest.read(path)
    manifest = Manifest.read(path, patients_are_slides=True)
    assert manifest.patients == ("a", "b")
    assert manifest.patients_are_slides
    assert "names no patients" in manifest.notes[0]


def test_the_flag_does_not_override_patients_that_are_there(tmp_path: Path) -> None:
    path = _table(tmp_path / "m.csv", ["slide_id", "case_id", "label"], ROWS)
    assert Manifest.read(path, patients_are_slides=True).patients == ("0012", "13")


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = _table(tmp_path / "m.csv", ["slide_id", "case_id", "grade"], ROWS)
    with pytest.raises(ManifestError, match="--label-column"):
        Manifest.read(path)
    assert Manifest.read(path, columns={"label": "grade"}).records[1].label == "DCIS"
    with pytest.raises(ManifestError, match="Did you mean 'grade'"):
        Manifest.read(path, columns={"label": "grades"})


def test_an_unknown_label_names_its_slide(tmp_path: Path) -> None:
    path = _table(tmp_path / "m.csv", ["slide_id", "case_id", "label"], [("a", "p", "dcis")])
    with pytest.raises(ManifestError, match=r"Slide 'a': 'dcis' is not a class.*Did you mean 'DCIS'"):
        Manifest.read(path).targets(TREE)


def test_clam_splits_with_columns_of_unequal_length(tmp_path: Path) -> None:
    path = _table(tmp_path / "m.csv", ["case_id", "slide_id", "label"], [(p, s, la) for s, p, la in ROWS])
    splits = tmp_path / "splits_0.csv"
    splits.write_text(",train,val,test\n0,007,1e5,\n1,008,,\n")
    assert [r.split for r in Manifest.read(path, splits=splits)] == ["train", "train", "val"]
    booleans = tmp_path / "splits_0_bool.csv"
    booleans.write_text(",train,val,test\n007,True,False,False\n008,False,False,True\n")
    manifest = Manifest.read(path, splits=booleans)
    assert [r.split for r in manifest] == ["train", "test", ""]
    assert "1 slides are in no split" in manifest.notes[-1]
    splits.write_text(",train,val,test\n0,7,,\n")
    with pytest.raises(ManifestError, match="does not have: '7'"):
        Manifest.read(path, splits=splits)
    splits.write_text(",train,val,test\n0,007,007,\n")
    with pytest.raises(ManifestError, match="both in 'train' and in 'val'"):
        read_splits(splits)


def test_stamp_tables_group_patients_whose_rows_are_apart(tmp_path: Path) -> None:
    clini = _table(tmp_path / "clini.xlsx", ["PATIENT", "grade"], [("P1", "N"), ("P2", "IC"), ("P3", "PB")])
    rows = [("P1", "a/one.h5"), ("P2", "two.h5"), ("P1", "a/three.h5"), ("P9", "nine.h5")]
    slides = _table(tmp_path / "slide.csv", ["PATIENT", "FILENAME"], rows)
    manifest = Manifest.read(slides, clini=clini, columns={"label": "grade", "patient_id": "PATIENT"})
    assert [(r.slide_id, r.patient_id, r.label, r.path) for r in manifest] == [
        ("a/one", "P1", "N", "a/one.h5"),
        ("two", "P2", "IC", "two.h5"),
        ("a/three", "P1", "N", "a/three.h5"),
    ]
    told = " ".join(manifest.notes)
    assert "'P9'" in told
    assert "'P3'" in told
    assert "not in adjacent rows" in told


def test_a_clinical_table_is_joined_in_linear_time(monkeypatch):
    """Looking an id up hashes it: a set that is built again for every patient would hash n times as often."""

    class Id(str):
        hashed = 0

        def __hash__(self) -> int:
            Id.hashed += 1
            return super().__hash__()

    slides = {"FILENAME": [f"s{i}" for i in range(500)], "PATIENT": [Id(f"p{i // 2}") for i in range(500)]}
    patients = {"PATIENT": [Id(f"p{i}") for i in range(300)], "grade": ["N"] * 300}
    monkeypatch.setattr(manifest_reader.tables, "read_table", lambda path: patients)
    notes: list[str] = []
    joined = manifest_reader._joined(slides, Path("slides.csv"), Path("clini.csv"), {}, notes)
    assert joined["grade"] == ["N"] * 500
    assert notes[0].startswith("50 patients of clini.csv have no slide in slides.csv: 'p250', 'p251'")
    assert Id.hashed < 10 * 500


def test_pathobench_folds_and_label_names(tmp_path: Path) -> None:
    folder = tmp_path / "bracs" / "slidelevel"
    folder.mkdir(parents=True)
    header = ["case_id", "slide_id", "slidelevel", "fold_0", "fold_1"]
    rows = [("c1", "s1", "0", "train", "test"), ("c2", "s2", "1", "test", "train")]
    path = _table(folder / "k=all.tsv", header, rows)
    assert [r.label for r in Manifest.read(path)] == ["0", "1"]  # the folder names the column
    (folder / "config.yaml").write_text("task_col: slidelevel\nlabel_dict: {0: N, 1: IC}\n")
    manifest = Manifest.read(path, fold=1)
    assert [(r.label, r.split) for r in manifest] == [("N", "test"), ("IC", "train")]
    with pytest.raises(ManifestError, match="no column 'fold_2'"):
        Manifest.read(path, fold=2)


def test_tags_come_from_the_tags_column_and_from_others(tmp_path: Path) -> None:
    header = ["slide_id", "case_id", "label", "tags", "findings"]
    path = _table(tmp_path / "m.csv", header, [("a", "p", "N", "rescan; old", "mixed")])
    record = Manifest.read(path).records[0]
    assert record.tags == ("rescan", "old")
    assert all(record.has_tag(tag) for tag in ("old", "mixed", "findings=mixed"))
    assert not record.has_tag("findings=pure")


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12).filter(
    str.strip
)


@settings(max_examples=40)
@given(rows=st.lists(st.tuples(texts, texts, texts, texts), min_size=1, max_size=8, unique_by=lambda row: row[0]))
def test_written_manifests_read_back_equal(tmp_path_factory, rows: list[tuple[str, str, str, str]]) -> None:
    records = tuple(SlideRecord(s, p, la, "val", extra={"note": note}) for s, p, la, note in rows)
    path = tmp_path_factory.mktemp("m") / "m.csv"
    Manifest(records).write(path)
    assert Manifest.read(path).records == records


def test_split_files_round_trip(tmp_path: Path) -> None:
    records = tuple(SlideRecord(f"=s{n}", f"p{n}", "N", ("train", "train", "test")[n]) for n in range(3))
    write_splits(tmp_path / "splits_0.csv", Manifest(records))
    assert read_splits(tmp_path / "splits_0.csv") == {"=s0": "train", "=s1": "train", "=s2": "test"}


def test_a_case_takes_its_most_urgent_label() -> None:
    labels = {"c1": ["N", "DCIS", "PB"], "c2": ["FEA", "ADH", "ADH"], "c3": ["UDH"]}
    records = tuple(
        SlideRecord(f"{case}-{n}", "p", label, "train", case_id=case)
        for case, found in labels.items()
        for n, label in enumerate(found)
    )
    sources = bag_sources(Manifest(records), TREE, merge_cases=True)
    assert [(s.name, TREE.names()[s.target], len(s.records)) for s in sources] == [
        ("c1", "DCIS", 3), ("c2", "ADH", 3), ("c3", "UDH", 1),
    ]  # fmt: skip
    apart = (*records[:2], SlideRecord("x", "p", "N", "test", case_id="c1"))
    with pytest.raises(ManifestError, match="different split"):
        bag_sources(Manifest(apart), TREE, merge_cases=True)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=9))
def test_nothing_outranks_the_label_of_a_case(targets: list[int]) -> None:
    chosen = most_urgent(targets, TREE)
    assert chosen in targets
    assert not TREE.outranks()[targets, chosen].any()


@pytest.mark.parametrize("seed", range(3))
def test_most_urgent_does_not_depend_on_order(seed: int) -> None:
    targets = np.random.default_rng(seed).integers(0, 7, 9)
    assert most_urgent(targets.tolist(), TREE) == most_urgent(sorted(targets.tolist()), TREE)


def test_real_tables_are_read_as_they_are(cric: Path, bracs: Path) -> None:
    manifest = Manifest.read(cric / "labels.csv")
    assert (len(manifest), len(manifest.patients)) == (400, 20)
    counts = np.bincount(manifest.targets(ClassHierarchy.load("bethesda")))
    assert counts.tolist() == [59, 101, 165, 30, 24, 21]
    assert sum(r.has_tag("mixed") for r in manifest) == 331
    slides = Manifest.read(bracs / "labels.csv", patients_are_slides=True)
    assert [len(slides.select(split)) for split in ("train", "val", "test")] == [395, 65, 87]
    assert json.dumps(slides.notes)


def nnmil(folder: Path, head: str, *rows: str) -> Path:
    """A table as nnMIL has it."""
    (folder / "dataset.csv").write_text("\n".join([head, *rows]) + "\n")
    return folder / "dataset.csv"


def test_nnmils_dataset_table(tmp_path: Path) -> None:
    table = nnmil(tmp_path, "slide_id,patient,label,split", "007,p1,N,train", "008,p1,IC,train", "009,p2,N,test")
    assert [(r.slide_id, r.patient_id, r.label, r.split) for r in Manifest.read(table)] == [
        ("007", "p1", "N", "train"), ("008", "p1", "IC", "train"), ("009", "p2", "N", "test"),
    ]  # fmt: skip


def test_a_numbered_fold_is_held_out_and_the_next_one_validates(tmp_path: Path) -> None:
    rows = [f"s{number},p{number},N,{number % 3}" for number in range(6)]
    table = nnmil(tmp_path, "slide_id,patient_id,label,fold", *rows, "s6,p6,N,")
    found = {fold: [record.split for record in Manifest.read(table, fold=fold)] for fold in (0, 2)}
    assert found[0] == ["test", "val", "train", "test", "val", "train", ""]
    assert found[2] == ["val", "train", "test", "val", "train", "test", ""]
    assert Manifest.read(table, fold=0).notes == (
        "Fold 0 of the table tests (2 slides), fold 1 validates, the others train.",
    )
    with pytest.raises(ManifestError, match=r"no fold 5; folds found: '0', '1', '2'"):
        Manifest.read(table, fold=5)
    with pytest.raises(ManifestError, match=r"It has the column 'fold': hold one out, e.g. --fold 0"):
        Manifest.read(table).select("train")


def test_folds_marked_with_one_and_zero_are_the_same(tmp_path: Path) -> None:
    rows = [f"s{number},p{number},N," + ",".join("01"[fold == number % 3] for fold in range(3)) for number in range(6)]
    table = nnmil(tmp_path, "slide_id,patient_id,label,fold_0,fold_1,fold_2", *rows)
    assert [r.split for r in Manifest.read(table, fold=0)] == ["test", "val", "train"] * 2
    nnmil(tmp_path, "slide_id,patient_id,label,fold_0,fold_1", "s0,p0,N,1,1", "s1,p1,N,0,1")
    with pytest.raises(ManifestError, match=r"row 1: the slide is in the folds '0', '1'"):
        Manifest.read(table, fold=0)


def test_test_slides_of_a_table_with_numbered_folds_stay_test(tmp_path: Path) -> None:
    rows = ["s0,p0,N,train,0", "s1,p1,N,train,1", "s2,p2,N,test,", "s3,p3,N,test,0"]
    found = Manifest.read(nnmil(tmp_path, "slide_id,patient_id,label,split,fold", *rows), fold=0)
    assert [record.split for record in found] == ["val", "train", "test", "test"]
    assert "its test slides stay test" in found.notes[0]


def test_a_table_with_every_slide_once_per_fold(tmp_path: Path) -> None:
    rows = ["s0,p0,N,train,0", "s1,p1,N,val,0", "s2,p2,N,test,0", "s0,p0,N,test,1", "s1,p1,N,train,1", "s2,p2,N,val,1"]
    for blank in ([], [",,,,"]):  # spreadsheets leave empty rows behind
        table = nnmil(tmp_path, "slide_id,patient_id,label,split,fold", *rows, *blank)
        assert [(r.slide_id, r.split) for r in Manifest.read(table, fold=1)] == [
            ("s0", "test"),
            ("s1", "train"),
            ("s2", "val"),
        ]


def test_two_numbered_folds_are_too_few(tmp_path: Path) -> None:
    table = nnmil(tmp_path, "slide_id,patient_id,label,fold", "s0,p0,N,0", "s1,p1,N,1")
    with pytest.raises(ManifestError, match=r"2 numbered folds .* expected at least 3"):
        Manifest.read(table, fold=0)


def test_words_in_the_columns_of_folds_come_before_numbers(tmp_path: Path) -> None:
    table = nnmil(tmp_path, "slide_id,patient_id,label,fold,fold_0", "s0,p0,N,3,train", "s1,p1,N,4,test")
    assert [record.split for record in Manifest.read(table, fold=0)] == ["train", "test"]


def test_labels_written_as_numbers_get_their_names_from_nnmils_json(tmp_path: Path) -> None:
    table = nnmil(tmp_path, "slide_id,patient_id,label", "s0,p0,0", "s1,p1,1")
    (tmp_path / "dataset.json").write_text(json.dumps({"task_type": "classification", "labels": {"0": "N", "1": "IC"}}))
    found = Manifest.read(table)
    assert [record.label for record in found] == ["N", "IC"]
    assert found.notes == ("Labels were named by the file beside the table: '0 is N', '1 is IC'.",)
    nnmil(
        tmp_path, "slide_id,patient_id,label", "s0,p0,N", "s1,p1,7"
    )  # names, and a number that the file does not know
    assert [record.label for record in Manifest.read(table)] == ["N", "7"]
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(ManifestError, match=r"dataset.json, which names the labels of dataset.csv, is not valid JSON"):
        Manifest.read(table)


def test_a_manifest_with_a_column_named_by_hand_reads_back(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("slide_id,patient_id,label,grade,site\ns0,p0,old,N,x\ns1,p1,old,PB,y\n")
    Manifest.read(tmp_path / "a.csv", columns={"label": "grade"}).write(tmp_path / "b.csv")
    found = Manifest.read(tmp_path / "b.csv")
    assert [(record.label, record.extra) for record in found] == [("N", {"site": "x"}), ("PB", {"site": "y"})]


def test_test_slides_stay_test_however_the_table_spells_it(tmp_path: Path) -> None:
    rows = ["s0,p0,N,training,0", "s1,p1,N,training,1", "s2,p2,N,training,2", "s3,p3,N,Testing,0"]
    found = Manifest.read(nnmil(tmp_path, "slide_id,patient_id,label,split,fold", *rows), fold=0)
    assert [record.split for record in found] == ["val", "train", "train", "test"]
    assert "validates (1 slides)" in found.notes[0]


def test_one_slide_listed_twice_is_a_mistake_and_not_a_table_of_folds(tmp_path: Path) -> None:
    rows = ["s0,p0,N,train,0", "s1,p1,N,train,1", "s2,p2,N,train,2", "s3,p3,N,test,", "s0,p0,N,train,1"]
    found = Manifest.read(nnmil(tmp_path, "slide_id,patient_id,label,split,fold", *rows), fold=0)
    assert [record.split for record in found] == ["val", "train", "train", "test", "train"]
    assert "duplicate slide" in {problem.kind for problem in examine_manifest(found, TREE)}


def test_wrong_columns_are_named_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,who,grade\na,p,N\n")
    with pytest.raises(ManifestError, match=r"no role 'patient'. Did you mean 'patient_id'"):
        Manifest.read(tmp_path / "t.csv", columns={"patient": "who"})
    with pytest.raises(ManifestError) as caught:
        Manifest.read(tmp_path / "t.csv", columns={"patient_id": "whom"})
    for words in ("'slide_id' or 'slide' or 'filename' (name it with --slide-column)", "'whom'", "--label-column"):
        assert words in str(caught.value)
