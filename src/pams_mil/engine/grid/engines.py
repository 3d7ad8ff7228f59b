"""Where cells run: in processes of this machine, or as Ray tasks on a cluster whose nodes share the output folder.

In processes there are as many as cores, with one torch thread each: small models do not gain from a second thread, so
two runs side by side beat one run on two threads (`benchmarks/engine.py` measures it). A Ray task whose node dies is
started again elsewhere and continues from the run's last checkpoint.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.grid import CellResult, default_workers, run_cell
from pams_mil.errors import ConfigError, first_line, needs_extra

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
        # Spawned: a forked child would inherit the locks of torch's threads, and no thread to open them.
        context: Any = get_context("spawn")
        waiting, crashes = deque(pending), Counter[str]()
        busy: dict[Any, Cell] = {}  # what the process at the other end of a connection runs
        processes: list[BaseProcess] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < workers:
                    ours, theirs = context.Pipe()
                    process = context.Process(target=run_in_turn, args=(theirs, str(out), owner, threads))
                    with _few_threads(threads):
                        process.start()
                    processes.append(process)
                    theirs.close()  # so that ours ends when the process does
                    _give(ours, waiting, busy)
                ready: list[Any] = wait_for(list(busy), timeout=0.5)
                if not ready:
                    yield None
                for ours in ready:
                    cell = busy.pop(ours)
                    try:
                        result = ours.recv()
                        # The same process goes on: it has loaded torch, and keeps the bags that it has read.
                        _give(ours, waiting, busy)
                    except (EOFError, OSError):
                        crashes[cell.key] += 1
                        if crashes[cell.key] < MOST_CRASHES:
                            waiting.append(cell)
                            continue
                        result = CellResult(cell.key, "Its process was killed or crashed twice; is the memory full?")
                    yield result
        except BaseException:  # Ctrl-C, a signal, a caller that gives up: cells under way save, others do not start
            for process in processes:
                process.terminate()  # SIGTERM, which a run takes as a request to save and stop
            raise
        finally:
            for process in processes:
                process.join(SECONDS_TO_SAVE)
                if process.is_alive():
                    process.kill()


def _give(ours: Any, waiting: deque[Cell], busy: dict[Any, Cell]) -> None:
    """Send the next cell to a process, or None, which ends it."""
    cell = waiting.popleft() if waiting else None
    if cell is not None:
        busy[ours] = cell
    with suppress(OSError):  # it has just died; whoever waits for its answer finds out
        ours.send(cell)


def run_in_turn(theirs: Any, out: str, owner: str, threads: int | None) -> None:
    """Run the cells that come in, in a process of its own; one that is told to stop takes no further cell."""
    die_with_parent()
    try:
        while (cell := theirs.recv()) is not None:
            theirs.send(run_cell(cell, out, owner, threads))
    except BaseException:  # failures are returned, so this is a signal; the run has saved itself on the way here
        os._exit(1)


def default_threads(pending: Sequence[Cell], workers: int) -> int:
    """OMP_NUM_THREADS where it is set, else one, else (some model uses more than one well) the cores per process."""
    variable = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if variable.isdigit() and int(variable) > 0:
        return int(variable)
    if all(cell.config.model.name in ONE_THREAD for cell in pending):
        return 1
    return max(1, default_workers() // workers)


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
            try:
                ray.init(address=self.address, include_dashboard=False, log_to_driver=False, configure_logging=False)
            except (OSError, RuntimeError, ValueError) as error:
                if self.address is None:
                    raise
                raise ConfigError(
                    f"Ray cannot be reached at --address {self.address}: {first_line(error).rstrip('.')}. Expected a "
                    "running cluster, such as auto or ray://head:10001; without --address Ray starts on this machine."
                ) from error
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
