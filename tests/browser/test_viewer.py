"""The viewer in a real Chromium, used as a reader would: open, sort, look, fly, read, undo, reload, audit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.browser.chromium import CHROMIUM
from tests.browser.viewer_pages import drawn, open_case, rows, settled, write_cohort
from typer.testing import CliRunner

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
HOSTILE = "<img src=x onerror=document.title='owned'>"


def test_a_reading_from_start_to_audit(serve, cohort):
    page, session = serve()
    assert "token" not in page.js("location.href")
    assert page.js("document.cookie") == ""  # scripts cannot see it
    assert rows(page) == ["s-3", "s-2", "s-1"]  # by severity
    page.choose("#sort", "slide")
    assert rows(page) == ["s-1", "s-2", "s-3"]
    page.click("#search")
    page.type("s-2")
    page.wait("document.querySelectorAll('.case').length === 1")
    page.choose("#search", "")
    page.choose("#sort", "urgency")
    page.js("document.activeElement.blur()")
    page.key("j")
    page.key("Enter")
    page.wait("document.querySelector('#slide-name').textContent === 's-2'")
    page.wait("document.querySelector('.heat-canvas')?.width === 8")
    assert "1 µm per pixel" in page.js(
        "[...document.querySelectorAll('#facts div')].map(e => e.textContent)"
    )  # no "1."

    page.choose("#opacity", "80")  # the slider
    assert page.js("document.querySelector('.heat-canvas').style.opacity") == "0.8"
    page.key("]")
    assert page.js("document.querySelector('.heat-canvas').style.opacity") == "0.9"
    page.key("h")
    assert page.js("document.querySelector('.heat-canvas').style.opacity") == "0"
    page.key("h")

    page.wait("document.querySelectorAll('#strip img').length === 12")
    page.click("#strip button")
    settled(page)
    shown = page.text("#where")
    assert "x 350, y 250" in shown  # the center of the hottest tile

    page.key("3")
    page.wait("document.querySelector('#verdict-state').textContent.startsWith('Overruled')")
    assert session.journal.state("s-2").label == "severe"
    page.key("u")
    page.wait("document.querySelector('#verdict-state').textContent === 'Unread'")
    page.key("a")
    page.wait("document.querySelector('#verdict-state').textContent.startsWith('Agreed')")

    link = page.js("location.hash")
    page.call("Page.reload")
    page.wait(
        "document.querySelector('#verdict-state')?.textContent.startsWith('Agreed')", "the verdict after a reload"
    )
    page.wait("document.querySelector('.heat-canvas')?.width === 8")
    settled(page)
    assert page.js("location.hash") == link  # the link shows the same again
    assert page.text("#where") == shown
    assert page.js("document.querySelector('#opacity').value") == "90"

    page.key("Escape")
    page.wait("[...document.querySelectorAll('.status')].some(e => e.textContent === 'agreed')")
    assert page.complaints() == []
    assert all(url.startswith(("http://127.0.0.1", "data:", "blob:")) for url in page.requested())

    from pams_mil.cli.main import app

    classes = str(cohort / "classes.yaml")
    done = CliRunner().invoke(app, ["audit", str(session.journal.table), "--classes", classes, "--resamples", "0"])
    assert done.exit_code == 0, done.output
    assert "kept 1 of 1 calls" in " ".join(done.output.split())


def test_the_heatmap_lies_on_the_tissue_to_the_pixel(serve):
    """Only the hottest tile is shown, in full color; its square on the screen is where the slide says it is."""
    page, _ = serve()
    open_case(page)
    settled(page)
    page.choose("#threshold", "100")
    page.choose("#opacity", "100")
    drawn(page)
    hot = np.asarray(page.screenshot()).astype(int)
    page.choose("#opacity", "0")
    drawn(page)
    cold = np.asarray(page.screenshot()).astype(int)
    stage = page.js("(() => { const r = document.querySelector('#osd').getBoundingClientRect();"
                    " return [r.x, r.y, r.width, r.height]; })()")  # fmt: skip
    changed = np.abs(hot - cold).sum(2) > 30
    changed[:, int(stage[0] + stage[2]) :] = False
    lines, columns = np.nonzero(changed)
    found = (columns.min(), lines.min(), columns.max() + 1, lines.max() + 1)
    scale = min(stage[2], stage[3]) / 800  # the slide fills the shorter side
    left, top = stage[0] + (stage[2] - 800 * scale) / 2, stage[1] + (stage[3] - 800 * scale) / 2
    expected = (left + 300 * scale, top + 200 * scale, left + 400 * scale, top + 300 * scale)
    assert np.abs(np.array(found) - expected).max() <= 1.5


def test_names_from_files_are_text(serve, tmp_path):
    folder = write_cohort(tmp_path / "hostile", ids=(HOSTILE, "b", "c"), slides=False)
    page, _ = serve(folder)
    assert HOSTILE in rows(page)
    page.js("[...document.querySelectorAll('.case')].forEach(e => e.textContent.includes('onerror') && e.click())")
    page.wait("document.querySelector('#slide-name').textContent.includes('onerror')")
    drawn(page)
    assert "owned" not in page.js("document.title")
    assert page.js("document.querySelectorAll('img[src=x]').length") == 0


def test_a_blind_reader_gives_a_class_first(serve):
    page, session = serve(blind=True)
    assert rows(page) == ["s-1", "s-2", "s-3"]  # as in the file
    assert "hidden" in page.text(".case")
    page.click(".case[data-line='0']")
    page.wait("document.querySelector('#call').textContent.includes('hidden until')")
    page.wait("document.querySelector('#heat-problem').textContent.includes('Hidden')")
    page.key("a")  # there is nothing to agree with yet
    page.key("3")
    page.wait("document.querySelector('#verdict-state').textContent.startsWith('Overruled')")
    page.wait("document.querySelector('#call .big')?.textContent === 'none'")
    page.wait("document.querySelector('.heat-canvas')?.width === 8")
    assert session.journal.state("s-1").blind


def test_two_windows(serve):
    page, session = serve()
    open_case(page)
    other = page.browser.page()
    other.go(page.js("location.href"))
    other.wait("document.querySelector('#slide-name')?.textContent === 's-3'")
    page.key("1")
    page.wait("document.querySelector('#verdict-state').textContent.startsWith('Overruled')")
    other.key("2")
    other.wait("document.querySelector('#toast').textContent.includes('another window')")
    other.wait("document.querySelector('#verdict-state').textContent.includes('none')")
    assert session.journal.state("s-3").label == "none"


def test_a_region_is_dragged(serve):
    page, session = serve()
    open_case(page)
    settled(page)
    page.key("r")
    page.drag((420, 420), (560, 520))
    page.wait("document.querySelector('#region-list li')")
    slide = session.cases.slide_ids[int(session.visible()[1].order[0])]
    x, y, width, height = session.journal.regions[slide][0]["box"]
    assert width / height == pytest.approx(1.4, rel=0.05)
    assert 0 < x < 800
    assert 0 < y < 800
    page.click("#region-list button")
    page.wait("!document.querySelector('#region-list li')")


def test_what_is_missing_is_said(serve, tmp_path):
    folder = write_cohort(tmp_path / "bare", slides=False, labels=False, probabilities=False)
    page, _ = serve(folder, features=None)
    page.click("#notes-button")
    assert "--slides" in page.text("#note-list")
    page.key("Escape")
    page.click(".case[data-line='0']")
    page.wait("document.querySelector('#no-picture').textContent.includes('No slide folder')")
    page.js("location.hash = '#/order'")
    page.wait("document.querySelector('#order p')?.textContent.includes('Read some cases first')")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_the_window_and_follows_the_scheme(serve, width, dark):
    page, _ = serve(width=width, dark=dark)
    wanted = "rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)"
    assert page.js("getComputedStyle(document.body).backgroundColor") == wanted
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.js(overflow) <= 0
    open_case(page)
    assert page.js(overflow) <= 0
    page.js("location.hash = '#/order'")
    page.wait("document.querySelector('#order svg')")
    labels = page.js("[...document.querySelectorAll('#order svg text')].map((text) => text.textContent).join('; ')")
    assert "Mean wait, in reading times" in labels
    assert "Share of the time that the reader is busy" in labels
    assert page.js(overflow) <= 0
    cut = "[...document.querySelectorAll('.table-wrap')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.js(cut) == 0
    assert page.complaints() == []


def test_a_slide_that_settles_does_not_take_the_reader_back(serve):
    """The view of a slide writes itself into the address; the browser tells of a new address a moment later."""
    page, _ = serve()
    open_case(page)
    page.js("location.hash = '#/order'; document.querySelector('#opacity').dispatchEvent(new Event('input'))")
    page.wait("document.querySelector('#order svg')")
    assert page.js("location.hash") == "#/order"


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_many_rows_stay_smooth(serve, tmp_path, count):
    """Few elements exist at any time; of twenty thousand, drawing after a new order takes milliseconds."""
    folder = tmp_path / "many"
    write_cohort(folder, slides=False)
    random = np.random.default_rng(0).dirichlet(np.ones(3), count).round(6)
    random[:, 0] += 1 - random.sum(1)
    names = np.array(["none", "mild", "severe"])
    lines = ["slide_id,patient_id,split,prediction,p_none,p_mild,p_severe"]
    lines += [f"slide-{i:05d},p{i // 3},test,{names[p.argmax()]},{p[0]:.6f},{p[1]:.6f},{p[2]:.6f}" for i, p in enumerate(random)]  # fmt: skip  # noqa: E501
    (folder / "predictions.csv").write_text("\n".join(lines) + "\n")
    page, _ = serve(folder, features=None)
    assert f"{count:,} cases" in page.text("#shown")
    page.js(f"document.querySelector('#list').scrollTop = {count // 2} * 56")
    page.wait(f"[...document.querySelectorAll('.case')].some(e => Number(e.dataset.line) === {count // 2 + 5})")
    assert page.js("document.querySelectorAll('.case').length") < 60
    code = (
        "(() => { const t = performance.now(); for (const v of ['slide', 'uncertainty', 'urgency']) {"
        " const e = document.querySelector('#sort'); e.value = v; e.dispatchEvent(new Event('change')); }"
        " return (performance.now() - t) / 3; })()"
    )
    taken = page.js(code)
    assert page.js("document.querySelectorAll('.case').length") < 60
    assert count < 20_000 or taken < 2000  # where time is asked for, the machine may do some other things
    page.js("document.querySelector('#group').checked = true")
    page.choose("#sort", "urgency")
    page.wait("document.querySelector('.group-row')")
