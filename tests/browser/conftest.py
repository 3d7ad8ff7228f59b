"""A Chromium, a viewer in it, and an audit on disk, for the tests that use them."""

from __future__ import annotations

import pytest
from tests.browser.audit_pages import predictions
from tests.browser.chromium import Browser
from tests.browser.viewer_pages import write_cohort

from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.predictions.predictions import write_predictions
from pams_mil.report.audit_html import write_audit
from pams_mil.report.live import Links

NEEDED = ("starlette", "uvicorn", "httpx", "openslide", "tifffile")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    for name in NEEDED:
        pytest.importorskip(name)
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


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two models on disk and their report: the folder, the predictions as the command reads them."""
    folder = tmp_path_factory.mktemp("report")
    models = [predictions("first", first="slide 0"), predictions("second", seed=1, sharpness=0.5, first="slide 0")]
    for model in models:
        write_predictions(folder / f"{model.name}.csv", model)
    command = f"pams audit {folder / 'first.csv'} {folder / 'second.csv'} --classes bracs --resamples 0"
    write_audit(audit(models, resamples=0), folder, dict.fromkeys(["first", "second"], Links(command)))
    return folder, models
