"""An engine with a budget of time: runs under way when it ends save themselves, and can be continued."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.benchmark_cell import CellResult
from pams_mil.engine.grid.grid import Engine


@dataclass
class TimedEngine:
    """Runs cells with another engine, counts time and runs, and stops when the budget is spent.

    Attributes:
        engine: What runs the cells.
        budget: Seconds, over all attempts.
        seconds: Wall time spent so far, in earlier attempts too.
        runs: Finished in that time.
        busy: Seconds that these runs took, added up.
        parallel: How many runs were under way at a time, at best.
        keep: Called after every result, so that a kill loses no count.
        clock: Seconds that only grow.
    """

    engine: Engine
    budget: float
    seconds: float = 0.0
    runs: int = 0
    busy: float = 0.0
    parallel: float = 1.0
    keep: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic

    def is_spent(self) -> bool:
        """Whether no time is left."""
        return self.seconds >= self.budget

    @property
    def seconds_per_run(self) -> float:
        """Wall time that a run adds with all processes at work, without the start of processes; 0 before the first."""
        return self.busy / self.runs / self.parallel if self.runs else 0.0

    def affordable(self, margin: float) -> float:
        """How many runs fit into the time that is left, less a margin for error."""
        left = max(0.0, self.budget - self.seconds)
        return (1 - margin) * left / self.seconds_per_run if self.seconds_per_run else float("inf")

    def run(self, pending: Sequence[Cell], out: Path, owner: str) -> Generator[CellResult | None, None, None]:
        """Results as they come; none after the time."""
        if self.is_spent():
            return
        started, before, busy = self.clock(), self.seconds, self.busy
        try:
            # Closing tells runs under way to save and stop, also when the caller stops asking.
            with closing(self.engine.run(pending, out, owner)) as results:
                for result in results:
                    self.seconds = before + self.clock() - started
                    if result is not None:
                        self.runs += 1
                        self.busy += result.seconds
                        # At best, since the first results come late: processes start, and at the end some of them have
                        # nothing left.
                        self.parallel = max(self.parallel, (self.busy - busy) / max(1e-9, self.seconds - before))
                        self.keep()
                    yield result
                    if self.is_spent():
                        return
        finally:
            self.seconds = before + self.clock() - started
            self.keep()
