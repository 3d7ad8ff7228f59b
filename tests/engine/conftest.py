from __future__ import annotations

import pytest
from tests.engine.cohort import make_cohort


@pytest.fixture(scope="session")
def cohort(tmp_path_factory):
    return make_cohort(tmp_path_factory.mktemp("cohort"))
