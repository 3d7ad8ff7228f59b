"""Pages of the real commands in a real browser: an audit, a benchmark, a tuning and a certificate of drawn digits."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from PIL import Image
from tests.browser.audit_pages import matrix, models_table, set_kappa
from tests.browser.chromium import CHROMIUM
from tests.engine.here import Here
from typer.testing import CliRunner

import pams_mil
from pams_mil.cli.main import app
from pams_mil.engine.grid import engines
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.first_screen import Counts

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
GRID = """
data: {manifest: digits/manifest.csv, features: digits/h5_files}
classes: digits
methods: [ce, {name: pams, label: PAMS}]
models: [mean_pool]
seeds: [0, 1]
training: {epochs: 1, lr: 0.01}
compute: {accelerator: cpu, threads: 1}
"""
SPACE = """
training: {epochs: 1, lr: 1e-2, patience: null, select: last, average: 1}
try:
  - {pooling: mean_pool}
"""
DIGITS = ClassHierarchy.load("digits").classes
OWN = "digits/manifest.csv --classes digits --features digits/h5_files"
PAGES = {
    "audit": "audited/report.html", "bench": "bench/report.html", "tune": "tuned/report.html",
    "certify": "certified/certificate.html", "orders": "ordered/certificate.html",
    "evaluate": "compared/report.html", "cv": "folds/report/report.html",
}  # fmt: skip


@pytest.fixture(scope="module")
def pams(tmp_path_factory):
    """The command, typed in a folder; gives what it prints."""
    folder = tmp_path_factory.mktemp("walk")

    def typed(line):
        words = shlex.split(line)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(engines, "LocalEngine", Here)
            patch.setattr(sys, "argv", ["pams", *words])
            done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return done.stdout

    return typed, folder


@pytest.fixture(scope="module")
def pages(pams):
    typed, folder = pams
    typed("cohort make digits digits --set train=42 --set val=21 --set test=42 --set noise=0.3")
    (folder / "grid.yaml").write_text(GRID)
    (folder / "space.yaml").write_text(SPACE)
    typed("bench grid.yaml --out bench --resamples 20")
    file = "bench/cells/mean_pool--{}--seed0/predictions/manifest-test.csv"
    typed(f"audit {file.format('ce')} {file.format('PAMS')} --classes digits --resamples 20 --out audited")
    tune = f"tune {OWN} --space space.yaml --folds 3 --seeds 1 --budget 9 --resamples 20 --out tuned"
    typed(f"{tune} accelerator=cpu model.embedding_features=8")
    cells = "bench/cells/mean_pool--ce--seed0 bench/cells/mean_pool--PAMS--seed0"
    typed(f"evaluate {cells} --resamples 20 --out compared")
    folds = f"cv {OWN} --folds 3 --method ce --model mean_pool --epochs 1 --lr 0.01 --resamples 20 --out folds"
    typed(f"{folds} accelerator=cpu model.embedding_features=8")
    typed(f"certify {file.format('ce')} --classes digits --alpha 0.3 --out certified")
    other = [name for group in (DIGITS[:2], DIGITS[4:], DIGITS[2:4]) for name in group]
    (folder / "other.yaml").write_text(f"name: other\nclasses: [{', '.join(other)}]\n")
    typed(f"certify {file.format('ce')} --classes digits --classes other.yaml --alpha 0.3 --out ordered")
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_used_and_its_command_says_the_same(browser, pams, pages, tmp_path, name):
    typed, _ = pams
    page = browser.page(width=1280, height=1000)
    page.go((pages / PAGES[name]).as_uri())
    page.wait("document.documentElement.classList.contains('live')", "the handle")
    page.js("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); }")
    decided = page.text("#live-sentence")
    page.drag(page.place("#handle .knob"), page.place("#live-curve svg"))
    page.wait("document.querySelector('#kappa').value !== ''", "the handle to follow")
    assert page.text("#live-sentence") != decided
    page.js("document.querySelector('#handle').focus()")
    for key in ("ArrowRight", "ArrowRight", "PageUp", "ArrowLeft"):
        page.key(key)
    page.js("[...document.querySelectorAll('#live-matrix button')].find(b => b.textContent !== '0').id = 'full'")
    page.click("#full")
    page.wait("document.querySelectorAll('#picked tbody tr').length > 0", "the slides of a cell")
    page.click("#live-missed tbody td.share")
    assert page.text("#picked-name").startswith("Missed: ")
    for row in range(len(models_table(page))):  # every model's own command
        if row:
            page.click(f"input[name=live-model][value='{row}']")
        page.js("document.querySelector('#copy-command [role=status]').textContent = ''")
        page.click("#copy-command button")
        page.wait("document.querySelector('#copy-command [role=status]').textContent === 'copied'")
        words = shlex.split(page.js("window.copied"))
        printed = json.loads(typed(shlex.join([*words[1:], "--json"])))
        sentence, counts = page.text("#live-sentence"), _counts(name, printed, row)
        assert f"({100 * counts['missed']:.1f} %) and raises " in sentence
        assert f"({100 * counts['false_alarms']:.1f} %)" in sentence
        if "seeds" not in sentence:
            assert matrix(page, row if name == "orders" else 0) == counts["cells"]
        if name in ("certify", "orders"):
            assert page.text("#live-state").endswith(printed["sentence"][printed["sentence"].rindex(" bounds") :])
        elif "seeds" not in sentence:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(pages)
                decided_again = eval(page.text("#copy-python code"), {"pams": pams_mil})  # the copied line, as it is
            assert Counts.of(decided_again).cells.tolist() == counts["cells"]
    assert page.screenshot(tmp_path / f"{name}.png").size == (1280, 1000)
    page.js("document.querySelectorAll('details').forEach(one => (one.open = true))")
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.js(cut) == 0  # no table needs to be pushed sideways
    unexplained = (
        "[...document.querySelectorAll('.data thead th')].map(head => [head.innerText, head.querySelector('button')])"
        ".filter(([text, term]) => !term && /AUC|missed|alarm|accuracy|AsCC|AsMC|risk|RPS|NLL|κ|α/i.test(text))"
        ".map(([text]) => text)"
    )
    assert page.js(unexplained) == []
    assert page.complaints() == []
    assert [url for url in page.requested() if not url.startswith("file:")] == []


def _counts(name, printed, row):
    """Shares and confusion matrix of what the copied command prints."""
    if name in ("certify", "orders"):
        own = list(printed["orders"].values())[row] if name == "orders" else printed
        shares = {key: own[key] / own["patients"] for key in ("missed", "false_alarms")}
        return {**shares, "cells": own["confusion"]}
    own = printed["files"][row if name == "audit" else 0]["levels"]["class"]
    return {"missed": own["missed_rate"], "false_alarms": own["false_alarm_rate"], "cells": own["confusion"]}


def test_a_benchmark_names_its_models_in_every_sentence_and_repeats_none(browser, pages):
    page = browser.page(width=1280)
    page.go((pages / PAGES["bench"]).as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    page.js("document.querySelectorAll('details.fold').forEach(one => (one.open = true))")
    sentences = page.js(
        "[...document.querySelectorAll('#live-sentence, .verdict, details.fold .columns p')]"
        ".map(one => one.innerText).filter(text => /miss|operates|compared/.test(text))"
    )
    assert len(sentences) >= 5
    assert len(set(sentences)) == len(sentences)
    assert [one for one in sentences if "mean_pool" not in one] == []


def test_slides_of_a_benchmark_lead_to_the_viewer(browser, pages):
    page = browser.page(width=1280)
    page.go((pages / PAGES["bench"]).as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    run = "bench/cells/mean_pool--ce--seed"
    assert page.text("#copy-view code") == f"pams view {run}0 {run}1"
    set_kappa(page, 0.5)
    page.click("#missed summary")
    page.wait("document.querySelector('#missed tbody a')")
    assert "/open#/slide/" in page.js("document.querySelector('#missed tbody a').href")
    assert page.js("document.querySelector('#missed tbody a').target") == "_blank"


def test_slides_of_a_benchmark_show_the_heatmaps_of_their_runs(browser, pams, pages):
    """Written into the reports of a run, as for 'pams evaluate'; only the rows of that run show them."""
    typed, _ = pams
    run = "bench/cells/mean_pool--ce--seed1"
    slide = (pages / run / "predictions" / "manifest-test.csv").read_text().splitlines()[1].split(",")[0]
    folder = pages / run / "reports" / "manifest-test" / "slides" / slide
    folder.mkdir(parents=True)
    (folder / "slide.html").write_text("<title>its page</title>")
    Image.new("RGB", (144, 108), "purple").save(folder / "thumbnail.jpg")
    typed("bench grid.yaml --out bench --resamples 20")
    page = browser.page(width=1280)
    page.go((pages / PAGES["bench"]).as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    set_kappa(page, 0)  # everything is called least urgent
    page.js("document.querySelectorAll('#live-lists details').forEach(one => (one.open = true))")
    shown = "[...document.querySelectorAll('#live-lists img.thumb')]"
    page.wait(f"{shown}.length > 0 && {shown}[0].naturalWidth === 144", "the picture")
    address = page.js(f"{shown}[0].closest('a').getAttribute('href')")
    assert (pages / "bench" / address).samefile(folder / "slide.html")
    assert set(page.js(f"{shown}.map(one => one.alt)")) == {f"Heatmap of {slide}"}
    page.click("input[name=live-model][value='1']")
    assert page.js(f"{shown}.length") == 0
    assert page.complaints() == []
