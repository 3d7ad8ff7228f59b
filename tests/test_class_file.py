"""The class file: what can be written in it, and that reading gives back what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from tests.strategies import class_file, trees

from pams_mil import ClassHierarchy
from pams_mil.class_file import presets
from pams_mil.engine.config.run_config import configure
from pams_mil.errors import HierarchyError
from pams_mil.hierarchy import as_hierarchy, parse


@given(trees())
def test_a_tree_survives_its_file(hierarchy: ClassHierarchy):
    read = parse(class_file(hierarchy))
    assert read.levels == hierarchy.levels
    assert read.digest == hierarchy.digest


def test_presets_are_the_documented_ones():
    assert presets() == ("bethesda", "bracs", "cifar10", "colon", "digits", "isup")


@pytest.mark.parametrize("name", ["bethesda", "bracs", "cifar10", "colon", "digits", "isup"])
def test_presets_load_and_say_where_they_come_from(name: str):
    hierarchy = ClassHierarchy.load(name)
    assert hierarchy.name == name
    assert hierarchy.source
    assert set(hierarchy.display_names) <= {label for level in hierarchy.levels for label in level.names}


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
    hierarchy = ClassHierarchy.load(path)
    assert hierarchy.level_names == ("organ", "group", "class")
    assert hierarchy.order() == "IP ≡ LP ≺ TA ≺ TVA ≺ DCIS"
    assert hierarchy.order(1) == "Benign ≺ Adenoma ≺ Malignant"
    assert hierarchy.parents(1).tolist() == [0, 0, 1]
    assert hierarchy.display("IP") == "Inflammatory polyp"
    assert hierarchy.index("tubular") == hierarchy.index("3") == 2
    assert hierarchy.index("colon", 0) == 0
    assert hierarchy.source == "made up here"


def test_scalars_keep_their_spelling():
    hierarchy = parse("classes: [No, yes, 0, 1.0, 007, ~, null, 2024-01-01, 1e3, 0x10]")
    assert hierarchy.names() == ("No", "yes", "0", "1.0", "007", "~", "null", "2024-01-01", "1e3", "0x10")


def test_tied_groups():
    hierarchy = parse("classes:\n  - [{A: [[a, b]]}, {B: [c]}]\n  - {C: [d]}\n")
    assert hierarchy.order(0) == "A ≡ B ≺ C"
    assert hierarchy.order() == "a ≡ b ≡ c ≺ d"


@pytest.mark.parametrize(
    "text", ["\ufeffclasses: [a, b]\n", "classes: [a, b]\r\n", "%YAML 1.1\n---\nclasses: [a, b]\n"]
)
def test_harmless_variants(tmp_path: Path, text: str):
    path = tmp_path / "plain.yaml"
    path.write_bytes(text.encode())
    hierarchy = ClassHierarchy.load(str(path))
    assert hierarchy.names() == ("a", "b")
    assert hierarchy.name == "plain"
    assert hierarchy.level_names == ("class",)


def test_default_level_names_of_deep_trees():
    assert parse("classes: {A: {B: [a, b]}}").level_names == ("level1", "level2", "class")


def test_a_name_that_is_a_preset_and_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert ClassHierarchy.load("bracs").num_classes() == 7
    Path("bracs").write_text("classes: [a, b]")
    with pytest.raises(HierarchyError, match=r"both a preset and a file.*preset:bracs.*\./bracs"):
        as_hierarchy("bracs")
    assert len(as_hierarchy("preset:bracs")) == 7
    assert len(as_hierarchy("./bracs")) == len(as_hierarchy(Path("bracs"))) == 2


def test_a_config_refuses_the_same_name_and_keeps_the_meaning_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two readers of one string once gave one command two hierarchies."""
    monkeypatch.chdir(tmp_path)
    assert configure("m.csv", classes="bracs").resolved().classes == "bracs"
    Path("bracs").write_text("classes: [a, b]")
    with pytest.raises(HierarchyError, match="both a preset and a file"):
        configure("m.csv", classes="bracs").resolved()
    assert configure("m.csv", classes="preset:bracs").resolved().classes == "preset:bracs"
    assert configure("m.csv", classes="./bracs").resolved().classes == str(tmp_path.resolve() / "bracs")
