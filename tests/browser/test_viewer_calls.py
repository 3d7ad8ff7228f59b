"""The viewer's handle, explanations and first layer, in a real Chromium."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from tests.browser.chromium import CHROMIUM, Page
from tests.browser.viewer_pages import drawn, open_case

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import decision_path

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def calls(page):
    """What the rows say, by slide."""
    code = "e => [e.querySelector('.name b').textContent, e.querySelector('.chip').textContent]"
    shown = page.js(f"[...document.querySelectorAll('.case')].map({code})")
    return {slide: call.lstrip("↑↓ ") for slide, call in shown}


def kappa_in_address(page):
    return page.js("new URLSearchParams(location.hash.split('?')[1]).get('kappa')")


def test_calls_follow_the_operating_point(serve):
    """Field, slider, keys and links: every call is the exact decision at that κ, and a verdict is about that call."""
    page, session = serve()
    _, cases = session.visible()
    names = cases.hierarchy.names()

    def expected(kappa):
        return {slide: names[call] for slide, call in zip(cases.slide_ids, cases.path.calls(kappa), strict=True)}

    as_decided = calls(page)
    assert page.text("#kappa-state") == "calls as decided"
    thresholds = sorted({float(k) for k in cases.path.reach.ravel() if 0 < k < np.inf})
    for kappa in (0.01, *thresholds, *(np.nextafter(k, 0) for k in thresholds), 1000):
        page.choose("#kappa", repr(float(kappa)))
        assert calls(page) == expected(kappa), kappa
    page.choose("#kappa", "nonsense")
    assert calls(page) == expected(1000)
    page.click("#kappa-reset")
    assert calls(page) == as_decided
    page.js("document.activeElement.blur()")
    page.key(">")
    first = min(k for k in thresholds if k > 1)
    assert float(kappa_in_address(page)) == first
    assert calls(page) == expected(first) != as_decided
    assert page.text("#kappa-state") == "1 more urgent than as decided"
    assert page.js("[...document.querySelectorAll('.case .chip')].filter(e => e.textContent.includes('↑')).length") == 1
    page.js("document.querySelector('#kappa-slider').focus()")
    page.key("ArrowRight")
    assert calls(page) == expected(float(kappa_in_address(page)))
    page.choose("#kappa", "9")
    assert set(calls(page).values()) == {"severe"}
    page.choose("#call-filter", "2")
    assert len(calls(page)) == 3
    other = page.browser.page()
    other.go(page.js("location.href"))
    other.wait("document.querySelectorAll('.case').length === 3")
    assert set(calls(other).values()) == {"severe"}
    open_case(other)
    assert other.text("#call .big") == "severe"
    assert other.text("#call p").startswith("Called as if a missed urgency cost 9 false alarms")
    other.key("a")
    other.wait("document.querySelector('#verdict-state').textContent.startsWith('Agreed')")
    verdict = session.journal.state(other.text("#slide-name"))
    assert (verdict.label, verdict.facts["model_call"], verdict.facts["kappa"]) == ("severe", "severe", "9")
    assert page.complaints() + other.complaints() == []


def test_numbers_explain_themselves_on_hover_focus_and_tap(serve):
    page, _ = serve()
    assert page.js("document.querySelector('#why').hidden")
    x, y = page.place("[data-why=severity]")
    page.mouse("mouseMoved", x, y, button="none")
    page.wait("document.querySelector('#why').textContent.startsWith('Expected severity')")
    page.mouse("mouseMoved", 5, 5, button="none")
    page.wait("document.querySelector('#why').hidden")
    page.js("document.querySelector('[data-why=uncertainty]').focus()")
    assert "entropy" in page.text("#why")
    page.key("Escape")
    assert page.js("document.querySelector('#why').hidden")
    open_case(page)
    page.click("#call [data-why=severity]")
    assert page.text("#why").startswith("Expected severity")
    sides = "(r => [r.left, r.right, r.bottom])"
    box = page.js(f"{sides}(document.querySelector('#why').getBoundingClientRect())")
    assert box[0] >= 0
    assert box[1] <= 1400
    assert box[2] <= 900


def test_the_opening_page_leads_in_once(serve, browser, monkeypatch):
    """As `pams view` opens it, from a file: the cookie is taken although the browser came from elsewhere."""
    from tests.view.sessions import Served

    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    _, session = serve()
    server = Served(session)
    server.client = type("Nobody", (), {"close": lambda self: None})()
    try:
        server.server.open_browser()
        page = browser.page()
        page.go(opened[0])
        page.wait("document.querySelector('.case')", "the worklist")
        assert page.js("location.pathname + location.search") == "/"
        page.go(server.server.address)
        page.wait("document.querySelector('.case') && !location.search", "the worklist again, by its cookie")
        assert page.complaints() == []
    finally:
        server.close()


def test_the_agreement_of_runs_follows_the_operating_point(serve, cohort, tmp_path):
    """Each run's own call at κ is compared with the call of all at κ; it used to stay as decided."""
    from pams_mil.evaluate.decisions.worklist import agreement
    from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
    from pams_mil.evaluate.predictions.predictions import write_predictions
    from pams_mil.metrics.kappa_path import decision_path

    page, session = serve()
    tree = session.cases.hierarchy
    first = read_predictions(cohort / "predictions.csv", tree, Source(labels_needed=False))
    other = replace(first, probabilities=np.array([[0.1, 0.5, 0.4], [0.6, 0.1, 0.3], [0.5, 0.3, 0.2]]))
    other = replace(other, predicted=other.probabilities.argmax(1), layout="memory")
    paths = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for path, model in zip(paths, (first, other), strict=True):
        write_predictions(path, model)
    page, session = serve(paths=paths)
    _, cases = session.visible()
    shown = "[...document.querySelectorAll('.case')].map(e => [Number(e.dataset.row), e.children[6].textContent])"
    seen = set()
    for kappa in (None, 0.1, 0.7, 1.0, 2.0, 50.0, None):
        page.choose("#kappa", "" if kappa is None else repr(kappa))
        calls = [
            decision_path(one.probabilities, tree).calls(1.0 if kappa is None else kappa) for one in (first, other)
        ]
        expected = agreement(calls, cases.predicted if kappa is None else cases.path.calls(kappa))
        told = dict(page.js(shown))
        assert [told[str(row)] if str(row) in told else told[row] for row in range(3)] == [
            f"{100 * share:.0f} %" for share in expected
        ]
        seen.add(tuple(expected))
    assert len(seen) > 2


def test_a_badge_says_what_the_patient_was_seen_in(serve, cohort, tmp_path):
    header, *rows = (cohort / "predictions.csv").read_text().splitlines()
    roles = ("none", "none", "train+select")
    lines = [f"{header},exposure", *(f"{row},{role}" for row, role in zip(rows, roles, strict=True))]
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    page, _ = serve(paths=[tmp_path / "p.csv"])
    badge = "e => e.querySelector('.badge')?.textContent ?? ''"
    assert page.js(f"[...document.querySelectorAll('.case')].map({badge})") == ["seen", "", ""]
    open_case(page)
    page.js("document.querySelector('#slide-patient .badge').focus()")
    assert "has seen this patient (training, choice of the epoch)" in page.text("#why")


def test_disputed_orders_and_what_verdicts_reveal(serve, tmp_path):
    """Badges and facts follow the other order's calls at κ; the card says the cost ratio that verdicts act by."""
    names, rng = ("none", "mild", "severe"), np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 120)
    lines = [
        ",".join([f"s{i}", f"p{i}", "test", names[row.argmax()], *map(repr, row.tolist())]) for i, row in enumerate(p)
    ]
    head = "slide_id,patient_id,split,prediction,p_none,p_mild,p_severe"
    (tmp_path / "many.csv").write_text("\n".join([head, *lines]) + "\n")
    (tmp_path / "first.yaml").write_text("name: first\nclasses: [none, mild, severe]\n")
    (tmp_path / "other.yaml").write_text("name: other\nclasses: [severe, mild, none]\n")
    files = [str(tmp_path / f"{name}.yaml") for name in ("first", "other")]
    page, session = serve(paths=[tmp_path / "many.csv"], classes=files, features=None, slides=None)
    _, cases = session.visible()
    order = session.overview()["orders"][0]["classes"]
    other = ClassHierarchy.load(files[1])
    for kappa in (1, 4):
        page.choose("#kappa", str(kappa))
        own = cases.path.calls(kappa)
        theirs = np.array(order)[decision_path(cases.probabilities[:, order], other).calls(kappa)]
        by_slide = dict(zip(cases.slide_ids, (own != theirs).tolist(), strict=True))
        code = "e => [e.querySelector('.name b').textContent, !!e.querySelector('.badge')]"
        shown = dict(page.js(f"[...document.querySelectorAll('.case')].map({code})"))
        assert shown == {slide: by_slide[slide] for slide in shown}
        assert any(shown.values()) == (kappa != 1)
    page.js("document.querySelector('.case').scrollIntoView()")
    page.click(".case[data-line='0']")
    page.wait("document.querySelector('#call .facts')", "the facts of a case")
    assert "Called by other" in page.text("#call")
    page.screenshot(tmp_path / "slide.png")
    for number, row in enumerate(p):  # a noisy reader to whom a miss costs four false alarms
        below = np.concatenate([[0], row.cumsum()[:-1]])
        chance = np.exp(-6 * (4 * (1 - below - row) + below))
        verdict = names[int(rng.choice(3, p=chance / chance.sum()))]
        session.give(session.cases.row_of[f"s{number}"], {"action": "read", "class": verdict, "seen": 0})
    page.js("location.hash = '#/order'")
    page.wait("document.querySelector('#order').textContent.includes('What your verdicts reveal')", "the card")
    assert session.order_worth()["revealed"] in page.text("#order")
    assert "The readers act as if a miss cost" in page.text("#order")
    page.screenshot(tmp_path / "reveal.png")
    assert page.axe() == []


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(serve, dark):
    for width in (1280, 400):
        page, _ = serve(dark=dark, width=width)
        assert page.axe() == []
        open_case(page)
        assert page.axe() == []
        page.js("location.hash = '#/order'")
        page.wait("document.querySelector('#order').textContent.length > 40", "what the order is worth")
        assert page.axe() == []


def test_the_first_layer_is_the_evidence_for_the_call(serve):
    from pams_mil.view.heat import Heat

    page, session = serve()
    plain = session.heat_of(2)
    layers = {"attention grade": ("rank", np.arange(64.0)), "attention": ("rank", np.arange(64.0))}
    layers |= {f"evidence grade {name}": ("sign", np.eye(64)[place]) for name, place in (("none", 0), ("severe", 9))}
    heat = Heat(plain.coords_px0, plain.tile_px0, layers, {0: "evidence grade none", 2: "evidence grade severe"})
    for slide in session.cases.slide_ids:
        session._heat.keep(slide, heat)
    open_case(page)  # s-3, called severe
    shown = "document.querySelector('#layer').selectedOptions[0].textContent"
    assert page.js(shown) == "evidence for severe"
    alpha = "document.querySelector('.heat-canvas').getContext('2d').getImageData(0, 0, 8, 8).data[4 * i + 3]"
    page.wait(f"(i => {alpha} > 0)(9)")
    assert page.js(f"[...Array(64).keys()].filter(i => {alpha} > 0)") == [9]  # what says nothing hides no tissue
    for kappa, layer in (("0.01", "evidence for none"), ("9", "evidence for severe")):
        page.choose("#kappa", kappa)
        page.wait(f"{shown} === {layer!r}")
    page.choose("#layer", "0")
    page.choose("#kappa", "0.01")
    assert page.js(shown) == "attention grade"  # the reader's own choice stays


def test_moving_through_the_list_keeps_its_rows(serve, monkeypatch):
    """A step marks two rows, and a new operating point loads no picture again; until one is there, a placeholder is."""
    from pams_mil.view.session import Session

    release, before = threading.Event(), Session.thumbnail
    monkeypatch.setattr(Session, "thumbnail", lambda *given: release.wait(60) and before(*given))
    page, _ = serve()
    assert page.js("document.querySelectorAll('.thumb.waiting').length") == 3
    release.set()
    page.wait("document.querySelectorAll('.thumb img').length === 3 && !document.querySelector('.thumb.waiting')")
    page.wait("[...document.querySelectorAll('.thumb img')].every(e => e.src.includes('heat=1'))")
    page.js("[...document.querySelectorAll('.case')].forEach(e => { e.mine = true; })")
    loads = len([url for url in page.requested() if "/thumbnail/" in url])
    page.js("document.activeElement.blur()")
    for key, line in (("j", 1), ("j", 2), ("k", 1)):
        page.key(key)
        assert page.js("[...document.querySelectorAll('.picked')].map(e => Number(e.dataset.line))") == [line]
    assert page.js("[...document.querySelectorAll('.case')].every(e => e.mine)")
    page.choose("#kappa", "9")
    drawn(page)
    assert len([url for url in page.requested() if "/thumbnail/" in url]) == loads == 6


def test_a_link_from_a_page_on_disk_opens_the_slide(serve, tmp_path):
    """A strict cookie is not sent with such a link; it must arrive all the same, and only in the reader's browser."""
    page, session = serve()
    origin, key = page.js("location.origin"), session.cases.keys[1]
    report = tmp_path / "report.html"
    report.write_text(f"<!doctype html><a href='{origin}/open#/slide/{key}?kappa=9'>slide</a>")
    other = page.browser.page()
    other.go(report.as_uri())
    other.click("a")
    other.wait("document.querySelector('#slide-name')?.textContent === 's-2'", "the slide")
    assert kappa_in_address(other) == "9"
    stranger = page.browser.call("Target.createBrowserContext")["browserContextId"]
    target = page.browser.call("Target.createTarget", {"url": "about:blank", "browserContextId": stranger})["targetId"]
    session_id = page.browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
    third = Page(page.browser, session_id, 1280, 900, False)
    other.go(f"{origin}/#/slide/unknown")
    other.wait("document.querySelector('#toast').textContent.includes('does not show that slide')", "what is wrong")
    third.go(f"{origin}/open#/slide/{key}")
    third.wait("document.body?.textContent.includes('This link opens a slide')", "the page for strangers")
    assert third.js("location.pathname") == "/open"


def test_hundreds_of_classes_are_shown_by_group_and_found_by_typing(serve, tmp_path):
    size, rng = 60, np.random.default_rng(0)
    names = [f"c{number}" for number in range(size)]
    rows = [f"{name},g{number // 20},{number}" for number, name in enumerate(names)]
    (tmp_path / "many.csv").write_text("\n".join(["class,group,rank", *rows]) + "\n")
    p = rng.dirichlet(np.ones(size), 30)
    lines = [
        ",".join([f"s{i}", f"p{i}", "test", names[2 * i], names[row.argmax()], *map(repr, row.tolist())])
        for i, row in enumerate(p)
    ]
    head = ["slide_id", "patient_id", "split", "target", "prediction", *(f"p_{name}" for name in names)]
    (tmp_path / "p.csv").write_text("\n".join([",".join(head), *lines]) + "\n")
    page, _ = serve(paths=[tmp_path / "p.csv"], classes=str(tmp_path / "many.csv"), features=None, slides=None)
    assert "60 classes, in groups g0 ≺ g1 ≺ g2" in page.text("header")
    page.click(".case[data-line='0']")
    page.wait("document.querySelector('#call .facts')", "the facts of a case")
    assert page.js("document.querySelectorAll('#call .bars i').length") == 10
    assert "At least g2" in page.text("#call")
    assert "At least c7" not in page.text("#call")
    visible = (
        "[...document.querySelectorAll('#verdict-classes button')].filter(e => !e.hidden).map(e => e.dataset.class)"
    )
    assert page.js(visible) == []
    page.click("input[placeholder='Find a class']")
    page.type("c12")
    assert page.js(visible) == ["c12"]
    page.click("#verdict-classes button[data-class=c12]")
    page.wait("document.querySelector('#verdict-state').textContent.includes('c12')", "the verdict")
    page.js("location.hash = '#/order'")
    page.wait("document.querySelector('#order details')", "the classes, folded")
    assert page.js("document.querySelectorAll('#order > div > .table-wrap tr').length") == 3
