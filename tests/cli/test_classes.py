"""`pams classes`, `pams --help` and the demo."""

from __future__ import annotations

import io
import itertools
import json
import re
import shlex
import subprocess
import sys
import unicodedata
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from rich.console import Console
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.class_file import presets
from pams_mil.cli import classes, console
from pams_mil.cli.main import VERBS, app
from pams_mil.data.examine import class_file_text
from pams_mil.errors import HierarchyError
from pams_mil.hierarchy import hierarchy_from_json, parse


def run(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


def test_presets_are_listed():
    listed = run("classes")
    assert set(presets()) == {"bethesda", "bracs", "cifar10", "colon", "digits", "isup"}
    for name in presets():
        assert name in listed


def test_show_draws_the_tree_and_both_matrices():
    shown = run("classes", "show", "bracs")
    assert "≡ ADH" in shown
    assert "≺ IC" in shown
    assert ClassHierarchy.load("bracs").digest in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["IC", "9", "8", "7", "6", "5", "4", "1"] in rows
    assert ["IC", "9.6", "8", "6.4", "4.8", "3.2", "1.6", "1"] in rows


def test_the_template_is_a_valid_class_file_and_is_not_overwritten(tmp_path):
    path = tmp_path / "mine.yaml"
    run("classes", "init", path)
    hierarchy = ClassHierarchy.load(path)
    assert hierarchy.order() == "Normal ≺ Hyperplasia ≺ Flat atypia ≡ Ductal atypia ≺ In situ ≺ Invasive"
    path.write_text("mine")
    assert "--force" in run("classes", "init", path, code=2)
    assert path.read_text() == "mine"
    run("classes", "init", path, "--force")
    assert ClassHierarchy.load(path) == hierarchy


def test_cifar10_maps_torchvisions_indices():
    hierarchy = ClassHierarchy.load("cifar10")
    torchvision = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert [hierarchy.index(str(i)) for i in range(10)] == [7, 1, 0, 2, 3, 4, 5, 6, 8, 9]
    assert [hierarchy.index(name) for name in torchvision] == [7, 1, 0, 2, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_help_fits_and_has_an_example_that_can_be_copied(width: int, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
    monkeypatch.setattr("pams_mil.cli.console.output._width", width)  # it may be as wide as when it was imported
    below = [("classes", "show"), ("classes", "init"), ("classes", "compare"), ("cohort", "make")]
    for verb in [(), *((module if name == "app" else name,) for _, module, name in VERBS), *below]:
        shown = run(*verb, "--help")
        assert max(map(len, shown.splitlines())) <= width, verb
        assert "Usage: pams" in shown
        command = re.search(r"(?:Example|Start with): (pams (?:.*\\\n)*.*)", shown)
        assert command is not None, verb
        assert shlex.split(command[1])[1 : 1 + len(verb)] == list(verb) or verb == ()


def test_help_imports_no_torch_and_no_numpy():
    code = (
        "import sys\nsys.argv = ['pams', '--help']\nfrom pams_mil.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('HEAVY', sorted({'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "HEAVY []" in shown


def test_version_and_unknown_verb():
    assert "pams-mil" in run("--version")
    run("audti", code=2)


def test_many_classes_are_shown_without_matrices(tmp_path: Path) -> None:
    groups = "".join(f"  G{g}: [{', '.join(f'c{g}-{n}' for n in range(10))}]\n" for g in range(20))
    (tmp_path / "big.yaml").write_text(f"name: big\nclasses:\n{groups}")
    done = CliRunner().invoke(app, ["classes", "show", str(tmp_path / "big.yaml")])
    assert done.exit_code == 0
    assert "W and M have 200 x 200 entries" in done.output
    assert "c19-9" in done.output


def test_show_as_json_is_the_hierarchy_again():
    said = json.loads(run("classes", "show", "bracs", "--json"))
    digest = said.pop("digest")
    assert hierarchy_from_json(said).digest == digest == ClassHierarchy.load("bracs").digest


def test_names_are_printed_as_they_are(tmp_path):
    """Rich would drop "[in situ]" as markup and turn ":x:" into a picture."""
    file = tmp_path / "classes.yaml"
    file.write_text("name: odd\nlevels: ['grade [who]']\nclasses: ['mild:x:', 'carcinoma [in situ]', 'worse [/]']\n")
    shown = run("classes", "show", file)
    assert "\ngrade [who]  mild:x: ≺ carcinoma [in situ] ≺ worse [/]\n" in shown


def test_a_progress_bar_names_files_as_they_are(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(console, "errors", Console(file=shown, force_terminal=True, width=100))
    with console.progress_bar() as advance:
        advance("Reading scores [v2]", 0.5)
    assert "Reading scores [v2]" in shown.getvalue()


LABELS = "slide_id,grade\ns1,HSIL\ns2,NILM\ns3,NILM\ns4,\ns5,ASC-US\n"


def test_labels_of_a_table_become_a_file_without_an_order(tmp_path):
    (tmp_path / "labels.csv").write_text(LABELS)
    path = tmp_path / "my classes.yaml"
    assert "--label-column" in run("classes", "init", path, "--from", tmp_path / "labels.csv", code=2)
    shown = run("classes", "init", path, "--from", tmp_path / "labels.csv", "--label-column", "grade")
    assert f"pams classes show '{path}'" in shown
    text = path.read_text()
    assert "#   - NILM  # 2 rows\n" in text
    with pytest.raises(HierarchyError, match="has no 'classes'"):
        ClassHierarchy.load(path)
    lines = [line.removeprefix("# ") for line in text.splitlines()[3:]]
    path.write_text("\n".join(lines))
    assert ClassHierarchy.load(path).order() == "ASC-US ≺ HSIL ≺ NILM"


def test_labels_are_ordered_in_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(classes, "is_terminal", lambda: True)
    (tmp_path / "labels.csv").write_text(LABELS)
    options = ["--from", str(tmp_path / "labels.csv"), "--label-column", "grade"]
    result = CliRunner().invoke(app, ["classes", "init", str(tmp_path / "c.yaml"), *options], input="3 1\n3 1=2\n")
    assert result.exit_code == 0, result.output
    assert "1  ASC-US  (1 row)" in result.output
    assert "Expected every number from 1 to 3 once, found '3 1'." in result.output
    assert ClassHierarchy.load(tmp_path / "c.yaml").order() == "NILM ≺ ASC-US ≡ HSIL"


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=2, max_size=5, unique=True))
def test_any_label_survives_the_file(labels):
    labels = [label for label in labels if label.strip() and label.isprintable()]
    fine = [label for label in labels if label == unicodedata.normalize("NFC", label.strip())]
    if len(fine) < 2:
        return
    text = class_file_text(dict.fromkeys(fine, 1), fine, source="a: b.csv")
    assert parse(text).classes == tuple(fine)


def test_an_option_of_one_value_is_given_once(tmp_path):
    (tmp_path / "labels.csv").write_text("slide_id,patient_id,label\ns1,p1,N\ns2,p2,IC\n")
    shown = run("check", tmp_path / "labels.csv", "--no-features", "--classes", "isup", "--classes", "bracs", code=2)
    assert "--classes is given 2 times; expected it once." in shown
    shown = run("classes", "init", tmp_path / "a", "--from", "x", "--from", "y", code=2)
    assert "--from is given 2 times" in shown
    # options of several values may be repeated
    run("check", tmp_path / "labels.csv", "--no-features", "--no-features", "--classes", "bracs")


def test_help_fills_its_lines(monkeypatch):
    """A paragraph breaks where the terminal ends, not where a line of the source did."""
    monkeypatch.setenv("COLUMNS", "80")
    for _, module, name in VERBS:
        verb = module if name == "app" else name
        lines = run(verb, "--help").split("\u256d")[0].splitlines()
        for line, following in itertools.pairwise(lines):
            first = following.split()[:1]
            if line.strip() and first and "Usage" not in line and not line.endswith("\\"):
                assert len(line.rstrip()) + 1 + len(first[0]) >= 79, (verb, line)


def test_orders_are_compared_pair_by_pair(tmp_path):
    (tmp_path / "a.yaml").write_text("name: readers of A\nclasses: [N, FEA, ADH, IC]\n")
    (tmp_path / "b.yaml").write_text("name: readers of B\nclasses: [N, [FEA, ADH], IC]\n")
    assert "differ on 1 of 6 pairs" in run("classes", "compare", tmp_path / "a.yaml", tmp_path / "b.yaml")
    same = run("classes", "compare", tmp_path / "a.yaml", tmp_path / "a.yaml", "--json")
    assert json.loads(same)["disputed"] == []
    (tmp_path / "c.yaml").write_text("name: other\nclasses: [N, IC]\n")
    assert "different classes" in run("classes", "compare", tmp_path / "a.yaml", tmp_path / "c.yaml", code=2)
