"""Benchmark, tuning and certificate in a real browser: the first screen of an audit, and its handle."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.browser.audit_pages import HIERARCHY, matrix, models_table, predictions, set_kappa
from tests.browser.chromium import CHROMIUM

from pams_mil import ClassHierarchy
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.certify import certify
from pams_mil.evaluate.certify.make import rates, views_by_order
from pams_mil.evaluate.certify.miss_losses import SlideReach
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.report import live
from pams_mil.report.audit_html import write_audit
from pams_mil.report.bench import Entry, summarize
from pams_mil.report.bench_page import bench_page, write_bench
from pams_mil.report.certificate_page import bounds_sentence, certificate_page, counts_at, needed_kappas
from pams_mil.report.slide_page import LevelCall, slide_page
from pams_mil.report.tune_page import tune_page

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
METHODS = {"Cross-entropy": 0.4, "A method with quite a long name": 1.2}


def entries(models=("AB-MIL", "TransMIL"), seeds=3):
    return [
        Entry(
            model,
            method,
            {
                f"seed {seed}": predictions(method, seed=100 * number + seed, sharpness=sharp, first="slide 0")
                for seed in range(seeds)
            },
        )
        for number, model in enumerate(models)
        for method, sharp in METHODS.items()
    ]


def tuning_record():
    scores = [
        {"recipe": name, "urgency_auc": value, "standard_error": 0.02, "within_one_standard_error": True}
        for name, value in (("mean_pool-pams", 0.81), ("abmil-ce", 0.8))
    ]
    names = ["abmil-ce", "mean_pool-pams", "abmil-hxe"]
    rungs = [
        {"recipes": names, "folds": 2, "seeds": [0], "complete": True, "failed": {"abmil-hxe": "loss is not finite"},
         "scores": scores},
        {"recipes": names[:2], "folds": 3, "seeds": [0, 1], "complete": True, "failed": {}, "scores": scores},
    ]  # fmt: skip
    return {
        "rungs": rungs,
        "choice": {
            "recipe": "mean_pool-pams", "in_words": "mean pooling with the PAMS loss", "why": "It is the simplest.",
            "by_fold": [{"recipe": "mean_pool-pams", "mean_of": names[:2]}] * 3,
            "each_seed": [0.8, 0.79], "simplicity": names[:2], "mean_of": names[:2],
        },
        "asked": {
            "reference": "abmil-ce", "slides": 140, "patients": 70, "folds": 3,
            "in_words": {name: f"the recipe {name}" for name in names},
        },
        "time": {"runs": 12, "seconds": 190.0},
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The four pages, by name."""
    out = tmp_path_factory.mktemp("pages")
    write_bench(summarize(entries(), reference="Cross-entropy", resamples=50), out / "bench")
    model = predictions("model", n=600, first="slide 0")
    certificate = certify(model, alpha=0.1, at={"Malignant": 0.2})
    (out / "certificate.html").write_text(certificate_page(certificate, model))
    groups = {"Benign": ["N", "PB", "UDH"], "Atypical": ["ADH", "FEA"], "Malignant": ["DCIS", "IC"]}
    both = model.with_orders(HIERARCHY.with_orders(ClassHierarchy.of(groups, name="other")))
    (out / "orders.html").write_text(certificate_page(certify(both, alpha=0.1), both))
    pair = [predictions("abmil-ce", first="slide 0"), predictions("mean_pool-pams", seed=1, first="slide 0")]
    found = audit(pair, resamples=20)
    (out / "tune.html").write_text(tune_page(tuning_record(), HIERARCHY, {"report": found}))
    level = LevelCall("subtype", [("Normal", 0.7), ("Invasive carcinoma", 0.3)], 0)
    (out / "slide.html").write_text(slide_page("S1", model="m", facts=[], levels=[level], layers=[], strips=[]))
    return out


PAGES = {"bench": "bench/report.html", "certificate": "certificate.html", "orders": "orders.html", "tune": "tune.html"}


def opened(browser, path, **view):
    page = browser.page(**view)
    page.go(path.as_uri())
    page.wait("document.documentElement.classList.contains('live')", "the handle")
    return page


@pytest.mark.parametrize("name", PAGES)
def test_the_first_screen_answers_when_touched(browser, folder, name):
    page = opened(browser, folder / PAGES[name], width=1280, height=1000)
    before = page.text("#live-sentence")
    assert "misses urgency in" in before
    # All of the first screen: the sentence, the curve and its handle are above the fold.
    assert page.js("document.querySelector('#handle').getBoundingClientRect().bottom") < 1000
    start = page.place("#handle .knob")
    page.drag(start, (start[0] + 90, start[1] + 40))
    page.wait("document.querySelector('#kappa').value !== ''")
    assert page.text("#live-sentence") != before
    assert page.complaints() == []
    assert [url for url in page.requested() if not url.startswith("file:")] == []


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_cut_and_axe_finds_nothing(browser, folder, width):
    for name, place in {**PAGES, "slide": "slide.html"}.items():
        for dark in (False, True):
            page = browser.page(width=width, height=900, dark=dark)
            page.go((folder / place).as_uri())
            page.wait("document.querySelector('footer')")
            page.js("document.querySelectorAll('details').forEach(one => (one.open = true))")
            assert page.js("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, name
            cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
            if width == 400:
                assert page.js(cut) == 0, name
            assert page.axe() == [], name


def test_a_benchmark_names_its_models_and_says_nothing_twice(browser, folder):
    page = opened(browser, folder / PAGES["bench"], width=1280)
    rows = [f"{method} on {model}" for model in ("AB-MIL", "TransMIL") for method in METHODS]
    assert [row[0] for row in models_table(page)] == rows
    sentences = page.js(
        "[document.querySelector('#live-sentence'), ...document.querySelectorAll('.verdict')].map(e => e.innerText)"
    )
    assert len(sentences) == 3
    assert all("AB-MIL" in one or "TransMIL" in one for one in sentences)
    assert sentences[1].startswith("On AB-MIL, at ")
    assert sentences[2].startswith("On TransMIL, at ")
    paragraphs = page.js("[...document.querySelectorAll('main > p')].map(e => e.innerText)")
    assert len(set(paragraphs)) == len(paragraphs)


def test_seeds_count_by_their_mean(browser, folder):
    """A slide of three seeds is one slide: rates are means of the networks, all decided with one κ."""
    page = opened(browser, folder / PAGES["bench"], width=1280)
    runs = list(entries()[0].runs.values())
    severe = HIERARCHY.outranks()
    for kappa in (0.5, 1.0, 3.0):
        set_kappa(page, kappa)
        calls = [decision_path(run.probabilities, HIERARCHY).calls(kappa) for run in runs]
        missed = np.mean([severe[run.target, call].sum() for run, call in zip(runs, calls, strict=True)])
        sentence = page.text("#live-sentence")
        number = re.match(r"Cross-entropy on AB-MIL misses urgency in ([\d.]+) of 140 slides \(([\d.]+) %\)", sentence)
        assert float(number[1]) == pytest.approx(missed, abs=0.051)
        assert float(number[2]) == pytest.approx(100 * missed / 140, abs=0.051)
        assert sentence.endswith("the mean of 3 seeds.")
    page.js("document.querySelector('#missed').open = true")
    page.wait("document.querySelectorAll('#missed tbody tr').length > 0")
    assert "seed" in page.js("document.querySelector('#missed tbody td small').textContent")
    assert page.text("#missed .count").endswith(" in 3 seeds")


@pytest.mark.parametrize("unit", ["case", "slide"])
def test_a_certificate_counts_as_its_bound_does(browser, tmp_path, unit):
    model = predictions("model", n=330, first="slide 0")
    certificate = certify(model, alpha=0.1, unit=unit)
    (tmp_path / "certificate.html").write_text(certificate_page(certificate, model))
    page = opened(browser, tmp_path / "certificate.html", width=1280)
    slides = SlideReach.of(model)
    for kappa in (None, 0.3, 2.0, float("inf")):
        if kappa is not None:
            set_kappa(page, kappa)
        expected = rates(slides, certificate.kappa if kappa is None else kappa, unit)
        row = models_table(page)[0]
        shares = [float(re.search(r"\(([\d.]+)\s%\)", cell)[1]) for cell in row[2:4]]
        assert shares == pytest.approx([100 * expected.missed_rate, 100 * expected.false_alarm_rate], abs=0.051)
        assert " of 165 patients " in page.text("#live-sentence")
        assert sum(map(sum, matrix(page))) == pytest.approx(165, abs=1)
    assert "Meets the bounds" in page.text("#live-state")
    set_kappa(page, certificate.kappa * 0.99)
    assert "Does not meet the bounds" in page.text("#live-state")


@pytest.mark.parametrize("unit", ["case", "slide"])
def test_every_order_of_a_certificate_follows_the_handle(browser, tmp_path, unit):
    """One page for one order and for several: mouse, keys and field move all of them along one κ."""
    flat = list(HIERARCHY.classes)
    other = ClassHierarchy.flat([flat[0], *flat[3:5], *flat[1:3], *flat[5:]], name="atypia is nothing")
    usual = ClassHierarchy.flat(flat, name="as usual")
    model = replace(predictions("model", n=330, first="slide 0"), hierarchy=usual.with_orders(other))
    certificate = certify(model, alpha=0.1, unit=unit)
    (tmp_path / "certificate.html").write_text(certificate_page(certificate, model))
    page = opened(browser, tmp_path / "certificate.html", width=1280)
    views = [SlideReach.of(view) for view in views_by_order(model).values()]
    needed = needed_kappas(certificate)

    def compare(kappa):
        for row, slides in zip(models_table(page), views, strict=True):
            expected = rates(slides, kappa, unit)
            shares = [float(re.search(r"\(([\d.]+)\s%\)", cell)[1]) for cell in row[2:4]]
            assert shares == pytest.approx([100 * expected.missed_rate, 100 * expected.false_alarm_rate], abs=0.051)

    compare(certificate.kappa)
    assert [row[0] for row in models_table(page)] == [f"model under {name}" for name in needed]
    for kappa in (0.3, sum(needed.values()) / 2, 1.01 * certificate.kappa, float("inf")):
        set_kappa(page, kappa)
        compare(kappa)
        assert page.text("#live-state").endswith(bounds_sentence(needed, kappa))
    assert "Meets the bounds of every order." in page.text("#live-state")
    page.drag(page.place("#handle .knob"), page.place("#live-curve svg"))
    page.js("document.querySelector('#kappa').blur()")
    page.js("document.querySelector('#handle').focus()")
    page.key("ArrowLeft")
    kappa = float(page.js("document.querySelector('#kappa').value"))
    compare(kappa)
    # what is missed is shown by the order whose row is chosen
    page.click("input[name=live-model][value='1']")
    assert page.text("#live-sentence").startswith("model under atypia is nothing misses ")
    assert page.js("document.querySelector('#live-order').hidden")
    counted = counts_at(certificate, model, kappa)["atypia is nothing"]
    assert np.allclose(matrix(page, 1), counted.cells, atol=0.051)
    bars = page.js("[...document.querySelectorAll('#live-missed-1 tbody th')].map(e => e.textContent)")
    assert bars == ["IC", "DCIS", "UDH", "PB", "ADH", "FEA"]
    page.click("#live-matrix-1 tbody tr:nth-child(7) td:nth-child(8) button")
    assert page.text("#picked-name").startswith("True IC, called IC: ")
    assert page.complaints() == []


def test_a_large_benchmark_loads_its_slides_from_beside(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "MOST_EMBEDDED", 100)
    monkeypatch.setattr(live, "STOPS", 20)
    write_bench(summarize(entries(("AB-MIL",), 2), reference="Cross-entropy", resamples=0), tmp_path)
    page = opened(browser, tmp_path / "report.html", width=1280)
    before = models_table(page)
    page.click("#live-load button")
    page.wait("!document.querySelector('#live-lists').hidden", "the file of slides")
    assert models_table(page) == before
    assert page.complaints() == []


def test_a_tuning_loads_its_slides_from_the_audit_beside(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "MOST_EMBEDDED", 100)
    found = audit([predictions("abmil-ce", first="slide 0"), predictions("b", seed=1, first="slide 0")], resamples=0)
    write_audit(found, tmp_path / "report")
    (tmp_path / "report.html").write_text(tune_page(tuning_record(), HIERARCHY, {"report": found}))
    page = opened(browser, tmp_path / "report.html", width=1280)
    page.click("#live-load button")
    page.wait("!document.querySelector('#live-lists').hidden", "the file of slides")
    assert page.complaints() == []


def test_methods_without_probabilities_still_have_sentences():
    bare = [
        replace(entry, runs={seed: replace(run, probabilities=None) for seed, run in entry.runs.items()})
        for entry in entries(("AB-MIL",))
    ]
    bench = summarize(bare, reference="Cross-entropy", resamples=0)
    assert bench.sentences == []
    assert "AB-MIL: " in bench_page(bench)
