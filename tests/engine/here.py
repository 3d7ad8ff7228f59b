"""An engine that runs cells in this process, so that tests need not wait for imports."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.grid import CellResult, run_cell


class Here:
    """Runs cells one after the other; `most` of them, then it is interrupted."""

    def __init__(self, workers: int | None = None, threads: int | None = None, *, most: int | None = None) -> None:
        self.ran: list[str] = []
        self.most = most

    def run(self, pending: Sequence[Cell], out: Path, owner: str) -> Generator[CellResult | None, None, None]:
        for number, cell in enumerate(pending):
            if number == self.most:
                raise KeyboardInterrupt
            self.ran.append(cell.key)
            yield None
            yield run_cell(cell, str(out), owner, 1)


class Hours(Here):
    """Every run takes an hour of a clock that the test holds."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self.clock, self.slow = clock, 10**6

    def run(self, pending, out, owner):
        for result in super().run(pending, out, owner):
            if result is not None:
                seconds = 3600.0 if len(self.ran) <= self.slow else 60.0
                self.clock[0] += seconds
                result = CellResult(result.key, result.error, seconds)
            yield result
