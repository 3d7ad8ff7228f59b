"""A corpus of named broken files, each with the message that must refuse it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml

from pams_mil import ClassHierarchy, PamsError
from pams_mil.errors import HierarchyError
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.hierarchy import parse

FOLDER = Path(__file__).with_name("broken")
CLASSES = yaml.safe_load((FOLDER / "classes.expected.yaml").read_text("utf-8"))
PREDICTIONS = yaml.safe_load((FOLDER / "predictions.expected.yaml").read_text("utf-8"))
TREE = ClassHierarchy.flat(["a", "b", "c"], name="abc")


@pytest.mark.parametrize(("kind", "cases"), [("classes", CLASSES), ("predictions", PREDICTIONS)])
def test_every_file_has_its_message(kind: str, cases: dict[str, object]):
    assert sorted(path.name for path in (FOLDER / kind).iterdir()) == sorted(cases)


def test_class_files():
    for name, expected in CLASSES.items():
        with pytest.raises(HierarchyError) as caught:
            ClassHierarchy.load(FOLDER / "classes" / name)
        assert re.search(expected, str(caught.value), re.DOTALL), f"{name}: {caught.value}"


def test_predictions_files():
    for name, content in PREDICTIONS.items():
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
        expected = options.pop("expect")
        with pytest.raises(PamsError) as caught:
            read_predictions(FOLDER / "predictions" / name, TREE, Source(**options))
        assert re.search(expected, str(caught.value), re.DOTALL), f"{name}: {caught.value}"
        assert len(str(caught.value)) < 12_000, name


def test_a_tag_never_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HierarchyError):
        ClassHierarchy.load(FOLDER / "classes" / "python_object.yaml")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("classes: [a, b]\n# " + "x" * 10_000_000, "characters; expected at most"),
        ("classes: " + "[" * 100_000 + "]" * 100_000, "nested deeper than 32"),
        ("classes: " + "{a: " * 10_000 + "b" + "}" * 10_000, "nested deeper than 32"),
        ("classes:\n" + "".join(" " * depth + f"g{depth}:\n" for depth in range(1, 200)), "nested deeper than 32"),
        ("classes: [" + "a, " * 60_000 + "b]", "more than 20,000 entries"),
        ("classes: [" + ", ".join(f"&a{n} c{n}" for n in range(10_000)) + "]", "anchors"),
    ],
    ids=["10 MB", "deep lists", "deep mappings", "deep blocks", "many classes", "many anchors"],
)
def test_hostile_class_files_are_refused_quickly(text: str, message: str):
    start = time.process_time()
    with pytest.raises(HierarchyError, match=message):
        parse(text)
    assert time.process_time() - start < 5


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(HierarchyError, match=r"1,099,511,627,776 bytes; expected at most 262,144"):
        ClassHierarchy.load(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("brasc", r"neither a preset nor a file called 'brasc'\. Did you mean 'bracs'\? Presets: .*pams classes init"),
        ("classes: [a, b]\n" * 100, "neither a preset nor a file"),
        ("a\0b", "neither a preset nor a file"),
        (".", "is not a file"),
    ],
)
def test_names_that_lead_nowhere(name: str, message: str):
    with pytest.raises(HierarchyError, match=message):
        ClassHierarchy.load(name)


@pytest.mark.parametrize("path", ["missing.csv", "x" * 5000 + ".csv", "a\0b.csv"])
def test_predictions_that_are_not_there(path: str):
    with pytest.raises(PamsError, match=r"There is no file|cannot be read"):
        read_predictions(path, TREE)


def test_predictions_that_are_a_folder(tmp_path: Path):
    with pytest.raises(PamsError, match="is not a file"):
        read_predictions(tmp_path, TREE)


def test_a_class_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "classes.yaml"
    path.write_text("classes: [a, b]")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(HierarchyError, match="cannot be read: Permission denied"):
        ClassHierarchy.load(path)
