"""Several findings per slide in the viewer, in a real Chromium: the set is shown, marked, given and exported."""

from __future__ import annotations

import pytest
from tests.browser.chromium import CHROMIUM
from tests.browser.viewer_pages import drawn
from tests.view.test_findings import CLASSES, ROWS, write_certificate

from pams_mil.data.tables import read_table

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def test_a_set_is_shown_marked_given_and_exported(serve, tmp_path):
    from tests.view.sessions import write_tiles

    (tmp_path / "classes.yaml").write_text(CLASSES)
    (tmp_path / "predictions.csv").write_text(ROWS)
    for slide in ("s-1", "s-2", "s-3"):
        write_tiles(tmp_path, slide)
    page, session = serve(tmp_path, certificate=write_certificate(tmp_path))
    # Two cells of the first case name the set: the call, and what is certified.
    both = "[...document.querySelectorAll('.case .set small')].map(e => e.textContent)"
    assert page.js(both) == ["with UDH", "with UDH"]
    assert page.js("[...document.querySelectorAll('.case .middle .chip')].map(e => e.textContent)") == [
        "DCIS", "UDH", "N",
    ]  # fmt: skip
    assert "Certified set" in page.text("#list-head")
    page.choose("#kappa", "20")
    _, cases = session.visible()
    expected = sorted(cases.call_at(row, 20.0) for row in range(3))
    texts = "[...document.querySelectorAll('.case > .set {}')].map(e => e.textContent)"
    rest, top = page.js(texts.format("small")), page.js(texts.format(".chip"))
    shown = [f"{others.removeprefix('with ')}; {call.lstrip('↑ ')}" for others, call in zip(rest, top, strict=True)]
    assert sorted(shown) == expected
    page.click("#kappa-reset")
    page.click(".case[data-line='0']")
    page.wait("document.querySelector('#call .chip')", "the call")
    assert page.js("[...document.querySelectorAll('#call .chip')].map(e => e.textContent)") == ["DCIS", "UDH"]
    assert "Certified set" in page.text("#call")
    assert "DCIS, UDH" in page.text("#call")
    page.key("2")
    drawn(page)
    marked = "[...document.querySelectorAll('#verdict-classes [aria-pressed=true]')].map(e => e.dataset.class)"
    assert page.js(marked) == ["UDH"]
    page.key("3")
    page.key("Enter")
    page.wait("document.querySelector('#verdict-state').textContent !== 'Unread'", "the verdict")
    assert page.text("#verdict-state") == "Agreed: DCIS, UDH"
    table = read_table(session.journal.table)
    assert (table["reader_class"], table["target"]) == (["UDH; DCIS"], ["UDH; DCIS"])
