"""Benchmarks: every cell a run folder, done in parallel, resumable, failures listed and not fatal."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pams_mil import atomic
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.grid_config import Cell, GridConfig, cells
from pams_mil.engine.grid.benchmark_cell import CellResult, ExpectedCell, epochs_done, expected_cells, is_done
from pams_mil.engine.run.lock import locked
from pams_mil.errors import ConfigError

BENCH_LOCK = "bench.lock"
Progress = Callable[[float, str], None]
"""Called with the share of all epochs done, and what just happened."""
EachRun = Callable[[str, float], None]
"""Called with the key of a run that is under way or has just ended, and the share of its epochs done."""


class Engine(Protocol):
    """Runs cells somewhere; yields each result as it comes, and None now and then so that progress can be shown."""

    def run(self, pending: Sequence[Cell], out: Path, owner: str) -> Generator[CellResult | None, None, None]:
        """Run all cells."""
        ...


@dataclass(frozen=True)
class GridRun:
    """What a benchmark left behind."""

    out: Path
    cells: tuple[Cell, ...]
    failures: dict[str, str]
    expected: Mapping[str, ExpectedCell | None]
    """What every cell must be, by its key."""

    @property
    def finished(self) -> list[Cell]:
        """Cells whose predictions exist."""
        return [cell for cell in self.cells if is_done(cell, self.out, self.expected[cell.key])]


def run_grid(
    grid: GridConfig,
    out: Path | str,
    engine: Engine,
    *,
    progress: Progress | None = None,
    each: EachRun | None = None,
) -> GridRun:
    """Run all cells of a grid that are not done yet, each in a folder of `out/cells`."""
    out = Path(out)
    return run_cells(cells(grid), out, out / "cells", engine, progress=progress, each=each)


def run_cells(
    wanted: Sequence[Cell],
    out: Path,
    cell_folder: Path,
    engine: Engine,
    *,
    progress: Progress | None = None,
    each: EachRun | None = None,
) -> GridRun:
    """Run the cells not done yet, what fails listed in `out/failures.csv`; one benchmark per folder at a time."""
    tell: Progress = progress or (lambda share, text: None)
    tell_each: EachRun = each or (lambda key, share: None)
    with locked(out, take_over=True, name=BENCH_LOCK):
        # Checked settings and absolute paths, so that any process of any folder can run them.
        planned = [replace(cell, config=complete(cell.config)) for cell in wanted]
        twice = [key for key, count in Counter(cell.key for cell in planned).items() if count > 1]
        if twice:
            raise ConfigError(f"Two runs would share the folder {twice[0]!r}; name every label, seed and fold once.")
        expected = expected_cells(planned)
        running = {cell.key: cell for cell in planned if not is_done(cell, cell_folder, expected[cell.key])}
        failures: dict[str, str] = {}
        done = len(planned) - len(running)
        tell(done / len(planned), f"{done} of {len(planned)} runs were done already" if done else "")
        # An empty generator, so that the loop below and its closing serve both cases.
        results = engine.run([*running.values()], cell_folder, _owner(out)) if running else (None for _ in ())
        with closing(results):  # whatever ends the loop early, processes are told to save and stop
            for result in results:
                text = ""
                if result is not None:
                    done += 1
                    del running[result.key]
                    tell_each(result.key, 1.0)
                    text = f"{result.key}: {result.error or f'done in {result.seconds:.0f} s'}"
                    if result.error:
                        failures[result.key] = result.error
                part_done = 0.0
                for key, cell in running.items():
                    if share := min(1.0, epochs_done(cell, cell_folder) / cell.config.training.epochs):
                        tell_each(key, share)
                        part_done += share
                tell((done + part_done) / len(planned), text)
        atomic.write_csv(out / "failures.csv", ["cell", "error"], sorted(failures.items()))
        return GridRun(cell_folder, tuple(planned), failures, expected)


def default_workers() -> int:
    """One process per core that this process may use."""
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available is not None else (os.cpu_count() or 1)


def _owner(out: Path) -> str:
    """A name for this benchmark, kept over restarts: its own dead attempts may be followed, nobody else's."""
    file = out / "owner.txt"
    if not file.exists():
        atomic.write_text(file, secrets.token_hex(8))
    return file.read_text("utf-8").strip()
