"""Ray: cells complete although a node of the cluster dies, and none is counted twice; and what is asked of Ray."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest
from tests.engine.test_grid import grid_of

from pams_mil.engine.grid.engines import RayEngine
from pams_mil.engine.grid.grid import run_grid
from pams_mil.experiments.derived_rows import read_entries

EPOCHS = 60


class DeadNodeError(Exception):
    """What Ray raises when it gives up on a task."""


class OneByOne:
    """As much of Ray as the engine asks for, in this process: tasks run when they are waited for."""

    exceptions = SimpleNamespace(RayError=DeadNodeError)

    def __init__(self, *, giving_up_on=(), initialized=True):
        self.said, self.tasks, self.initialized, self.giving_up_on = [], [], initialized, giving_up_on

    def is_initialized(self):
        return self.initialized

    def init(self, **options):
        self.said.append(("init", options))

    def shutdown(self):
        self.said.append(("shutdown", {}))

    def remote(self, function):
        self.function = function
        return self

    def options(self, **options):
        self.said.append(("options", options))
        return SimpleNamespace(remote=lambda *task: self.tasks.append(task) or len(self.tasks) - 1)

    def wait(self, left, timeout):
        first = not any(name == "waited" for name, _ in self.said)
        self.said.append(("waited", {"timeout": timeout}))
        return ([], left) if first else (left[:1], left[1:])  # nothing is done at once

    def get(self, reference):
        task = self.tasks[reference]
        if task[0].method in self.giving_up_on:
            raise DeadNodeError("The node died.\nSee the logs.")
        return self.function(*task)


@pytest.fixture
def stand_in(monkeypatch):
    def install(**options):
        monkeypatch.setitem(sys.modules, "ray", OneByOne(**options))
        return sys.modules["ray"]

    return install


def test_every_cell_is_a_task_that_survives_its_node(cohort, tmp_path, stand_in):
    cluster = stand_in()
    done = run_grid(grid_of(cohort, seeds=[0]), tmp_path, RayEngine(cpus=2, gpus=0.5, retries=3))
    assert not done.failures
    assert len(done.finished) == 2
    asked = dict(cluster.said)
    assert asked["options"] == {"num_cpus": 2, "num_gpus": 0.5, "max_retries": 3, "retry_exceptions": False}
    assert not {"init", "shutdown"} & set(asked)  # the cluster was there before and stays


def test_a_task_that_ray_gives_up_on_is_listed_and_the_rest_is_done(cohort, tmp_path, stand_in):
    cluster = stand_in(giving_up_on=["ce"], initialized=False)
    done = run_grid(grid_of(cohort, seeds=[0]), tmp_path, RayEngine(address="ray://head:10001"))
    assert list(done.failures.values()) == ["Ray gave up on it: The node died."]
    assert len(done.finished) == 1
    assert cluster.said[0][1]["address"] == "ray://head:10001"
    assert cluster.said[-1] == ("shutdown", {})


@pytest.fixture
def cluster(monkeypatch):
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_DISABLE_DOCKER_CPU_WARNING", "1")
    memory = {"object_store_memory": 80 * 1024**2}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **memory})
    doomed = made.add_node(num_cpus=1, **memory)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False, configure_logging=False)
    yield made, doomed
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray leaves sockets and files to the garbage collector
@pytest.mark.timeout(1500)
def test_node_killed_in_the_middle(cohort, tmp_path, cluster):
    made, doomed = cluster
    started = time.monotonic()
    killed_under_way = []

    def progress(share, text):
        """Kill the second node as soon as both nodes are training."""
        locks = list(tmp_path.glob("cells/*/run.lock"))
        if len(locks) >= 2 and not killed_under_way:
            killed_under_way.extend(json.loads(lock.read_text())["pid"] for lock in locks)
            made.remove_node(doomed, allow_graceful=False)

    grid = grid_of(cohort, seeds=[0, 1], training={"epochs": EPOCHS, "patience": None})
    done = run_grid(grid, tmp_path, RayEngine(), progress=progress)
    assert len(killed_under_way) >= 2, f"both nodes never trained together in {time.monotonic() - started:.0f} s"
    assert not done.failures
    assert len(done.finished) == 4
    entries = read_entries(done)
    assert [list(entry.runs) for entry in entries] == [["seed 0", "seed 1"], ["seed 0", "seed 1"]]
    for cell in done.cells:
        log = (tmp_path / "cells" / cell.key / "metrics.csv").read_text().splitlines()
        assert len(log) == 1 + EPOCHS  # no epoch twice, none missing
