"""Where the command line writes: results to stdout, progress and errors to stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pams_mil.atomic import strict_json

if TYPE_CHECKING:
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions
    from pams_mil.evaluate.audit import OnStage
    from pams_mil.evaluate.certify import Certificate
    from pams_mil.wsi.slide_sources import SlideSource

# Names of slides, classes and files are printed as they are: without this, rich takes "[in situ]" for markup and drops
# it, and ":x:" for an emoji.
output = Console(highlight=False, markup=False, emoji=False)
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_result(text: str, *, style: str = "") -> None:
    """A result on stdout, one line however long: a file's name can be copied."""
    output.print(text, style=style, soft_wrap=True)


def print_note(text: str, *, style: str = "") -> None:
    """A sentence on stderr, one line however long."""
    errors.print(text, style=style, soft_wrap=True)


SHORT_NAME = 16
"""Where a table is too wide, names of up to as many characters, or a quarter of the line, leave wrapping to the other
columns."""


def make_table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", left: int = 1, wrap: bool = True
) -> Table:
    """A table for people whose first columns are text and whose others are numbers."""
    table = Table(title=title or None, title_justify="left", header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    rows = list(rows)
    for place, head in enumerate(heads):
        if place < left:  # names are never cut, and short ones stay in one piece
            longest = max((len(str(row[place])) for row in rows), default=0)
            short = longest <= max(SHORT_NAME, output.width // 4)
            table.add_column(head, overflow="fold", no_wrap=short or not wrap)
        else:
            table.add_column(head, justify="right", no_wrap=not wrap)
    for row in rows:
        table.add_row(*row)
    return table


def fits(table: Table) -> bool:
    """Whether a table needs no wrapping here; measured where nothing has to wrap, else every table would fit."""
    return Console(width=10_000, markup=False).measure(table).maximum <= output.width


def trust_option(folder: Path) -> str:
    """The option that a command needs where a run or cross-validation has code outside of PAMS; else nothing."""
    from pams_mil.engine.run.cv_folder import with_folds
    from pams_mil.engine.run.spec import stored_spec

    return " --trust-code" if any(stored_spec(run).code for run in with_folds([folder])) else ""


def print_notice(text: str) -> None:
    """What an encoder wants its users to know, on stderr."""
    print_note(f"Notice: {text}")


def print_json(content: Any) -> None:
    """A result for programs."""
    print(strict_json(content))


def encode_slides(what: str, sources: Sequence[SlideSource], folder: Path, **making: Any) -> tuple[Path, Path]:
    """A table of slides and the folder of their features, made in `folder`; `making` as `bags_for_run` takes it."""
    from pams_mil.wsi.extract import bags_for_run

    with errors.status(Text(f"Encoding {what}")):
        return bags_for_run(sources, folder / "features", announce=print_notice, **making)


def list_failures(predictions: SlidePredictions, *, name: str = "") -> None:
    """Say on stderr which slides have no prediction, and why."""
    of, failed = f" by {name}" if name else "", len(predictions.failures)
    if failed:
        errors.print(f"{failed} of {len(predictions) + failed} slides could not be predicted{of}:")
    for slide, reason in predictions.failures.items():
        print_note(f"- {slide}: {reason}")


def show_reservations(certificate: Certificate) -> None:
    """Say first why a certificate is not a guarantee, where it is not."""
    for reason in certificate.reservations:
        output.print(f"Not a guarantee: {reason}", style="bold red")


def show_guarantee(certificate: Certificate) -> None:
    """Say what is guaranteed about the certified calls, if it is a guarantee."""
    show_reservations(certificate)
    for sentence in certificate.bound_sentences:
        output.print(f"Certified calls: {sentence}")


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
