"""The audit page beside the mouse: links, fingers, paper, many slides, many classes, and rounding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import Image
from tests.browser.audit_pages import HIERARCHY, confusion, finest, matrix, models_table, predictions, run, set_kappa
from tests.browser.chromium import CHROMIUM

from pams_mil import ClassHierarchy
from pams_mil.cli.audit_table import write
from pams_mil.digests import slide_key
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.report import live
from pams_mil.report.audit_html import write_audit

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
KINDS = (
    "normal mucosa", "reactive change", "benign tumor", "atypical hyperplasia", "low-grade dysplasia",
    "high-grade dysplasia", "carcinoma in situ", "invasive carcinoma, well differentiated",
    "invasive carcinoma, poorly differentiated", "metastatic disease",
)  # fmt: skip


def test_slides_of_a_run_link_to_the_viewer_and_show_their_heatmaps(browser, tmp_path):
    models = [predictions("mine", first="slide 0"), predictions("theirs", seed=1, first="slide 0")]
    grave = audit(models[:1], resamples=0).models[0].severe[0].slide_id
    folder = tmp_path / "slides" / grave
    folder.mkdir(parents=True)
    (folder / "slide.html").write_text("<title>its page</title>")
    Image.new("RGB", (144, 108), "purple").save(folder / "thumbnail.jpg")
    write(audit(models, resamples=0), tmp_path, {"mine": live.Links(view="pams view 'my runs/a'")})
    page = browser.page(width=1280)
    page.go((tmp_path / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    assert page.text("#copy-view code") == "pams view 'my runs/a'"
    set_kappa(page, 1)
    page.click("#missed summary")
    page.wait("document.querySelectorAll('#missed tbody tr').length > 0")
    first = "document.querySelector('#missed tbody tr td')"
    assert page.js(f"{first}.querySelector('a:last-of-type').href") == (
        f"http://127.0.0.1:{live.VIEW_PORT}/open#/slide/{slide_key(grave)}?kappa=1"
    )
    page.wait(f"{first}.querySelector('img').naturalWidth === 144", "the picture")
    assert (
        page.js(f"{first}.querySelector('a').getAttribute('href')") == f"slides/{grave.replace(' ', '%20')}/slide.html"
    )
    assert page.complaints() == []
    assert page.axe() == []
    page.click("input[name=live-model][value='1']")
    assert page.js("document.querySelector('#live-view').hidden")


def test_a_finger_drags_the_handle_taps_a_cell_and_reads_an_explanation(browser, report):
    page = browser.page(width=400, height=900)
    page.go((report[0] / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    page.js("window.kinds = new Set(); addEventListener('pointerdown', e => kinds.add(e.pointerType), true)")
    before = page.text("#live-sentence")
    x, y = page.place("#handle .knob")
    page.touch((x, y), (x + 70, y + 20))
    page.wait("document.querySelector('#kappa').value !== ''", "the handle to follow the finger")
    assert page.text("#live-sentence") != before
    assert page.js("[...kinds]") == ["touch"]
    kappa = float(page.js("document.querySelector('#kappa').value"))
    assert matrix(page) == confusion(report[1][0], decision_path(report[1][0].probabilities, HIERARCHY).calls(kappa))
    page.js("[...document.querySelectorAll('#live-matrix button')].find(b => b.textContent !== '0').id = 'full'")
    page.touch(page.place("#full"))
    page.wait("!document.querySelector('#picked').hidden")
    page.touch(page.place("#live-models tbody tr td:nth-child(2)"))
    page.wait("document.querySelector('#tip').textContent.includes('operating point')")


@pytest.mark.parametrize("move", [(70, 20), (70, 0), (0, 60)])
def test_the_first_tap_after_a_drag_is_a_click(browser, report, move):
    """The end of a drag is no fling, which a tap would only stop; down, too, the handle is dragged, not the page."""
    page = browser.page(width=400, height=900)
    page.go((report[0] / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    x, y = page.place("#handle .knob")
    scrolled = page.js("scrollY")
    page.touch((x, y), (x + move[0], y + move[1]))
    page.wait("document.querySelector('#kappa').value !== ''")
    assert page.js("scrollY") == scrolled
    button = "document.querySelector('#reset').getBoundingClientRect()"
    page.touch(page.js(f"(() => {{ const r = {button}; return [r.x + r.width / 2, r.y + r.height / 2]; }})()"))
    page.wait("document.querySelector('#kappa').value === ''", "the one tap to be a click")


def test_a_finger_beside_the_handle_scrolls_the_page(browser, report):
    page = browser.page(width=400, height=600)
    page.go((report[0] / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    page.place("#live-curve svg")
    x, y, scrolled = page.js(
        "(() => { const r = document.querySelector('#live-curve svg').getBoundingClientRect();"
        " return [r.right - 20, r.top + 40, scrollY]; })()"
    )
    kappa = page.js("document.querySelector('#kappa').value")
    page.touch((x, y), (x, y - 120))
    page.wait(f"scrollY > {scrolled} + 40", "the page to scroll")
    assert page.js("document.querySelector('#kappa').value") == kappa


def test_paper_shows_everything_and_cuts_nothing(browser, report):
    page = browser.page(width=1280)
    page.go((report[0] / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    set_kappa(page, 2)
    closed = page.js("document.querySelectorAll('details:not([open])').length")
    assert closed > 5
    assert page.paper().startswith(b"%PDF-")
    assert page.js("document.querySelectorAll('details:not([open])').length") == closed  # and closes them again
    # What the picture is taken of, right after the event and in the same breath.
    shown = page.js(
        "(() => { dispatchEvent(new Event('beforeprint'));"
        " return [document.querySelectorAll('details:not([open])').length,"
        " document.querySelectorAll('#missed tbody tr').length,"
        " Number(document.querySelector('#missed .count').textContent)] })()"
    )
    assert shown[0] == 0
    assert shown[1] == shown[2] > 0
    edge = "document.querySelector('main').getBoundingClientRect().right"
    beyond = f"[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > {edge} + 1)"
    assert page.js(f"{beyond}.map(e => e.outerHTML.slice(0, 80))") == []


def test_many_slides_follow_when_the_handle_rests(browser, tmp_path):
    """Above 2,000 slides numbers follow at once and rows a moment later; they are the gravest, as in the CSV."""
    model = predictions("mine", n=3000, first="slide 0")
    result = audit([model], resamples=0)
    write_audit(result, tmp_path)
    page = browser.page(width=1280)
    page.go((tmp_path / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    page.click("#missed summary")
    page.wait("document.querySelectorAll('#missed tbody tr').length === 100", "the first rows")
    listed = page.js("[...document.querySelectorAll('#missed tbody tr')].map(row => row.cells[0].textContent)")
    gravity = {error.slide_id: error.gravity for error in result.models[0].severe}
    assert [gravity[slide] for slide in listed] == sorted(gravity.values(), reverse=True)[:100]
    severe = HIERARCHY.outranks()
    for kappa in (0.5, 3.0):
        set_kappa(page, kappa)
        missed = int(severe[model.target, decision_path(model.probabilities, HIERARCHY).calls(kappa)].sum())
        assert page.text("#missed .count") == str(missed)
        page.wait(f"document.querySelectorAll('#missed tbody tr').length === {min(100, missed)}")


def test_exact_halves_are_rounded_as_the_command_line_does(browser, tmp_path):
    """1 of 16 is 6.25 %, which Python prints as 6.2 and a browser as 6.3."""
    model = predictions("mine", n=160, first="slide 0")
    write_predictions(tmp_path / "mine.csv", model)
    write_audit(audit([model], resamples=0), tmp_path / "report")
    page = browser.page(width=1280)
    page.go((tmp_path / "report" / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    halves = 0
    kappas = np.unique(model.path.reach[np.isfinite(model.path.reach)])
    for kappa in kappas[:: len(kappas) // 25]:
        set_kappa(page, float(kappa))
        words = ("audit", str(tmp_path / "mine.csv"), "--classes", "bracs", "--resamples", "0", "--decide",
                 f"kappa={float(kappa)!r}")  # fmt: skip
        told = finest(run(*words, "--json"))
        text = page.text("#live-sentence")
        for key in ("missed_rate", "false_alarm_rate"):
            assert f"({100 * told[key]:.1f} %)" in text
            halves += (0.625 * round(160 * told[key])) % 1 == 0.25  # x.25 %
        row = models_table(page)[0]
        assert row[4] == f"{100 * told['acc']:.1f} %"
    assert halves > 0


def test_groups_of_many_classes_follow_the_handle(browser, tmp_path):
    names = {f"g{group}": [f"c{10 * group + number}" for number in range(10)] for group in range(5)}
    tree, n = ClassHierarchy.of(names), 250
    random = np.random.default_rng(0)
    target = np.arange(n) % 50
    p = np.exp(-0.3 * np.abs(np.arange(50) - target[:, None]) + random.gumbel(size=(n, 50)))
    p /= p.sum(1, keepdims=True)
    model = Predictions("many", tree, [f"s{row}" for row in range(n)], target, p.argmax(1), p)
    write_audit(audit([model], resamples=0), tmp_path)
    page = browser.page(width=1280)
    page.go((tmp_path / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    path, groups = decision_path(p, tree), tree.groups(0)
    for kappa in (0.2, 1.0, 5.0):
        set_kappa(page, kappa)
        cells = np.zeros((5, 5), int)
        np.add.at(cells, (groups[target], groups[path.calls(kappa)]), 1)
        assert matrix(page) == cells.tolist()
        low = tree.outranks()[target, path.calls(kappa)]
        bars = page.js("[...document.querySelectorAll('#live-groups tbody tr')].map(row => row.cells[2].textContent)")
        assert bars == [f"{int(low[groups[target] == group].sum())} of 50" for group in range(4, -1, -1)]
    page.click("#live-matrix tbody tr:nth-child(5) td:nth-child(6) button")
    assert page.text("#picked-name") == f"True g4, called g4: {cells[4, 4]} slides"
    assert page.complaints() == []


def test_thirty_classes_have_a_matrix_of_their_own_and_names_that_do_not_overlap(browser, tmp_path):
    names = [f"{site} {kind}" for site in ("Breast", "Colon", "Lung") for kind in KINDS]
    tree = ClassHierarchy.of(
        {site: [name for name in names if name.startswith(site)] for site in ("Breast", "Colon", "Lung")}
    )
    random = np.random.default_rng(0)
    target = np.arange(300) % 30
    p = 0.15 * np.eye(30)[target] + 0.85 * random.dirichlet(np.ones(30), 300)
    ids = [f"s{row}" for row in range(300)]
    write_audit(audit([Predictions("mine", tree, ids, target, p.argmax(1), p)], resamples=0), tmp_path)
    page = browser.page(width=1280)
    page.go((tmp_path / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    assert page.text("main > p.dim").endswith("30 classes, in groups Breast ≺ Colon ≺ Lung")
    places = page.js(
        "[...document.querySelectorAll('#live-matrix thead span')].map(e => { const r = e.getBoundingClientRect();"
        " return [r.left, r.right]; })"
    )
    assert len(places) == 30
    assert all(left >= right for (_, right), (left, _) in itertools.pairwise(places))
    box = "document.querySelector('#live-matrix').parentElement"
    assert page.js(f"{box}.scrollWidth - {box}.clientWidth") <= 1
    assert page.js("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
