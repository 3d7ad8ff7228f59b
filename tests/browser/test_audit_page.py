"""The report in a real browser: it renders, fits narrow and wide windows, and follows light and dark."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

from pams_mil import ClassHierarchy
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.predictions import Predictions
from pams_mil.report.audit_page import audit_page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

PROBE = """
<script>
addEventListener("load", () => {
  const root = document.documentElement;
  const found = {
    overflow: root.scrollWidth - root.clientWidth,
    background: getComputedStyle(document.body).backgroundColor,
    severe: getComputedStyle(document.querySelector(".cm td.severe:not(.none)")).backgroundColor,
    over: getComputedStyle(document.querySelector(".cm td.over:not(.none)")).backgroundColor,
    charts: [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect().height),
  };
  document.title = "PROBE" + JSON.stringify(found) + "END";
});
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    hierarchy = ClassHierarchy.load("bracs")
    rng = np.random.default_rng(0)
    target = np.arange(140) % 7
    models = []
    for name in ("first", "second"):
        p = rng.dirichlet(np.ones(7), 140) * 0.5 + 0.5 * np.eye(7)[rng.permutation(target)]
        models.append(Predictions(name, hierarchy, [f"slide {i}" for i in range(140)], target, p.argmax(1), p))
    # The page forbids scripts, as it should; only the copy under test gets one.
    html = audit_page(audit(models, resamples=50)).replace("default-src 'none';", "")
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.replace("</main>", f"</main>{PROBE}"))
    return path


def probe(page, tmp_path, *, width, dark=False):
    import json

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path}/profile",
             f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom"]  # fmt: skip
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    shown = subprocess.run(
        [CHROMIUM, *flags, *scheme, page.as_uri()], capture_output=True, text=True, timeout=600, check=True
    ).stdout
    return json.loads(shown.split("PROBE")[1].split("END")[0].replace("&quot;", '"'))


@pytest.mark.parametrize("width", [520, 1240])
def test_it_fits_the_window_and_every_chart_has_a_height(page, tmp_path, width):
    found = probe(page, tmp_path, width=width)
    assert found["overflow"] <= 0
    assert len(found["charts"]) == 7  # curves of both levels, the radar, two charts for each model
    assert min(found["charts"]) > 40


def test_missed_urgency_and_over_calls_have_their_own_colors(page, tmp_path):
    found = probe(page, tmp_path, width=1240)
    assert found["severe"] != found["over"]


def test_dark_mode_is_followed(page, tmp_path):
    light, dark = (probe(page, tmp_path / str(dark), width=900, dark=dark)["background"] for dark in (False, True))
    assert light == "rgb(255, 255, 255)"
    assert dark == "rgb(20, 23, 26)"
