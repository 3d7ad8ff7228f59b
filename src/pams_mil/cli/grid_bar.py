"""Progress of many runs: bars in a terminal, one of all and one of each under way; elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from typer import Exit

from pams_mil.cli.console import errors, print_note

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

SECONDS_BETWEEN_LINES = 30.0
STEP = 0.1
"""Without a terminal a line is due after this share of the work, or after `SECONDS_BETWEEN_LINES`."""


@contextmanager
def grid_bar(console: Console = errors) -> Iterator[GridBar]:
    """Bars in a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield GridBar(console)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Terminal(bar)


@contextmanager
def training_bar(folder: Path) -> Iterator[GridBar]:
    """The same while runs are trained into a folder; Ctrl-C says how to go on."""
    try:
        with grid_bar() as tell:
            yield tell
    except KeyboardInterrupt:
        print_note(f"Stopped; what was trained is in {folder}. Go on with the same command.")
        raise Exit(130) from None


def refuse_failures(failures: Mapping[str, str], lost: str) -> None:
    """End with the reasons where runs failed."""
    for run, reason in failures.items():
        print_note(f"{run}: {reason}", style="red")
    if failures:
        print_note(lost)
        raise Exit(1)


class GridBar:
    """Called with the share of all epochs done and what just happened; here lines for log files."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = self._said_at = time.monotonic()
        self._step = 0

    def __call__(self, share: float, text: str) -> None:
        """All runs."""
        if text:
            self._print(text)
        now = time.monotonic()
        late = now - self._said_at >= SECONDS_BETWEEN_LINES and share > 0
        # 0.3 / 0.1 is a little less than 3.
        step = int(share / STEP + 1e-9)
        self._step = min(self._step, step)  # a further grid begins at 0
        if step > self._step or late:
            self._step, self._said_at = step, now
            minutes, seconds = divmod(int(now - self._started), 60)
            self._print(f"Training: {share:.0%} of all epochs after {minutes}:{seconds:02d} min")

    def each(self, key: str, share: float) -> None:
        """One run and its own share, 1 at its end; a log file is told of all runs alone."""

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


class _Terminal(GridBar):
    """A bar for all runs, and below it one for every run under way."""

    def __init__(self, bar: RichProgress) -> None:
        super().__init__(bar.console)
        self._bar = bar
        self._all = bar.add_task("All runs", total=1.0)
        self._runs: dict[str, TaskID] = {}

    def __call__(self, share: float, text: str) -> None:
        self._bar.update(self._all, completed=share)
        if text:
            self._print(text, style="dim")

    def each(self, key: str, share: float) -> None:
        if key not in self._runs and share < 1.0:
            # The bar reads markup, and the name of a run may hold brackets.
            self._runs[key] = self._bar.add_task(escape(key), total=1.0, completed=share)  # type: ignore[arg-type]
        if key in self._runs:
            self._bar.update(self._runs[key], completed=share)
            if share >= 1.0:
                self._bar.remove_task(self._runs.pop(key))
