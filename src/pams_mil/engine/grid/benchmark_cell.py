"""One cell of a benchmark, run anywhere: trained, tested, and marked as done only then."""

from __future__ import annotations

import signal
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from pams_mil import atomic
from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.prediction.predict import predict
from pams_mil.engine.run.folder import RunFolder, read_json
from pams_mil.engine.training.run_cohort import features_path
from pams_mil.engine.training.train import train
from pams_mil.errors import PamsError, RunError, RunInterruptedError

DONE = "cell.json"
TEST_SPLIT = "test"


@dataclass(frozen=True)
class CellResult:
    """How a cell ended: `error` is empty when it is done."""

    key: str
    error: str = ""
    seconds: float = 0.0


def run_cell(cell: Cell, out: str, owner: str, threads: int | None) -> CellResult:
    """Train a cell, or continue it, and predict its test split; failures are returned, not raised."""
    folder = RunFolder(Path(out) / cell.key)
    started = time.monotonic()
    try:
        config = cell.config
        if threads is not None and config.compute.threads is None:
            config = config.model_copy(update={"compute": config.compute.model_copy(update={"threads": threads})})
        train(config, folder.path, resume=True, owner=owner)
        predict_test(cell, folder)
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


def predict_test(cell: Cell, folder: RunFolder) -> None:
    """Predict the test split with the best checkpoint, then mark the cell as done."""
    data = cell.config.data
    found = predict(
        [folder], data.manifest, split=TEST_SPLIT, features=features_path(data), trusted=True,
        columns=data.columns or None, fold=data.fold, splits=data.splits, clini=data.clini,
        patients_are_slides=data.patients_are_slides, merge_cases=data.merge_cases,
    )  # fmt: skip
    if found.failures:
        slide, reason = next(iter(found.failures.items()))
        raise RunError(
            f"{len(found.failures)} slides of the test split could not be predicted, so this run cannot be compared "
            f"with others. The first is {slide!r}: {reason}"
        )
    found.write(folder.path)
    atomic.write_json(folder.path / DONE, {"settings": cell.config.fingerprint(), "slides": len(found)})


def is_done(cell: Cell, out: Path) -> bool:
    """Whether the cell was finished with these very settings."""
    marker = read_json(out / cell.key / DONE)
    return bool(marker) and marker.get("settings") == cell.config.fingerprint()


def epochs_done(cell: Cell, out: Path) -> int:
    """Epochs in the cell's log so far, for a progress bar."""
    try:
        with (out / cell.key / "metrics.csv").open(encoding="utf-8") as file:
            return max(0, sum(1 for _ in file) - 1)
    except OSError:
        return 0


def resolve(cell: Cell) -> Cell:
    """The cell with absolute paths, so that any process of any folder can run it."""
    return replace(cell, config=cell.config.resolved())
