"""Ray: cells complete although a node of the cluster dies, and none is counted twice."""

from __future__ import annotations

import json
import time

import pytest
from tests.engine.test_grid import grid_of

from pams_mil.engine.grid.grid import run_grid
from pams_mil.engine.grid.ray_tasks import RayEngine
from pams_mil.experiments.entries import read_entries

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

EPOCHS = 60
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets and files to the garbage collector
    pytest.mark.timeout(280),
]


@pytest.fixture
def cluster(monkeypatch):
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
