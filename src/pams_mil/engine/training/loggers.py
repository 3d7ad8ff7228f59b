"""Where the rows of `metrics.csv` also go: TensorBoard, MLflow or Weights & Biases, when they are installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pams_mil.errors import ConfigError, needs_extra

Log = Callable[[Mapping[str, float], int], None]


class Loggers:
    """Sends every epoch's numbers to the loggers that a config names; `csv` is always written by the run itself."""

    def __init__(self, names: tuple[str, ...], folder: Path, settings: Mapping[str, Any]) -> None:
        self._names, self._folder, self._settings = names, folder, settings
        self._open: list[tuple[Log, Callable[[], None]]] = []

    def open(self, epoch: int) -> None:
        """Begin, or go on after this many complete epochs: what was logged of them stays."""
        folder, settings = self._folder, self._settings
        openers: dict[str, Callable[[], tuple[Log, Callable[[], None]]]] = {
            "tensorboard": lambda: _tensorboard(folder, epoch),
            "mlflow": lambda: _mlflow(folder, settings),
            "wandb": lambda: _wandb(folder, settings),
        }
        self._open = [openers[name]() for name in self._names if name in openers]

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


def _tensorboard(folder: Path, epoch: int) -> tuple[Log, Callable[[], None]]:
    with needs_extra("The TensorBoard log", package="tensorboard", extra="tensorboard"):
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  optional and slow to import
    # Epochs after the one that a resumed run starts from are replaced, not shown twice.
    writer: Any = SummaryWriter(folder / "tensorboard", purge_step=epoch + 1)

    def log(numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            group, _, rest = name.partition("_")
            writer.add_scalar(f"val/{rest}" if group == "val" else f"train/{name}", value, step)
        writer.flush()

    return log, writer.close


def _mlflow(folder: Path, settings: Mapping[str, Any]) -> tuple[Log, Callable[[], None]]:
    mlflow = _import("mlflow")
    mlflow.start_run(run_name=folder.name)
    mlflow.log_dict(dict(settings), "config.json")
    return (lambda numbers, step: mlflow.log_metrics(dict(numbers), step=step)), mlflow.end_run


def _wandb(folder: Path, settings: Mapping[str, Any]) -> tuple[Log, Callable[[], None]]:
    run = _import("wandb").init(dir=str(folder), name=folder.name, config=dict(settings))
    return (lambda numbers, step: run.log(dict(numbers), step=step)), run.finish


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"compute.loggers names {name}, which is not installed: pip install {name}") from error
