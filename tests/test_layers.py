"""A module imports only from lower layers; packages of one layer never import one another."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import pams_mil

ROOT = Path(pams_mil.__file__).parent
LAYERS = {
    0: {
        "errors",
        "hierarchy",
        "arrays",
        "class_checks",
        "class_file",
        "severity",
        "ops",
        "seeding",
        "atomic",
        "discover",
        "yaml_guard",
        "digests",
    },
    1: {"models", "remix", "data", "metrics"},
    2: {"methods", "wsi", "evaluate", "cohorts"},
    3: {"engine", "report"},
    4: {"experiments", "view", "notebook"},
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


def test_imports_go_down():
    wrong = {str(path.relative_to(ROOT)): found for path in MODULES if (found := violations(path))}
    assert wrong == {}


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


def test_verbs_do_not_import_verbs():
    """What two verbs need lies below them, or in a helper of the command line that is not a verb."""
    from pams_mil.cli.main import VERBS

    verbs = {module for _, module, _ in VERBS}
    imports = {
        path.stem: sorted(verbs & set(re.findall(r"pams_mil\.cli\.(\w+)", path.read_text("utf-8"))) - {path.stem})
        for path in (ROOT / "cli").glob("*.py")
    }
    assert {name: found for name, found in imports.items() if found} == {}


def folders_imported(package: Path) -> dict[str, set[str]]:
    """Which of a package's folders imports which other ones, anywhere in their files."""
    folders = {folder.name for folder in package.iterdir() if (folder / "__init__.py").is_file()}
    prefix = ".".join(("pams_mil", *package.relative_to(ROOT).parts))
    edges: dict[str, set[str]] = {}
    for name in folders:
        texts = [path.read_text("utf-8") for path in (package / name).rglob("*.py")]
        used = {match for text in texts for match in re.findall(rf"{re.escape(prefix)}\.(\w+)", text)}
        edges[name] = (used & folders) - {name}
    return edges


def cycle(edges: dict[str, set[str]]) -> set[str]:
    """The folders that no order from lower to higher can take; none: there is no cycle."""
    left = dict(edges)
    while free := {name for name, used in left.items() if not used & set(left)}:
        left = {name: used for name, used in left.items() if name not in free}
    return set(left)


def test_folders_of_a_package_do_not_import_one_another_in_a_circle():
    packages = [path.parent for path in ROOT.rglob("__init__.py") if path.parent != ROOT]
    circles = {package.name: found for package in packages if (found := cycle(folders_imported(package)))}
    assert circles == {}
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {"a", "b", "c", "d"}
    assert cycle({"a": {"b"}, "b": set()}) == set()
