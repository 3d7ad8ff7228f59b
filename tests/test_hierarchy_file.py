"""The class file: what can be written in it, and that reading gives back what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from tests.strategies import class_file, trees

from pams_mil import ClassHierarchy
from pams_mil.hierarchy_file import parse, presets


@given(trees())
def test_a_tree_survives_its_file(tree: ClassHierarchy):
    read = parse(class_file(tree))
    assert read.levels == tree.levels
    assert read.digest == tree.digest


def test_presets_are_the_documented_ones():
    assert presets() == ("bethesda", "bracs", "cifar10", "colon", "digits", "isup")


@pytest.mark.parametrize("name", ["bethesda", "bracs", "cifar10", "colon", "digits", "isup"])
def test_presets_load_and_say_where_they_come_from(name: str):
    tree = ClassHierarchy.load(name)
    assert tree.name == name
    assert tree.source
    assert set(tree.display_names) <= {label for level in tree.levels for label in level.names}


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("bracs", "N ≺ PB ≺ UDH ≺ FEA ≡ ADH ≺ DCIS ≺ IC"),
        ("colon", "IP ≡ LP ≺ HP ≡ SSL ≺ TA ≡ TVA ≡ TSA"),
        ("cifar10", "bird ≺ car ≺ cat ≺ deer ≺ dog ≺ frog ≺ horse ≺ plane ≺ ship ≺ truck"),
        ("isup", "0 ≺ 1 ≺ 2 ≺ 3 ≺ 4 ≺ 5"),
        ("bethesda", "NILM ≺ ASC-US ≺ LSIL ≺ ASC-H ≺ HSIL ≺ SCC"),
    ],
)
def test_orders_of_the_presets(name: str, order: str):
    assert ClassHierarchy.load(name).order() == order


def test_every_key(tmp_path: Path):
    path = tmp_path / "café.yaml"
    path.write_text(
        "name: demo\n"
        "levels: [organ, group, class]\n"
        "classes:\n"
        "  Colon:\n"
        "    Benign: [[IP, LP]]\n"
        "    Adenoma: [TA, TVA]\n"
        "  Breast:\n"
        "    Malignant: [DCIS]\n"
        "display: {IP: Inflammatory polyp}\n"
        "aliases: {TA: ['3', tubular], Colon: colon}\n"
        "source: >-\n  made up\n  here\n",
        "utf-8",
    )
    tree = ClassHierarchy.load(path)
    assert tree.level_names == ("organ", "group", "class")
    assert tree.order() == "IP ≡ LP ≺ TA ≺ TVA ≺ DCIS"
    assert tree.order(1) == "Benign ≺ Adenoma ≺ Malignant"
    assert tree.parents(1).tolist() == [0, 0, 1]
    assert tree.display("IP") == "Inflammatory polyp"
    assert tree.index("tubular") == tree.index("3") == 2
    assert tree.index("colon", 0) == 0
    assert tree.source == "made up here"


def test_scalars_keep_their_spelling():
    tree = parse("classes: [No, yes, 0, 1.0, 007, ~, null, 2024-01-01, 1e3, 0x10]")
    assert tree.names() == ("No", "yes", "0", "1.0", "007", "~", "null", "2024-01-01", "1e3", "0x10")


def test_ranks_instead_of_nested_lists():
    tree = parse("classes: {A: [a, b], B: [c, d]}\nranks: {a: 10, b: 10, c: 20, d: 30}")
    assert tree.order() == "a ≡ b ≺ c ≺ d"
    assert tree.order(0) == "A ≺ B"


def test_tied_groups():
    tree = parse("classes:\n  - [{A: [[a, b]]}, {B: [c]}]\n  - {C: [d]}\n")
    assert tree.order(0) == "A ≡ B ≺ C"
    assert tree.order() == "a ≡ b ≡ c ≺ d"


@pytest.mark.parametrize(
    "text", ["\ufeffclasses: [a, b]\n", "classes: [a, b]\r\n", "%YAML 1.1\n---\nclasses: [a, b]\n"]
)
def test_harmless_variants(tmp_path: Path, text: str):
    path = tmp_path / "plain.yaml"
    path.write_bytes(text.encode())
    tree = ClassHierarchy.load(str(path))
    assert tree.names() == ("a", "b")
    assert tree.name == "plain"
    assert tree.level_names == ("class",)


def test_default_level_names_of_deep_trees():
    assert parse("classes: {A: {B: [a, b]}}").level_names == ("level1", "level2", "class")


def test_a_preset_wins_over_a_file_of_that_name_and_a_path_reaches_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("bracs").write_text("classes: [a, b]")
    assert ClassHierarchy.load("bracs").num_classes() == 7
    assert ClassHierarchy.load("./bracs").num_classes() == 2
