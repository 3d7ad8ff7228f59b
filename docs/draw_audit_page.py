"""Photographs the page that docs/audit.ipynb writes, its handle moved: docs/images/audit-page.png.

Run: python docs/draw_audit_page.py. Needs Chromium. The cohort is the simulated one of the notebook.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser.chromium import Browser  # noqa: E402  found through the path above

PICTURE = Path(__file__).parent / "images" / "audit-page.png"


def main() -> None:
    """Run the notebook up to its audit, write the page, set κ = 3, take the picture."""
    cells = json.loads((Path(__file__).parent / "audit.ipynb").read_text("utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in [cell for cell in cells if cell["cell_type"] == "code"][:3]:
        exec("".join(cell["source"]), names)  # noqa: S102  our own cells
    with tempfile.TemporaryDirectory() as folder:
        page = names["report"].save(folder)
        browser = Browser(Path(folder) / "profile")
        view = browser.page(width=1280, height=1000)
        view.go(page.as_uri())
        view.wait("document.documentElement.classList.contains('live')")
        view.choose("#kappa", "3")
        view.js("document.activeElement.blur()")
        view.screenshot(PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
