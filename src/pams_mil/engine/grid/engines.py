"""Where cells run: in processes of this machine, or as Ray tasks on a cluster whose nodes share the output folder.

In processes there are as many as cores, with one torch thread each: small models do not gain from a second thread, so
two runs side by side beat one run on two threads (`benchmarks/engine.py` measures it). A Ray task whose node dies is
started again elsewhere and continues from the run's last checkpoint.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path

from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.grid import CellResult, default_workers, run_cell
from pams_mil.engine.run.lock import LOCK
from pams_mil.errors import first_line, needs_extra

MOST_CRASHES = 2
"""How often a cell may take its process down with it before it counts as failed."""
SECONDS_TO_SAVE = 60
"""How long a stopped benchmark waits for its processes: they finish a bag and write a checkpoint."""
ONE_THREAD = ("abmil", "clam_mb", "clam_sb", "dtfd", "max_pool", "mean_pool", "priority")
"""Models whose steps are too short to share: a second thread makes them slower, on a busy machine many times."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class LocalEngine:
    """Runs cells in fresh processes.

    Attributes:
        workers: Processes; None: one per core.
        threads: Torch threads of each; None: see `default_threads`.
    """

    workers: int | None = None
    threads: int | None = None

    def run(self, pending: Sequence[Cell], out: Path, owner: str) -> Generator[CellResult | None, None, None]:
        """All results; a process that dies is replaced, and what it ran is tried once more."""
        workers = min(self.workers or default_workers(), len(pending))
        threads = self.threads or default_threads(pending, workers)
        # When one process dies, the pool is broken and takes all of its cells down, also those that are not to blame.
        waiting, crashes = list(pending), Counter[str]()
        while waiting:
            survivors: set[str] = set()
            with _few_threads(threads), _pool(workers) as pool:
                futures = {pool.submit(run_or_end, cell, str(out), owner, threads): cell for cell in waiting}
                for item in _results(futures):
                    if item is not None:
                        survivors.add(item.key)
                    yield item
            waiting = [cell for cell in waiting if cell.key not in survivors]
            # A lock that is still there tells which cells were under way when their process died.
            under_way = [cell.key for cell in waiting if (out / cell.key / LOCK).exists()]
            # No lock at all: it died before it took one. Where others survived, no cell can be blamed and all are tried
            # again.
            crashes.update(under_way or ([] if survivors else [cell.key for cell in waiting]))
            for cell in [cell for cell in waiting if crashes[cell.key] >= MOST_CRASHES]:
                waiting.remove(cell)
                yield CellResult(cell.key, "Its process was killed or crashed twice; is there enough memory?")


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are told to save and stop, and waited for, when the benchmark is."""
    # Processes of the caller's own are not ours to end.
    others = set(active_children())
    # Spawned: a forked child would inherit the locks of torch's threads, and no thread to open them.
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=die_with_parent) as pool:
        try:
            yield pool
        except BaseException:  # Ctrl-C, a signal, a caller that gives up: cells under way save, others do not start
            mine = [process for process in active_children() if process not in others]
            pool.shutdown(wait=False, cancel_futures=True)
            for process in mine:
                # SIGTERM, which a run takes as a request to save and stop.
                process.terminate()
            for process in mine:
                process.join(SECONDS_TO_SAVE)
                if process.is_alive():
                    process.kill()
            raise


def default_threads(pending: Sequence[Cell], workers: int) -> int:
    """OMP_NUM_THREADS where it is set, else one, else (some model uses more than one well) the cores per process."""
    variable = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if variable.isdigit() and int(variable) > 0:
        return int(variable)
    if all(cell.config.model.name in ONE_THREAD for cell in pending):
        return 1
    return max(1, default_workers() // workers)


def run_or_end(cell: Cell, out: str, owner: str, threads: int | None) -> CellResult:
    """Run a cell in a process of a pool; a process that was told to stop ends instead of taking the next cell.

    A pool's process outlives whatever its work raises, and would train on with the cell that waits in its queue.
    """
    try:
        return run_cell(cell, out, owner, threads)
    except BaseException:  # failures are returned, so this is a signal; the run has saved itself on the way here
        os._exit(1)


def die_with_parent() -> None:
    """End this process when the benchmark that started it is gone, instead of training on unseen."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        # Blocks until the parent is gone, however it went; checkpoints are complete at any moment, so no cleanup is
        # due.
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _results(futures: dict[Future[CellResult], Cell]) -> Iterator[CellResult | None]:
    """Results as they come; those of a broken pool are left out."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
        if not done:
            yield None
        for future in done:
            try:
                yield future.result()
            except BrokenProcessPool:
                continue


@contextmanager
def _few_threads(threads: int) -> Iterator[None]:
    """Children read these variables when they load their math libraries."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@dataclass(frozen=True)
class RayEngine:
    """Runs cells on Ray.

    Attributes:
        address: Of an existing cluster, e.g. "auto" or "ray://head:10001"; None: a Ray of our own on this machine.
        cpus: Cores that a cell claims.
        gpus: GPUs that a cell claims; a fraction shares one.
        retries: How often a cell is started again when its node or process dies.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    retries: int = 5

    def run(self, pending: Sequence[Cell], out: Path, owner: str) -> Generator[CellResult | None, None, None]:
        """All results as they come."""
        with needs_extra("The Ray engine", package="ray", extra="ray"):
            import ray  # noqa: PLC0415  optional and heavy
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        try:
            task = ray.remote(run_cell).options(
                num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.retries, retry_exceptions=False
            )
            threads = max(1, int(self.cpus))
            references = {task.remote(cell, str(out.resolve()), owner, threads): cell for cell in pending}
            left = list(references)
            while left:
                done, left = ray.wait(left, timeout=0.5)
                if not done:
                    yield None
                for reference in done:
                    try:
                        yield ray.get(reference)
                    except ray.exceptions.RayError as error:
                        yield CellResult(references[reference].key, f"Ray gave up on it: {first_line(error)}")
        finally:
            if started_here:
                ray.shutdown()
