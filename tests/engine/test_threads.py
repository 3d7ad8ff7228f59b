"""How many threads a process of a grid gets, and how it ends."""

from __future__ import annotations

from multiprocessing import Pipe

import pytest

from pams_mil.engine.config.grid_config import GridConfig, cells
from pams_mil.engine.config.run_config import build
from pams_mil.engine.grid import engines as local_processes
from pams_mil.engine.grid.engines import default_threads


def planned(*models: str):
    return cells(build(GridConfig, {"data": "m.csv", "classes": "digits", "methods": ["ce"], "models": list(models)}))


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(local_processes, "default_workers", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_small_models_get_one_thread_however_many_cores_are_idle():
    assert default_threads(planned("abmil", "dtfd", "mean_pool"), 1) == 1


def test_a_model_that_uses_threads_well_gets_its_share():
    assert default_threads(planned("abmil", "transmil"), 2) == 4
    assert default_threads(planned("my_module:Model"), 16) == 1


@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("2,1", 2), ("", 1), ("many", 1), ("0", 1)])
def test_what_the_user_set_is_respected(monkeypatch, given, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert default_threads(planned("abmil"), 1) == threads
    assert default_threads(planned("transmil"), 8) == threads


@pytest.mark.parametrize("signal", [SystemExit(143), KeyboardInterrupt()])
def test_a_process_that_is_told_to_stop_takes_no_other_cell(monkeypatch, signal):
    class Ended(BaseException):
        pass

    def stopped(*_):
        raise signal

    def end(_):
        raise Ended

    ours, theirs = Pipe()
    ours.send(planned("abmil")[0])
    monkeypatch.setattr(local_processes, "run_cell", stopped)
    monkeypatch.setattr(local_processes.os, "_exit", end)
    with pytest.raises(Ended):
        local_processes.run_in_turn(theirs, "out", "owner", 1)
    assert not ours.poll()  # nothing was answered
