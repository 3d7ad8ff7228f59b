from __future__ import annotations

import pytest
import torch
from tests.engine.cohort import make_cohort


@pytest.fixture(scope="session")
def cohort(tmp_path_factory):
    """A tiny cohort; and the first optimizer, which imports half of torch, is made before any process is forked."""
    torch.optim.Adam([torch.zeros(1)])
    return make_cohort(tmp_path_factory.mktemp("cohort"))
