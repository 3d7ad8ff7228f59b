"""Threads that help the caller."""

from __future__ import annotations

import os
import threading
from queue import Empty, SimpleQueue

import pytest
import torch
from tests.forked import in_child

from pams_mil import spare_cores as module
from pams_mil.spare_cores import SpareCores


def those_who_come(spare: SpareCores, most: int, expected: int) -> set[threading.Thread]:
    """Who does the work; no more of them than expected."""
    said: SimpleQueue[threading.Thread] = SimpleQueue()
    together = threading.Barrier(expected)

    def answer():
        together.wait(10)
        said.put(threading.current_thread())

    spare.call(answer, most)
    found = {said.get(timeout=10) for _ in range(expected)}
    with pytest.raises(Empty):
        said.get(timeout=0.05)
    return found


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("most", "expected"), [(1, 1), (2, 2), (9, 2)])
def test_others_are_called(most, expected):
    threads = those_who_come(SpareCores(), most, expected)
    assert len(threads) == expected
    assert threading.current_thread() not in threads


@pytest.mark.usefixtures("three_threads")
def test_nobody_waits_for_them():
    gate, done = threading.Event(), SimpleQueue()
    SpareCores().call(lambda: (gate.wait(10), done.put("late")), most=1)
    assert done.empty()
    gate.set()
    assert done.get(timeout=10) == "late"


@pytest.mark.usefixtures("three_threads")
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell which cores are used")
def test_they_keep_off_the_core_of_the_caller(monkeypatch):
    own = min(os.sched_getaffinity(0))
    others = os.sched_getaffinity(0) - {own}
    if not others:
        pytest.skip("there is one core only")
    monkeypatch.setattr(module, "_current_core", lambda: lambda: own)
    cores: SimpleQueue[set[int]] = SimpleQueue()
    SpareCores().call(lambda: cores.put(os.sched_getaffinity(0)), most=1)
    assert cores.get(timeout=10) == others
    assert own in os.sched_getaffinity(0)  # the caller itself may still use it


@pytest.mark.usefixtures("three_threads")
def test_a_caller_with_one_core_calls_nobody(monkeypatch):
    monkeypatch.setattr(module, "_other_cores", set)
    SpareCores().call(pytest.fail, most=2)


@pytest.mark.usefixtures("three_threads")
def test_they_come_where_cores_cannot_be_chosen(monkeypatch):
    def forbid(*_):
        raise PermissionError

    monkeypatch.setattr(module, "_other_cores", lambda: {0})
    monkeypatch.setattr(os, "sched_setaffinity", forbid, raising=False)
    assert len(those_who_come(SpareCores(), 1, 1)) == 1
    monkeypatch.setattr(module, "_other_cores", lambda: None)
    assert len(those_who_come(SpareCores(), 1, 1)) == 1


def test_one_thread_calls_nobody():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        spare = SpareCores()
        spare.call(pytest.fail, most=3)
        assert not spare._helpers
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_process_starts_helpers_of_its_own():
    spare = SpareCores()
    those_who_come(spare, 1, 1)
    assert in_child(lambda: those_who_come(spare, 1, 1)) == 0
