"""docs/architecture.md names files that exist, and no name stands for two things."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pams_mil

ROOT = Path(pams_mil.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def test_every_file_and_folder_on_the_page_exists():
    text = PAGE.read_text("utf-8")
    files = re.findall(r"\b((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)\b", text)
    assert len(files) > 15
    for file in files:
        place = ROOT.parents[1] if file.startswith("tests/") else ROOT
        assert (place / file).is_file(), file
    top = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    for name in re.findall(r"^\d  (.+)$", text, re.MULTILINE):
        assert set(re.sub(r"\(.*", "", name).split()) <= top


def test_no_room_has_more_than_twelve_modules():
    """The command line alone has one module per verb."""
    rooms = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        if not path.stem.startswith("__"):
            rooms[str(path.parent.relative_to(ROOT))].append(path.stem)
    assert len(rooms) > 20
    assert {room: len(modules) for room, modules in rooms.items() if len(modules) > 12 and room != "cli"} == {}


def test_no_two_modules_share_a_name():
    homes = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        if path.name != "__init__.py" and path.parent.name != "cli":
            homes[path.stem].append(str(path.relative_to(ROOT)))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_no_two_classes_share_a_name():
    homes = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_learners_predict_in_the_inference_loop_alone():
    """Another loop would have its own idea of devices, packs, memory and answers that are not finite."""
    callers = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "predict"
        and ast.unparse(node.func.value).endswith("learner")
    }
    assert callers == {"engine/inference_loop.py"}
