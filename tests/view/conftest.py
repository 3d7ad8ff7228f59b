"""Everything here needs the extras `view` and `wsi`; without them the folder is skipped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NEEDED = ("starlette", "uvicorn", "httpx", "openslide", "tifffile")
MISSING = [name for name in NEEDED if find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


@pytest.fixture(autouse=True)
def _close_servers():
    from tests.view.sessions import SERVED

    yield
    while SERVED:
        SERVED.pop().close()


@pytest.fixture(scope="session")
def cohort(tmp_path_factory):
    from tests.view.sessions import write_cohort

    return write_cohort(tmp_path_factory.mktemp("cohort"))


@pytest.fixture
def session(cohort, tmp_path):
    from tests.view.sessions import session_of

    made = session_of(cohort, reviews=tmp_path / "reviews")
    yield made
    made.shelf.close()


@pytest.fixture
def client(session):
    from tests.view.sessions import client_of

    return client_of(session)[0]
