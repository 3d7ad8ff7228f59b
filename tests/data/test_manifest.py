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
from pams_mil.data.manifest.cases import merge_cases, most_urgent
from pams_mil.data.splits.clam_files import read_splits, write_splits
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
    sources = merge_cases(Manifest(records), TREE)
    assert [(s.name, TREE.names()[s.target], len(s.records)) for s in sources] == [
        ("c1", "DCIS", 3), ("c2", "ADH", 3), ("c3", "UDH", 1),
    ]  # fmt: skip
    apart = (*records[:2], SlideRecord("x", "p", "N", "test", case_id="c1"))
    with pytest.raises(ManifestError, match="different split"):
        merge_cases(Manifest(apart), TREE)


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


def test_nnmils_dataset_table(tmp_path: Path) -> None:
    (tmp_path / "dataset.csv").write_text(
        "slide_id,patient,label,split\n007,p1,N,train\n008,p1,IC,train\n009,p2,N,test\n"
    )
    found = Manifest.read(tmp_path / "dataset.csv")
    assert [(r.slide_id, r.patient_id, r.label, r.split) for r in found] == [
        ("007", "p1", "N", "train"), ("008", "p1", "IC", "train"), ("009", "p2", "N", "test"),
    ]  # fmt: skip
