"""The instance cap is a pure function; out of memory names the slide; large bags fit."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from pams_mil import discover
from pams_mil.errors import ParameterError, RunError
from pams_mil.models import explain_out_of_memory, instance_cap


@given(n=st.integers(1, 300), cap=st.integers(1, 300), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_cap_is_pure_ordered_and_exact(n, cap, seed, epoch):
    rows = instance_cap(n, cap, seed=seed, epoch=epoch, slide_id="s")
    if n <= cap:
        assert rows is None
        return
    assert len(rows) == cap == len(set(rows.tolist()))
    assert rows.tolist() == sorted(rows.tolist())
    assert 0 <= rows.min() <= rows.max() < n
    assert torch.equal(rows, instance_cap(n, cap, seed=seed, epoch=epoch, slide_id="s"))


def test_cap_differs_between_epochs_slides_and_seeds():
    base = {"seed": 0, "epoch": 0, "slide_id": "a"}
    first = instance_cap(1000, 100, **base)
    for change in ({"seed": 1}, {"epoch": 1}, {"slide_id": "b"}):
        assert not torch.equal(first, instance_cap(1000, 100, **(base | change)))


def test_bad_cap():
    with pytest.raises(ParameterError, match="at least 1"):
        instance_cap(5, 0, seed=0, epoch=0, slide_id="a")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
    ],
)
def test_out_of_memory_names_slide_size_and_option(error):
    message = r"slide 's1' with 99 instances\. Set max_instances"
    with pytest.raises(RunError, match=message) as caught, explain_out_of_memory("s1", 99):
        raise error
    assert caught.value.__cause__ is error


def test_a_real_allocation_failure_is_recognized():
    with pytest.raises(RunError, match="'s1' with 7 instances"), explain_out_of_memory("s1", 7):
        torch.empty(2**60, dtype=torch.uint8)


def test_other_errors_pass_through():
    with pytest.raises(RuntimeError, match="shape"), explain_out_of_memory("s1", 99):
        raise RuntimeError("shape mismatch")


SCRIPT = """
import sys, torch
from pathlib import Path
from pams_mil.models import create_model
torch.set_num_threads(2)
def resident(field):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(field))
model = create_model(sys.argv[1], in_features=1024, num_classes=7).eval()
bag = torch.randn(200_000, 1024)
with torch.inference_mode():
    model(bag[:300], attention=True)
    before = resident("VmRSS:")
    output = model(bag, attention=True)
print((resident("VmHWM:") - before) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", discover.available("models"))
def test_a_bag_of_200000_by_1024_needs_less_than_4_gib(name):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), name], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 4
