"""Benchmarks: every cell a run folder, trained and tested in parallel, resumable, failures listed and not fatal."""

from __future__ import annotations

import os
import secrets
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from pams_mil import atomic
from pams_mil.data.bags.dataset import BagCache
from pams_mil.data.bags.store import BagStore, fingerprints, open_store
from pams_mil.data.manifest.manifest import Manifest
from pams_mil.digests import digest, file_digest
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.grid_config import Cell, GridConfig, cells
from pams_mil.engine.prediction.predict import predict_own
from pams_mil.engine.run.folder import RunFolder, read_json
from pams_mil.engine.run.lock import locked
from pams_mil.engine.run.spec import RunSpec, differences
from pams_mil.engine.run.trained_slides import TrainedSlides
from pams_mil.engine.training.run_cohort import Cohort, open_cohort, read_manifest
from pams_mil.engine.training.train import train
from pams_mil.errors import ConfigError, PamsError, RunError, RunInterruptedError
from pams_mil.hierarchy import ClassHierarchy

DONE = {"test": "cell.json", "val": "validated.json"}
"""By the split that a cell predicts: the file that says it is done."""
BENCH_LOCK = "bench.lock"
Progress = Callable[[float, str], None]
"""Called with the share of all epochs done, and what just happened."""
EachRun = Callable[[str, float], None]
"""Called with the key of a run that is under way or has just ended, and the share of its epochs done."""


@dataclass(frozen=True)
class CellResult:
    """How a cell ended: `error` is empty when it is done."""

    key: str
    error: str = ""
    seconds: float = 0.0


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
    expected: Mapping[str, ExpectedCell]
    """What every cell must be, by its key."""

    @cached_property  # it takes digests of all predictions
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


def run_cell(cell: Cell, out: str, owner: str, threads: int | None) -> CellResult:
    """Train a cell, or continue it, and predict its split; failures are returned, not raised."""
    folder = RunFolder(Path(out) / cell.key)
    started = time.monotonic()
    try:
        config = cell.config
        if threads is not None and config.compute.threads is None:
            config = config.model_copy(update={"compute": config.compute.model_copy(update={"threads": threads})})
        # The cells that a process runs one after the other, such as the members of a committee, share what is read.
        cache = bag_cache(config.data.features, config.compute.cache_mb << 20)
        train(config, folder.path, resume=True, owner=owner, cache=cache)
        predict_cell(cell, folder, cache)
    except RunInterruptedError as error:
        signal.raise_signal(signal.Signals(error.signal))  # saved; now the signal does what it would have done at once
        raise
    except Exception as error:  # a failed run is listed, with its traceback, and stops no other
        folder.path.mkdir(parents=True, exist_ok=True)
        atomic.write_text(folder.path / "failure.txt", traceback.format_exc())
        text = str(error) if isinstance(error, PamsError) else f"{type(error).__name__}: {error}"
        return CellResult(cell.key, text or type(error).__name__, time.monotonic() - started)
    (folder.path / "failure.txt").unlink(missing_ok=True)
    return CellResult(cell.key, seconds=time.monotonic() - started)


@lru_cache(maxsize=1)
def bag_cache(features: Path | None, limit: int) -> BagCache:
    """The bags of a feature folder that this process has read; those of the folder before are given up."""
    return BagCache(limit)


@dataclass(frozen=True)
class ExpectedCell:
    """What a finished cell must be: its run, and the slides and features that it predicts."""

    spec: RunSpec
    predicted: Mapping[str, Any]


def predicted_summary(store: BagStore, manifest: Manifest, split: str) -> dict[str, Any]:
    """Slides, labels and features of a split, by digest."""
    slides = TrainedSlides.of(manifest, split)
    return {**slides.summary(), "files": digest(fingerprints(store, manifest.select(split), readable=True))}


def predict_cell(cell: Cell, folder: RunFolder, cache: BagCache | None = None) -> None:
    """Predict the cell's split with the best checkpoint, then mark the cell as done."""
    data, split = cell.config.data, cell.split
    predictions = predict_own([folder], data, split=split, trusted=True, cache=cache)
    if predictions.failures:
        slide, reason = next(iter(predictions.failures.items()))
        raise RunError(
            f"{len(predictions.failures)} slides of the {split} split could not be predicted, so this run cannot be "
            f"compared with others. The first is {slide!r}: {reason}"
        )
    written = predictions.write(folder.predictions, name=folder.predictions_file(split).stem)
    files = {path.relative_to(folder.path).as_posix(): file_digest(path) for path in written}
    manifest = read_manifest(data, predictions.hierarchy)
    predicted = predicted_summary(open_store(data.features, manifest), manifest, split)
    marker = {**predictions.sample.made_by[0], split: predicted, "files": files, "slides": len(predictions)}
    atomic.write_json(folder.path / DONE[split], marker)


def is_done(cell: Cell, out: Path, expected: ExpectedCell) -> bool:
    """Whether the cell was finished as what is expected now, and its predictions are those it was finished with."""
    folder = out / cell.key
    marker = read_json(folder / DONE[cell.split])
    if "spec" not in marker or marker.get(cell.split) != expected.predicted:
        return False
    try:
        unlike = differences(RunSpec.from_json(marker["spec"]), expected.spec)
        return not unlike and all(file_digest(folder / name) == known for name, known in marker["files"].items())
    except (PamsError, KeyError, TypeError, AttributeError, OSError):
        return False


def expected_cells(wanted: Sequence[Cell]) -> dict[str, ExpectedCell]:
    """What every cell must be, by key; unusable data, also that of test slides, is refused before training."""
    read: dict[tuple[str, Any], Cohort] = {}  # cells of one fold share it
    expected: dict[str, ExpectedCell] = {}
    for cell in wanted:
        place = (cell.config.data.model_dump_json(), cell.config.classes)
        if place not in read:
            read[place] = open_cohort(cell.config.data, ClassHierarchy.load(cell.config.classes))
        cohort = read[place]
        predicted = predicted_summary(cohort.store, cohort.manifest, cell.split)
        expected[cell.key] = ExpectedCell(cohort.spec(complete(cell.config)), predicted)
    return expected


def epochs_done(cell: Cell, out: Path) -> int:
    """Epochs in the log of a cell so far, for a progress bar; a log is read again only when it has changed."""
    log = out / cell.key / "metrics.csv"
    try:
        return _logged_epochs(log, log.stat().st_mtime_ns)
    except OSError:
        return 0


@lru_cache(maxsize=1 << 12)
def _logged_epochs(log: Path, changed: int) -> int:
    with log.open(encoding="utf-8") as file:
        return max(0, sum(1 for _ in file) - 1)
