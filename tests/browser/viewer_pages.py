"""What tests do with a page of the viewer."""

from __future__ import annotations


def write_cohort(*given, **options):
    from tests.view import sessions  # needs the extra `view`

    return sessions.write_cohort(*given, **options)


def rows(page):
    return page.js("[...document.querySelectorAll('.case .name b')].map(e => e.textContent)")


def open_case(page, number=0):
    page.js(f"document.querySelectorAll('.case')[{number}].scrollIntoView()")
    page.click(f".case[data-line='{number}']")
    page.wait("document.querySelector('.openseadragon-canvas')", "the slide")
    page.wait("document.querySelector('.heat-canvas')?.width > 1", "the heatmap")


def settled(page):
    """Wait until nothing has moved for fifteen pictures that the page drew, however long it took to draw them."""
    before, still = None, 0
    while still < 15:
        drawn(page)
        now = page.text("#where") + page.js("location.hash")
        before, still = now, still + 1 if now == before else 0


def drawn(page):
    """Wait until the page has drawn what it was told."""
    page.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
