"""docs/audit.ipynb runs from top to bottom, prints what it shows, and its page in the site is the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.docs.console_blocks import ROOT
from tests.docs.test_site import script


def told(notebook):
    """What a reader can read of the outputs; pictures differ by machine."""
    found = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text = (
                "".join(output.get("text", []))
                + "".join(data.get("text/plain", []))
                + "".join(data.get("text/html", []))
            )
            found.append(re.sub(r"base64,[\w+/=]*", "", re.sub(r"object at 0x\w+", "object", text)))
    return found


def test_the_notebook_runs_and_shows_what_it_gives():
    generate = script("generate_notebook")
    stored = json.loads((ROOT / "docs" / "audit.ipynb").read_text("utf-8"))
    # In a process of its own: here tests make do with fewer swaps and resamples.
    code = "import json, generate_notebook as g; print(json.dumps(g.run(json.loads(g.NOTEBOOK.read_text('utf-8')))))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, timeout=600, check=True
    )
    assert told(json.loads(done.stdout)) == told(stored)
    assert (ROOT / "docs" / "notebook.md").read_text("utf-8") == generate.page(stored)
    assert len(told(stored)) > 7


def test_an_old_output_would_be_seen():
    generate = script("generate_notebook")
    cell = {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"output_type": "stream", "text": ["3"]}]}
    assert told(generate.run({"cells": [cell]})) == ["2"]
