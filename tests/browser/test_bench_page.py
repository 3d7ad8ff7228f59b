"""The benchmark's page in a real browser: it fits narrow and wide windows, and the safer method has the shorter bar."""

from __future__ import annotations

import numpy as np
import pytest
from tests.browser.chromium import CHROMIUM, Browser

from pams_mil import ClassHierarchy
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.report.bench import Entry, summarize
from pams_mil.report.bench_page import bench_page

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def predictions(hierarchy, seed, *, cautious):
    """A model that errs by one class: towards urgency when it is cautious, else away from it."""
    random = np.random.default_rng(seed)
    target = np.arange(140) % 7
    wrong = random.random(140) < 0.4
    predicted = np.clip(np.where(wrong, target + (1 if cautious else -1), target), 0, 6)
    slides = [f"slide {number}" for number in range(140)]
    return Predictions("model", hierarchy, slides, target, predicted, 0.9 * np.eye(7)[predicted] + 0.1 / 7)


def test_it_fits_and_the_safer_method_stands_out(tmp_path):
    hierarchy = ClassHierarchy.load("bracs")
    entries = [
        Entry("AB-MIL", name, {f"seed {seed}": predictions(hierarchy, seed, cautious=cautious) for seed in range(3)})
        for name, cautious in (("Cross-entropy", False), ("A method with quite a long name", True))
    ]
    (tmp_path / "report.html").write_text(bench_page(summarize(entries, reference="Cross-entropy", resamples=50)))
    browser = Browser(tmp_path / "profile")
    for width in (400, 1240):
        page = browser.page(width=width)
        page.go((tmp_path / "report.html").as_uri())
        page.wait("document.querySelector('footer')")
        assert page.js("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        heights = page.js("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().height)")
        assert len(heights) == 3  # curve, missed urgency, accuracy and mildness
        assert min(heights) > 40
        bars = "[...document.querySelectorAll('svg')[1].querySelectorAll('rect')]"
        reference, safer = page.js(f"{bars}.map(bar => bar.getBoundingClientRect().width)")
        assert safer < 0.3 * reference
        assert page.complaints() == []
    browser.close()
