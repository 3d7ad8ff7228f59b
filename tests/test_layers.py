"""A module imports only from lower layers; packages of one layer never import one another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pams_mil

ROOT = Path(pams_mil.__file__).parent
LAYERS = {
    0: {
        "errors",
        "hierarchy",
        "class_file",
        "severity",
        "ops",
        "seeding",
        "atomic",
        "discover",
        "lazy",
        "tables",
        "parameters",
        "yaml_guard",
        "core_team",
        "devices",
        "digests",
        "weight_files",
    },
    1: {"models", "remix", "data", "metrics"},
    2: {"methods", "wsi", "evaluate", "cohorts"},
    3: {"engine", "report"},
    4: {"experiments", "view"},
    5: {"cli"},
    6: {"__main__"},
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}
MODULES = sorted(ROOT.rglob("*.py"))


def unit(path: Path) -> str:
    """The package or top-level module that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_units(path: Path) -> set[str]:
    """The parts of pams_mil that a file imports, anywhere in it: at the top, inside functions, or for typing."""
    package = ("pams_mil", *path.relative_to(ROOT).parts[:-1])
    found: set[str] = set()
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("pams_mil.")}
    return found


def violations(path: Path) -> list[str]:
    own = unit(path)
    if own == "__init__":  # the front door names core things of layer 0 and lazily what it must
        return [name for name in imported_units(path) if LAYER_OF.get(name, 9) > 0]
    allowed = {own, "__version__"}
    allowed |= {name for name, layer in LAYER_OF.items() if layer < LAYER_OF[own] or layer == LAYER_OF[own] == 0}
    core = {"ClassHierarchy", "PamsError"}
    return sorted(imported_units(path) - allowed - core)


def test_every_part_has_a_layer():
    parts = {unit(path) for path in MODULES} - {"__init__", "hierarchies"}
    assert parts <= set(LAYER_OF)


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])
def test_imports_go_down(path: Path):
    assert violations(path) == []


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("metrics/x.py", "from pams_mil.evaluate.scores import score"),
        ("metrics/x.py", "import pams_mil.data.bags.bag"),
        ("models/deep/x.py", "from pams_mil import metrics"),
        ("models/x.py", "from ..data import bag"),
        ("hierarchy.py", "def f():\n    from pams_mil.metrics import reduce"),
        ("engine/x.py", "from pams_mil.report import page"),
        ("evaluate/x.py", "from pams_mil.cli.main import main"),
    ],
)
def test_the_rule_sees_every_way_to_import(where: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert violations(path)
