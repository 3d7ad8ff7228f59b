"""Observers of a run: progress for the command line, metrics for TensorBoard, MLflow or W&B, and requests to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from pams_mil.errors import ConfigError, first_line

Log = Callable[[Mapping[str, float], int], None]


class Watch:
    """A no-op observer of training: override what you want to see."""

    def epoch_started(self, epoch: int, epochs: int, steps: int, done: int) -> None:
        """An epoch of `steps` bags begins, `done` of them trained before an interruption."""

    def stepped(self, terms: Mapping[str, float], bags: int = 1) -> None:
        """`bags` were trained on, with this mean of every loss term."""

    def epoch_finished(self, row: Mapping[str, Any], *, best: bool) -> None:
        """The epoch's row of `metrics.csv`, and whether it is the best so far."""

    def noted(self, text: str) -> None:
        """Something worth telling."""


class StopRequest:
    """Ctrl-C, SIGTERM and SIGHUP ask the loop to save and stop at the next safe point; a second one does not wait.

    A signal that is ignored stays ignored: under `nohup` a run outlives its terminal.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: int = signal.SIGINT
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Python lets only the main thread set handlers; a run in another thread is stopped by whoever started it.
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            # The second one: what is under way is given up, and the last checkpoint is what is left.
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.requested, self.signal = True, number


def stop_signals() -> list[int]:
    """The signals by which people, shells and schedulers end a process, without those that it was told to ignore."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers whose package is not installed, before anything is read or written."""
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            package = "'pams-mil[tensorboard]'" if name == "tensorboard" else name
            raise ConfigError(f"--log {name} needs a package that is not installed: pip install {package}") from error


class Loggers:
    """Sends every epoch's numbers to the loggers that a config names; `csv` is always written by the run itself."""

    def __init__(self, names: tuple[str, ...], folder: Path, settings: Mapping[str, Any]) -> None:
        self._names, self._folder, self._settings = names, folder, settings
        self._open: list[tuple[Log, Callable[[], None]]] = []

    def open(self, epoch: int) -> None:
        """Begin, or go on after this many complete epochs: what was logged of them stays."""
        for name in [name for name in self._names if name != "csv"]:
            try:
                self._open.append(_TRACKERS[name](self._folder, dict(self._settings), epoch))
            except Exception as error:  # whatever a tracker raises of its store, its server or its key
                raise ConfigError(
                    f"--log {name} could not be started: {first_line(error)} The run can be repeated without it."
                ) from error

    def log(self, row: Mapping[str, Any]) -> None:
        """Send one epoch."""
        numbers = {
            key: float(value) for key, value in row.items() if isinstance(value, (int, float)) and key != "epoch"
        }
        for log, _ in self._open:
            log(numbers, int(row["epoch"]))

    def close(self) -> None:
        """Flush and close all."""
        for _, close in self._open:
            close()


def _tensorboard(folder: Path, settings: dict[str, Any], epoch: int) -> tuple[Log, Callable[[], None]]:
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  optional and slow to import

    # Epochs after the one that a resumed run starts from are replaced, not shown twice.
    writer: Any = SummaryWriter(folder / "tensorboard", purge_step=epoch + 1)

    def log(numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            group, _, rest = name.partition("_")
            writer.add_scalar(f"val/{rest}" if group == "val" else f"train/{name}", value, step)
        writer.flush()

    return log, writer.close


def _mlflow(folder: Path, settings: dict[str, Any], epoch: int) -> tuple[Log, Callable[[], None]]:
    mlflow: Any = import_module("mlflow")
    mlflow.start_run(run_name=folder.name)
    mlflow.log_dict(settings, "config.json")
    return (lambda numbers, step: mlflow.log_metrics(dict(numbers), step=step)), mlflow.end_run


def _wandb(folder: Path, settings: dict[str, Any], epoch: int) -> tuple[Log, Callable[[], None]]:
    wandb: Any = import_module("wandb")
    run = wandb.init(dir=str(folder), name=folder.name, config=settings)
    return (lambda numbers, step: run.log(dict(numbers), step=step)), run.finish


_TRACKERS = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
