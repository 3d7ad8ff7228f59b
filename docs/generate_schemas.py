"""Writes the JSON schemas of the settings, from the code that checks them. Run: make pages.

The schemas of what `--json` prints are written by hand beside them; `tests/docs/test_commands.py` holds every output
that the documentation shows against them.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from pams_mil import atomic
from pams_mil.engine.config import grid_config, run_config

FOLDER = Path(__file__).parent / "reference" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """File name and content of every generated schema."""
    made = {
        "run-config": schema(run_config.RunConfig, "Settings of `pams train`"),
        "grid": schema(grid_config.GridConfig, "Settings of `pams bench`"),
    }
    return {
        f"{name}.schema.json": json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        for name, content in made.items()
    }


def schema(kind: Any, title: str) -> dict[str, Any]:
    """The schema of a settings class, with the remarks of the source and with bare names allowed."""
    content = kind.model_json_schema()
    remarks = {**attribute_docstrings(run_config), **attribute_docstrings(grid_config)}
    parts = content.get("$defs", {})
    for name, part in [*parts.items(), (kind.__name__, content)]:
        for key, value in part.get("properties", {}).items():
            if (name, key) in remarks:
                value["description"] = remarks[name, key]
    for choice in ("Choice", "ModelChoice", "GridMethod", "GridModel"):
        if choice in parts:  # `method: pams` is short for `method: {name: pams}`
            parts[choice] = {"anyOf": [{"type": "string"}, parts[choice]]}
    return {"$schema": DRAFT, **content, "title": title}


def attribute_docstrings(module: ModuleType) -> dict[tuple[str, str], str]:
    """What stands below each attribute of each class of a module."""
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for attribute, below in zip(node.body, node.body[1:], strict=False):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(attribute, ast.AnnAssign) and isinstance(text, ast.Constant):
                found[node.name, ast.unparse(attribute.target)] = " ".join(str(text.value).split())
    return found


if __name__ == "__main__":
    for name, text in schemas().items():
        atomic.write_text(FOLDER / name, text)
