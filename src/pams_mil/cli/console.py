"""Where the command line writes: results to stdout, progress and errors to stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pams_mil.evaluate.audit import OnStage

# Names of slides, classes and files are printed as they are: without this, rich takes "[in situ]" for markup and drops
# it, and ":x:" for an emoji.
output = Console(highlight=False, markup=False, emoji=False)
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextmanager
def progress_bar() -> Iterator[OnStage]:
    """A bar on stderr: call the result with what is being done and the fraction done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as bar:
        tasks = {}

        def advance(what: str, fraction: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0)
            bar.update(tasks[what], completed=fraction)

        yield advance
