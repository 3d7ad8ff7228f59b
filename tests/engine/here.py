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
