"""The bar of `pams train`: loss terms while it goes, validation scores after every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pams_mil.cli.console import errors
from pams_mil.engine.training.observers import Watch

_SHOWN = (("acc", "acc"), ("auc", "AUC"), ("ascc", "AsCC"), ("asmc", "AsMC"), ("missed_rate", "missed"))


class TrainBar(Watch):
    """Draws on stderr; use it as a context. Validation is short, and the bar stays."""

    def __init__(self, console: Console = errors) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[terms]}", style="dim"),
        )  # fmt: skip
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("Reading", total=None, terms="")
        self._sums: dict[str, float] = {}
        self._bags = 0

    def __enter__(self) -> TrainBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def epoch_started(self, epoch: int, epochs: int, steps: int, done: int) -> None:
        """A new bar."""
        self._sums, self._bags = {}, 0
        self._bar.reset(self._task, description=f"Epoch {epoch + 1}/{epochs}", total=steps, completed=done, terms="")

    def stepped(self, terms: Mapping[str, float], bags: int = 1) -> None:
        """Some bags more, with the mean of every term so far."""
        self._bags += bags
        for name, value in terms.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * bags
        if self._bags % 16 < bags:  # text is costly to draw, a bag may take less than a millisecond
            shown = "  ".join(f"{name} {total / self._bags:.3f}" for name, total in self._sums.items())
            self._bar.update(self._task, terms=shown)
        self._bar.advance(self._task, bags)

    def epoch_finished(self, row: Mapping[str, Any], *, best: bool) -> None:
        """One line per epoch."""
        scores = "  ".join(f"{label} {_shown(row.get(f'val_{key}'))}" for key, label in _SHOWN)
        mark = " [bold green]best[/]" if best else ""
        self._bar.console.print(
            f"epoch {row['epoch']:>3}  loss {row['loss']:.4f}  val: {scores}{mark}", markup=True, soft_wrap=True
        )

    def noted(self, text: str) -> None:
        """A line above the bar."""
        self._bar.console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def _shown(value: float | None) -> str:
    return "  n/a" if value is None else f"{value:.3f}"
