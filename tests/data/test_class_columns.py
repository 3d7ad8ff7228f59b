"""Sets of findings in a cohort table: one column of 0 and 1 per class, and what is wrong with them, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pams_mil.data.doctor import diagnose
from pams_mil.data.examine import examine_manifest
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.errors import LabelError, ManifestError
from pams_mil.hierarchy import ClassHierarchy, parse

SEVERAL = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N")
WITHOUT = ClassHierarchy.flat(["UDH", "DCIS"], findings="several")


def read(folder: Path, text: str, classes: ClassHierarchy = SEVERAL) -> Manifest:
    (folder / "table.csv").write_text(text)
    return Manifest.read(folder / "table.csv", classes=classes)


def test_columns_of_0_and_1_are_sets(tmp_path: Path) -> None:
    table = read(tmp_path, "slide_id,patient_id,DCIS,UDH,site\ns1,p1,1,1,a\ns2,p2,0,1.0,b\ns3,p3,0,0.0,c\n,,,,\n")
    assert [record.label for record in table] == ["UDH; DCIS", "UDH", "N"]
    assert table.records[0].extra == {"site": "a"}  # no second truth beside the label
    assert any("0 and 1 per class" in note for note in table.notes)
    table.write(tmp_path / "again.csv")
    assert [record.label for record in Manifest.read(tmp_path / "again.csv")] == ["UDH; DCIS", "UDH", "N"]
    marked = read(tmp_path, "slide_id,patient_id,N,UDH,DCIS\ns1,p1,1,0,0\ns2,p2,0,0,1\n")
    assert [record.label for record in marked] == ["N", "DCIS"]
    spelled = parse("classes: [N, UDH, DCIS]\nfindings: several\nnothing: N\naliases: {DCIS: [in situ]}")
    assert read(tmp_path, "slide_id,patient_id,UDH,in situ\ns1,p1,0,1\n", spelled).records[0].label == "DCIS"


def test_a_label_column_is_the_label_even_beside_columns_of_classes(tmp_path: Path) -> None:
    table = read(tmp_path, "slide_id,patient_id,label,UDH,DCIS\ns1,p1,DCIS,0.3,0.7\n")
    assert table.records[0].label == "DCIS"
    assert table.records[0].extra == {"UDH": "0.3", "DCIS": "0.7"}


def test_what_cannot_be_a_set_is_refused_in_words(tmp_path: Path) -> None:
    head = "slide_id,patient_id,UDH,DCIS\n"
    refused = {
        head + "s1,p1,2,0\n": r"slide 's1': expected 0 or 1 in the column 'UDH', found '2'",
        head + "s1,p1,0,\n": r"expected 0 or 1 in the column 'DCIS', found ''",
        head + "s1,p1,0,yes\n": r"found 'yes'",
        "slide_id,patient_id,DCIS\ns1,p1,1\n": r"no column 'UDH'",
        "slide_id,patient_id,N,UDH,DCIS\ns1,p1,0,0,0\n": r"no column is 1\. If nothing was found, mark 'N'",
    }
    for text, words in refused.items():
        with pytest.raises(ManifestError, match=words):
            read(tmp_path, text)
    with pytest.raises(ManifestError, match="under 'nothing:'"):
        read(tmp_path, head + "s1,p1,0,0\n", WITHOUT)
    with pytest.raises(ManifestError, match="has no column 'label'"):  # one finding per slide: no sets
        read(tmp_path, head + "s1,p1,0,1\n", ClassHierarchy.flat(["N", "UDH", "DCIS"]))


def cohort(labels: list[str], split: str = "") -> Manifest:
    return Manifest(tuple(SlideRecord(f"s{row}", f"p{row}", label, split) for row, label in enumerate(labels)))


def kinds(labels: list[str], classes: ClassHierarchy) -> dict[str, str]:
    return {one.kind: one.message for one in examine_manifest(cohort(labels), classes) if one.error}


def test_problems_of_sets_are_found_before_training() -> None:
    assert not kinds(["N", "UDH; DCIS"], SEVERAL)
    assert "No slide has 'DCIS'" in kinds(["N", "UDH"], SEVERAL)["finding without a slide"]
    assert "write 'N'" in kinds(["", "UDH; DCIS"], SEVERAL)["no label"]
    assert "under 'nothing:'" in kinds(["", "UDH; DCIS"], WITHOUT)["no label"]
    assert "together with a finding" in kinds(["N; UDH", "UDH; DCIS"], SEVERAL)["unknown label"]
    # a less urgent finding that no slide has alone is present all the same
    warnings = examine_manifest(Manifest((SlideRecord("s", "p", "UDH; DCIS"), SlideRecord("t", "q", "N"))), SEVERAL)
    assert not [one for one in warnings if one.kind == "absent class"]


def test_classes_of_one_finding_say_why_a_set_is_not_one() -> None:
    with pytest.raises(LabelError, match=r"names several findings.*'findings: several'"):
        ClassHierarchy.flat(["N", "UDH", "DCIS"]).index("UDH; DCIS")


def test_a_finding_that_no_slide_has_is_refused_for_training_and_else_a_warning() -> None:
    tree = ClassHierarchy.flat(["N", "UDH", "ADH", "DCIS"], findings="several", nothing="N")
    labels = ["N", "UDH; DCIS", "DCIS"]
    assert "No slide has 'ADH'" in kinds(labels, tree)["finding without a slide"]
    small = diagnose(cohort(labels), tree, features=None)  # e.g. another hospital's slides
    assert not small.errors
    assert [problem.message for problem in small.problems] == ["The cohort has no slide of 'ADH'."]
    assert "slides with each finding: UDH 1, ADH 0, DCIS 2." in small.notes[-1]
    assert diagnose(cohort(labels, "train"), tree, features=None).errors
