"""Runs the cells of docs/audit.ipynb, stores their outputs in it, and writes docs/notebook.md, which shows them.

Run: python docs/generate_notebook.py. A test runs the cells too and compares what they print.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
NOTEBOOK = DOCS / "audit.ipynb"
PAGE = DOCS / "notebook.md"


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its code cells, run one after the other in an empty folder."""
    names: dict[str, Any] = {"__name__": "notebook"}
    cells, number, here = [], 0, Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    number += 1
                    cell = {
                        **cell,
                        "execution_count": number,
                        "outputs": outputs("".join(cell["source"]), names, number),
                    }
                cells.append(cell)
        finally:
            os.chdir(here)
    return {**notebook, "cells": cells}


def outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What a cell prints, draws and leaves as the value of its last expression, as notebooks store it."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)  # noqa: S102  our own cells
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)  # noqa: S307
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())})
    for figure in map(plt.figure, plt.get_fignums()):
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=80, metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    shown_as_picture = bool(plt.get_fignums())
    plt.close("all")
    if value is not None and not shown_as_picture:
        data = {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = lines(value._repr_html_())
        found.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return found


def lines(text: str) -> list[str]:
    """Text as notebooks store it."""
    return text.splitlines(keepends=True)


def page(notebook: dict[str, Any]) -> str:
    """The notebook as Markdown with its outputs."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f'<img alt="what the cell draws" src="data:image/png;base64,{data["image/png"]}">')
            elif "text/html" in data:
                html = "".join(data["text/html"])
                parts.append(f"<div>\n{html}\n</div>")
            else:
                parts.append(f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```")
    note = "*This page is [audit.ipynb](audit.ipynb), run with the version that it documents.*"
    return "\n\n".join([parts[0], note, *parts[1:]]) + "\n"


def main() -> None:
    """Run, store, show."""
    notebook = run(json.loads(NOTEBOOK.read_text("utf-8")))
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(notebook), "utf-8")


if __name__ == "__main__":
    main()
