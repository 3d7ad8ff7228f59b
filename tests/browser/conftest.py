"""A viewer in Chromium, for the tests that use one."""

from __future__ import annotations

import pytest
from tests.browser.chromium import Browser
from tests.browser.viewer_pages import write_cohort

NEEDED = ("starlette", "uvicorn", "httpx", "openslide", "tifffile")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    for name in NEEDED:
        pytest.importorskip(name)
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def cohort(tmp_path_factory, browser):
    return write_cohort(tmp_path_factory.mktemp("cohort"))


@pytest.fixture
def serve(browser, cohort, tmp_path):
    """Opens the viewer on a session; gives the page and the session."""
    served = []

    def start(folder=cohort, **options):
        view = {name: options.pop(name) for name in ("width", "height", "dark") if name in options}
        from tests.view.sessions import Served, session_of

        session = session_of(folder, reviews=tmp_path / "reviews", **options)
        server = Served(session)
        server.client = type("Nobody", (), {"close": lambda self: None})()
        served.append(server)
        page = browser.page(**view)
        page.go(server.server.address)
        page.wait("document.querySelector('.case, .empty')", "the worklist")
        return page, session

    yield start
    for server in served:
        server.close()
