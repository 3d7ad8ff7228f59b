"""The benchmark's page in a real browser: it fits narrow and wide windows, and the safer method has the shorter bar."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest

from pams_mil import ClassHierarchy
from pams_mil.evaluate.predictions import Predictions
from pams_mil.report.bench import Entry, summarize
from pams_mil.report.bench_page import bench_page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

PROBE = """
<script>
addEventListener("load", () => {
  const root = document.documentElement;
  const bars = document.querySelectorAll("svg")[1].querySelectorAll("rect");
  document.title = "PROBE" + JSON.stringify({
    overflow: root.scrollWidth - root.clientWidth,
    bars: [...bars].map(bar => bar.getBoundingClientRect().width),
    charts: [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect().height),
  }) + "END";
});
</script>
"""


def predictions(hierarchy, seed, *, cautious):
    """A model that errs by one class: towards urgency when it is cautious, else away from it."""
    random = np.random.default_rng(seed)
    target = np.arange(140) % 7
    wrong = random.random(140) < 0.4
    predicted = np.clip(np.where(wrong, target + (1 if cautious else -1), target), 0, 6)
    slides = [f"slide {number}" for number in range(140)]
    return Predictions("model", hierarchy, slides, target, predicted, 0.9 * np.eye(7)[predicted] + 0.1 / 7)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    hierarchy = ClassHierarchy.load("bracs")
    entries = [
        Entry("AB-MIL", name, {f"seed {seed}": predictions(hierarchy, seed, cautious=cautious) for seed in range(3)})
        for name, cautious in (("Cross-entropy", False), ("A method with quite a long name", True))
    ]
    html = bench_page(summarize(entries, reference="Cross-entropy", resamples=50))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.replace("default-src 'none';", "").replace("</main>", f"</main>{PROBE}"))
    return path


@pytest.mark.parametrize("width", [520, 1240])
def test_it_fits_and_the_safer_method_stands_out(page, tmp_path, width):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path}/profile",
             f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom"]  # fmt: skip
    shown = subprocess.run([CHROMIUM, *flags, page.as_uri()], capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(shown.stdout.split("PROBE")[1].split("END")[0].replace("&quot;", '"'))
    assert found["overflow"] <= 0
    assert len(found["charts"]) == 3  # curve, missed urgency, accuracy and mildness
    assert min(found["charts"]) > 40
    reference, safer = found["bars"]
    assert safer < 0.3 * reference
