"""Progress of many runs: a bar in a terminal, a line now and then where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from pams_mil.cli.console import errors

SECONDS_BETWEEN_LINES = 30.0
STEP = 0.1
"""Without a terminal a line is due after this share of the work, or after `SECONDS_BETWEEN_LINES`."""

Tell = Callable[[float, str], None]


@contextmanager
def grid_bar(console: Console = errors) -> Iterator[Tell]:
    """Call the result with the share of all epochs done, and what just happened."""
    if not console.is_terminal:
        yield _Lines(console).tell
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("Training"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("Training", total=1.0)

        def tell(share: float, text: str) -> None:
            bar.update(task, completed=share)
            if text:
                bar.console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)

        yield tell


class _Lines:
    """For log files: what happened, and how far it is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = self._said_at = time.monotonic()
        self._step = 0

    def tell(self, share: float, text: str) -> None:
        if text:
            self._print(text)
        now = time.monotonic()
        late = now - self._said_at >= SECONDS_BETWEEN_LINES and share > 0
        step = int(share / STEP + 1e-9)
        self._step = min(self._step, step)  # a further grid begins at 0
        if step > self._step or late:
            self._step, self._said_at = step, now
            self._print(f"Training: {share:.0%} of all epochs after {_minutes(now - self._started)}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _minutes(seconds: float) -> str:
    """Minutes and seconds.

    >>> _minutes(75.2)
    '1:15 min'
    """
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d} min"
