"""Split names that are nearly right, and patients that are probably one person: said, and never used silently."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.cohort import make_cohort, run, settings
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.data.examine import examine_manifest
from pams_mil.data.exposure import same_person
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine import open_run
from pams_mil.errors import ManifestError

TREE = ClassHierarchy.load("bracs")
MUELLER = ("M\u00fcller", "Mu\u0308ller")


def invoke(*words):
    return CliRunner(env={"COLUMNS": "500"}).invoke(app, [str(word) for word in words])


def altered(folder, old, new):
    """A small cohort with one cell of its table changed."""
    make_cohort(folder)
    table = folder / "manifest.csv"
    text = table.read_text("utf-8")
    assert text.count(old) == 1
    table.write_text(text.replace(old, new), "utf-8")
    return table


@pytest.mark.parametrize("typo", ["trian", "tra in", "holdout"])
def test_a_split_that_does_not_exist_is_refused_by_train_and_check(tmp_path, typo):
    table = altered(tmp_path / "c", "p-train-3,d,train", f"p-train-3,d,{typo}")
    with pytest.raises(ManifestError, match=rf"1 slides \('train-3'\) are in the unknown split '{typo}'"):
        run(settings(tmp_path / "c"), tmp_path / "run")
    assert not (tmp_path / "run/last.safetensors").exists()
    done = invoke("check", table, "--classes", tmp_path / "c/classes.yaml", "--features", tmp_path / "c/bags")
    assert done.exit_code == 1
    assert f"unknown split '{typo}'" in done.output
    if typo == "trian":
        assert "Did you mean 'train'?" in done.output


@pytest.mark.parametrize("spelling", ["Train", "train ", "TRAINING"])
def test_other_spellings_are_read_and_said(tmp_path, spelling):
    table = altered(tmp_path / "c", "p-train-3,d,train", f"p-train-3,d,{spelling}")
    manifest = Manifest.read(table)
    assert {r.split for r in manifest} == {"train", "val", "test"}
    said = f"{spelling!r} as 'train' (1)"
    assert any(said in note for note in manifest.notes)
    out = run(settings(tmp_path / "c", epochs=1), tmp_path / "run")
    run_json = (out / "run.json").read_text()
    assert spelling in run_json
    assert open_run(out).status()["state"] == "finished"
    done = invoke("check", table, "--classes", tmp_path / "c/classes.yaml", "--no-features")
    assert done.exit_code == 0, done.output
    assert said in done.output


PAIRS = [MUELLER, ("P1", "p1"), ("P1", "P1 "), ("P1", "P\u200b1"), ("P 1", "P\u00a01"), ("P1", "\ufeffP1")]


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_look_alike_patients_in_two_splits_are_an_error(tmp_path, one, two):
    make_cohort(tmp_path / "c")
    table = tmp_path / "c/manifest.csv"
    text = table.read_text("utf-8").replace("p-train-3,", f'"{one}",').replace("p-test-5,", f'"{two}",')
    table.write_text(text, "utf-8")
    with pytest.raises(ManifestError, match="2 patient ids differ from another only in case"):
        run(settings(tmp_path / "c"), tmp_path / "run")
    done = invoke("check", table, "--classes", tmp_path / "c/classes.yaml", "--no-features")
    assert done.exit_code == 1
    assert "look-alike patients" in done.output
    assert "Usable" not in done.output


def test_within_one_split_they_are_a_warning_and_cannot_be_dealt_apart(tmp_path):
    records = [SlideRecord(f"s{n}", patient, "N", "train") for n, patient in enumerate((*MUELLER, "q"))]
    (found,) = [p for p in examine_manifest(Manifest(tuple(records)), TREE) if p.kind == "look-alike patients"]
    assert not found.error
    assert found.slides == ("s0", "s1")
    assert r"\xfc" in found.message  # what cannot be told apart by eye is written out
    assert r"u\u0308" in found.message
    Manifest(tuple(records)).write(tmp_path / "m.csv")
    done = invoke("split", tmp_path / "m.csv", "--classes", "bracs", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "differ from another only in case" in done.output
    assert not (tmp_path / "out").exists()


def test_three_spellings_in_three_parts():
    records = [SlideRecord(s, p, "N", s) for s, p in (("train", "P1"), ("val", "P1 "), ("test", "p1"))]
    (found,) = [p for p in examine_manifest(Manifest(tuple(records)), TREE) if p.kind == "look-alike patients"]
    assert found.error
    assert found.message.startswith("3 patient ids")


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_one_person_however_it_is_typed(name):
    key = same_person(name)
    assert same_person(unicodedata.normalize("NFD", name)) == same_person(unicodedata.normalize("NFC", name))
    assert same_person(f" {name}\u200d ") == key
    assert same_person(key) == key


@pytest.mark.parametrize(("one", "two"), [("P1", "P2"), ("P1", "P 1"), ("P1", "P01"), ("a-b", "ab")])
def test_different_people_stay_different(one, two):
    assert same_person(one) != same_person(two)
