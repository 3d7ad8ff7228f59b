"""Photographs the viewer on synthetic slides: docs/images/view-worklist.png and view-slide.png.

Run: python docs/draw_viewer.py. Needs the development environment and Chromium. The folder demo-view is kept.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"


def main() -> None:
    """Draw the slides, open the viewer, take both pictures."""
    sys.path.insert(0, str(ROOT))
    from tests.browser.chromium import Browser  # noqa: PLC0415  the browser that the tests drive

    command = [sys.executable, "-m", "pams_mil", "view", "--demo", "--no-browser"]
    server = subprocess.Popen([*command, "--reviewer", "Dr Example"], stdout=subprocess.PIPE, text=True)  # noqa: S603
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            address = server.stdout.readline().strip() if server.stdout else ""
            photograph(browser.page(width=1400, height=900), address)
        finally:
            browser.close()
            server.terminate()
            server.wait()


def photograph(page, address: str) -> None:  # noqa: ANN001
    """The worklist with two verdicts in it, then the third case with the evidence for its call."""
    page.go(address)
    page.wait("document.querySelector('.case')", "the worklist")
    for number in (0, 1):
        page.click(f".case[data-line='{number}']")
        page.wait("document.querySelector('.openseadragon-canvas')", "the slide")
        page.key("a")
        time.sleep(1.0)
        page.js("history.back()")
        page.wait("document.querySelector('.case')?.offsetParent", "the worklist again")
    time.sleep(1.0)
    page.screenshot(IMAGES / "view-worklist.png")
    page.click(".case[data-line='2']")
    page.wait("document.querySelector('.heat-canvas')?.width > 1", "the heatmap")
    time.sleep(3.0)
    page.screenshot(IMAGES / "view-slide.png")


if __name__ == "__main__":
    main()
