"""Settings of all tests: hypothesis is derandomized and short by default, so that a failure here is one everywhere."""

from __future__ import annotations

import os

import hypothesis
import pytest

# As `make test` sets it: threads of OpenMP do not live on in a forked process, which then waits for them forever.
os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("ci", derandomize=True, max_examples=60, deadline=None)
hypothesis.settings.register_profile("nightly", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True, scope="module")
def _few_swaps():
    """A p-value of a thousand swaps costs a tenth, and no test asks for more digits of it."""
    from pams_mil.evaluate import compare

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "SWAPS", 500)
        yield


@pytest.fixture(autouse=True)
def _metrics_of_ones_own():
    """A metric that a test adds, also by a command, is gone after it."""
    yield
    from pams_mil.metrics import metric

    for key in metric.own_metrics():
        del metric.METRICS[key]


@pytest.fixture
def three_threads():
    """Torch may use three threads."""
    import torch  # not by the process that only hands out tests

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)
