"""The audit page in a real Chromium, used as a person would: drag, keys, click, copy; and what it says is true."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest
from tests.browser.audit_pages import (
    HIERARCHY,
    confusion,
    finest,
    matrix,
    models_table,
    predictions,
    run,
    set_kappa,
)
from tests.browser.chromium import CHROMIUM

from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.report import live
from pams_mil.report.audit_html import audit_page, write_audit

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture
def page(browser, report):
    opened = browser.page(width=1280, height=1000)
    opened.go((report[0] / "report.html").as_uri())
    opened.wait("document.documentElement.classList.contains('live')", "the handle")
    return opened


def missed_rows(cells, ranks):
    return int(sum(cells[t][r] for t in range(7) for r in range(7) if ranks[t] > ranks[r]))


def test_page_json_and_command_line_agree_at_fifty_points(page, report):
    folder, _ = report
    scores = json.loads((folder / "scores.json").read_text())
    curve, ranks = finest(scores)["curve"], HIERARCHY.ranks()
    places = np.linspace(1, len(curve["kappa"]) - 1, 50).round().astype(int)
    for place in places.tolist():
        kappa = float("inf" if curve["kappa"][place] is None else curve["kappa"][place])
        set_kappa(page, kappa)
        cells = matrix(page)
        assert missed_rows(cells, ranks) / 140 == pytest.approx(curve["missed"][place], abs=1e-12)
        assert missed_rows(np.transpose(cells), ranks) / 140 == pytest.approx(curve["false_alarms"][place], abs=1e-12)
        told = finest(
            run("audit", str(folder / "first.csv"), "--classes", "bracs", "--resamples", "0", "--json",
                "--decide", f"kappa={kappa!r}")
        )  # fmt: skip
        assert cells == told["confusion"]
        sentence = page.text("#live-sentence")
        assert (
            f"misses urgency in {told['severe_errors']} of 140 slides ({100 * told['missed_rate']:.1f} %)" in sentence
        )
        assert f"({100 * told['false_alarm_rate']:.1f} %)." in sentence
    assert page.complaints() == []


def test_the_handle_is_dragged_and_the_copied_command_says_the_same(page, report):
    before = page.text("#live-sentence")
    start = page.place("#handle .knob")
    page.drag(start, (start[0] + 130, start[1] + 60))
    page.wait("document.querySelector('#kappa').value !== ''")
    assert page.text("#live-sentence") != before
    page.js("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); }")
    page.click("#copy-command button")
    page.wait("document.querySelector('#copy-command [role=status]').textContent === 'copied'")
    command = page.js("window.copied")
    words = shlex.split(command)
    assert words[0] == "pams"
    kappa = page.js("document.querySelector('#kappa').value")
    assert len(kappa) < 8  # the shortest number that makes the same calls
    told = run(*words[1:], "--json")
    assert finest(told)["confusion"] == matrix(page)
    assert page.text("#copy-python code") == f'pams.redecide(predictions, "kappa={kappa}")'
    # the lists are the slides whose calls differ
    model = report[1][0]
    calls = decision_path(model.probabilities, HIERARCHY).calls(float(kappa))
    severe = HIERARCHY.outranks()
    was, now = severe[model.target, model.predicted], severe[model.target, calls]
    raised = severe[calls, model.target] & ~severe[model.predicted, model.target]
    kinds = {"missed": now, "newly-missed": now & ~was, "newly-caught": was & ~now, "new-alarms": raised}
    counts = {kind: int(page.text(f"#{kind} .count")) for kind in kinds}
    assert counts == {kind: int(rows.sum()) for kind, rows in kinds.items()}
    assert counts["newly-caught"] > 0
    page.click("#newly-caught summary")
    page.wait("document.querySelectorAll('#newly-caught tbody tr').length > 0")
    shown = page.js("[...document.querySelectorAll('#newly-caught tbody tr')].map(row => row.cells[0].textContent)")
    assert set(shown) == {model.slide_ids[row] for row in np.flatnonzero(was & ~now)}


def test_arrow_keys_walk_from_point_to_point(page, report):
    model = report[1][0]
    path = decision_path(model.probabilities, HIERARCHY)
    page.js("document.querySelector('#handle').focus()")
    page.key("Home")
    kappas = np.unique(path.reach[~np.isnan(path.reach)])
    for step in range(1, 8):
        page.key("ArrowRight")
        kappa = float(page.js("document.querySelector('#kappa').value"))
        assert kappas[step] <= kappa < kappas[step + 1]
        assert np.array_equal(matrix(page), np.asarray(confusion(model, path.calls(float(kappas[step])))))
    page.key("ArrowLeft")
    assert int(page.js("document.querySelector('#handle').getAttribute('aria-valuenow')")) == 6
    page.key("End")
    assert float(page.js("document.querySelector('#kappa').value")) >= kappas[-1]
    assert page.text("#live-sentence").startswith("first misses urgency in 0 of")
    assert "missed, " in page.js("document.querySelector('#handle').getAttribute('aria-valuetext')")
    page.click("#reset")
    assert matrix(page) == confusion(model, model.predicted)


def test_models_move_together_at_equal_false_alarms(page, report):
    """The other model has the largest κ that raises no more false alarms; without it, the same κ."""
    set_kappa(page, 3.0)
    first, second = models_table(page)
    paths = [decision_path(model.probabilities, HIERARCHY) for model in report[1]]
    severe, target = HIERARCHY.outranks(), report[1][0].target

    def alarms(path, kappa):
        return int(severe[path.calls(kappa), target].sum())

    most = alarms(paths[0], 3.0)
    assert first[3].startswith(f"{most} (")
    steps = np.unique(paths[1].reach[~np.isnan(paths[1].reach)])
    best = max(kappa for kappa in steps.tolist() if alarms(paths[1], kappa) <= most)
    assert second[3].startswith(f"{alarms(paths[1], best)} (")
    assert second[2].startswith(f"{int(severe[target, paths[1].calls(best)].sum())} (")
    page.click("#matched")
    assert models_table(page)[1][1] == "3"
    assert models_table(page)[1][3].startswith(f"{alarms(paths[1], 3.0)} (")
    page.click("input[name=live-model][value='1']")
    assert page.text("#live-sentence").startswith("second misses")


def test_a_cell_and_a_bar_show_their_slides(page, report):
    model = report[1][0]
    page.click("#live-matrix tbody tr:nth-child(7) td:nth-child(7) button")
    rows = [model.slide_ids[row] for row in np.flatnonzero((model.target == 6) & (model.predicted == 5))]
    page.wait("!document.querySelector('#picked').hidden")
    assert page.text("#picked-name").endswith(f": {len(rows)} slide{'s' if len(rows) != 1 else ''}")
    listed = page.js("[...document.querySelectorAll('#picked tbody tr')].map(row => row.cells[0].textContent)")
    assert sorted(listed) == sorted(rows)
    page.click("#picked-close")
    assert page.js("document.querySelector('#picked').hidden")
    page.click("#live-missed tbody tr button")
    assert page.text("#picked-name").startswith("Missed: Invasive carcinoma")


def test_bars_of_missed_classes_follow_the_handle(page):
    seen = set()
    for kappa in (0.2, 1.0, 4.0):
        set_kappa(page, kappa)
        bars = page.js(
            "[...document.querySelectorAll('#live-missed tbody tr')].map(row => [row.cells[2].textContent,"
            " row.querySelector('rect.severe').getBoundingClientRect().width / row.querySelector('svg').clientWidth])"
        )
        for text, share in bars:
            missed, total = map(int, text.split(" of "))
            assert share == pytest.approx(missed / total, abs=0.01)
            seen.add(text)
    assert len(seen) > 6  # they move


def test_the_words_of_page_and_script_are_the_same(browser, report, tmp_path):
    """Without scripts the page says what the script says before anything is touched."""
    html = audit_page(audit(report[1], resamples=0))
    page = browser.page()
    page.go((report[0] / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    ids = ("live-sentence", "live-worst")
    for name in ids:
        assert re.search(rf'id="{name}">([^<]*)<', html)[1].replace("\u00a0", " ") == page.text(f"#{name}")
    (tmp_path / "still.html").write_text(re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL))
    still = browser.page()
    still.go((tmp_path / "still.html").as_uri())
    still.wait("document.querySelector('footer')")
    assert models_table(still) == models_table(page)
    assert matrix(still) == matrix(page)
    assert still.js("[...document.querySelectorAll('.live-only')].every(e => e.hidden)")
    assert not page.js("[...document.querySelectorAll('.live-only')].some(e => e.hidden)")


def test_names_from_files_are_text_and_nothing_is_fetched(browser, tmp_path):
    models = [predictions("</script><b>mine"), predictions("other", seed=1)]
    write_audit(audit(models, resamples=0), tmp_path)
    page = browser.page()
    page.go((tmp_path / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    set_kappa(page, 0.0)
    page.js("document.querySelectorAll('#live-lists details').forEach(list => (list.open = true))")
    page.wait("document.querySelectorAll('#missed tbody tr').length > 0")
    page.js("document.querySelectorAll('.more').forEach(button => button.click())")
    assert "onerror" in page.js("document.body.innerHTML") or "onerror" in page.js("document.body.textContent")
    assert page.js("document.querySelectorAll('img').length") == 0
    assert "owned" not in page.js("document.title")
    assert page.complaints() == []
    assert [url for url in page.requested() if not url.startswith("file:")] == []
    html = (tmp_path / "report.html").read_text()
    assert "unsafe-inline" not in html
    assert " style=" not in html


@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_the_window_in_light_and_dark_and_explains_its_words(browser, report, width):
    for dark in (False, True):
        page = browser.page(width=width, height=900, dark=dark)
        page.go((report[0] / "report.html").as_uri())
        page.wait("document.documentElement.classList.contains('live')")
        page.js("document.querySelectorAll('details').forEach(one => (one.open = true))")
        assert page.js("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        if width == 400:
            assert page.js(cut) == 0
        set_kappa(page, 2)  # the widest numbers
        box = "document.querySelector('#live-models').parentElement"
        assert page.js(f"{box}.scrollWidth - {box}.clientWidth") <= 1
        wanted = "rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)"
        assert page.js("getComputedStyle(document.body).backgroundColor") == wanted
        page.js("document.querySelector('#live-models button.term')?.focus()")
        if width == 1280:  # on a narrow screen the heads are beside the cells
            assert "operating point" in page.text("#tip")
        else:
            page.click("#live-models tbody tr td:nth-child(2)")
            assert "operating point" in page.text("#tip")
        page.js("document.activeElement.blur()")
        kinds = page.js(
            "['severe', 'over', 'right'].map(kind => getComputedStyle(document.querySelector("
            "`#live-matrix td.${kind}:not(.none)`)).backgroundColor)"
        )
        assert len(set(kinds)) == 3


def test_many_slides_are_beside_the_page_and_stops_are_exact(browser, report, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "MOST_EMBEDDED", 100)
    monkeypatch.setattr(live, "STOPS", 20)
    model = report[1][0]
    write_audit(audit([model], resamples=0), tmp_path)
    page = browser.page()
    page.go((tmp_path / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    assert "slide 17" not in page.js("document.querySelector('#live-data').textContent")
    path = decision_path(model.probabilities, HIERARCHY)
    set_kappa(page, 2.5)
    stop = float(page.js("document.querySelector('#live-models tbody tr td:nth-child(2)').textContent"))
    assert stop <= 2.5
    page.js("document.querySelector('#kappa').blur()")
    assert matrix(page) == confusion(model, path.calls(float(page.js("document.querySelector('#kappa').value"))))
    page.click("#live-load button")
    page.wait("!document.querySelector('#live-lists').hidden", "the file of slides")
    set_kappa(page, 2.5)
    assert matrix(page) == confusion(model, path.calls(2.5))
    assert page.complaints() == []


def test_a_model_without_probabilities_is_one_point(browser, tmp_path):
    model = predictions("mine")
    calls = Predictions("calls", HIERARCHY, model.slide_ids, model.target, model.predicted)
    write_audit(audit([calls, model], resamples=0), tmp_path)
    page = browser.page()
    page.go((tmp_path / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    assert "one point" in page.text("#live-state")
    assert page.js("document.querySelector('#kappa').disabled")
    page.click("input[name=live-model][value='1']")
    set_kappa(page, 5)
    assert models_table(page)[0][1] == "as decided"
    assert models_table(page)[1][1] == "5"
    assert page.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(browser, report, dark):
    page = browser.page(width=1280, dark=dark)
    page.go((report[0] / "report.html").as_uri())
    page.wait("document.documentElement.classList.contains('live')")
    page.js("document.querySelectorAll('details').forEach(one => (one.open = true))")
    set_kappa(page, 2)
    page.click("#live-matrix tbody tr:nth-child(7) td:nth-child(7) button")
    assert page.axe() == []
