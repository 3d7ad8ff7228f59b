"""`pams`: the entry point. Errors that the user can mend end in one message and exit code 2."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

from pams_mil import __version__
from pams_mil.cli.console import errors
from pams_mil.errors import PamsError

VERBS = (
    ("Class hierarchies", "classes", "app"),
    ("Audits", "audit", "audit"),
    ("Audits", "demo", "demo"),
    ("Data", "check", "check"),
    ("Data", "split", "split"),
    ("Data", "pack", "pack"),
    ("Data", "pack", "unpack"),
    ("Data", "cohort", "app"),
    ("Slides", "extract", "extract"),
    ("Slides", "heatmap", "heatmap"),
    ("Training", "init", "init"),
    ("Training", "train", "train"),
    ("Training", "predict", "predict"),
    ("Training", "evaluate", "evaluate"),
    ("Training", "export", "export"),
    ("Benchmarks", "bench", "bench"),
    ("Benchmarks", "experiment", "experiment"),
    ("Benchmarks", "remix", "remix"),
)
"""Panel in `--help`, module in `pams_mil.cli`, and the command (or sub-application `app`) in it."""


class Verbs(TyperGroup):
    """A group that turns a `PamsError` into a message for people instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except PamsError as error:
            errors.print(f"[bold red]Error:[/] {_escape(str(error))}", soft_wrap=True, highlight=False)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Verbs,
    name="pams",
    help="Models that know which class is more urgent: audit, train and compare them.",
    epilog="Start with: pams audit predictions.csv --classes bracs",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(f"pams-mil {__version__}")
        raise typer.Exit


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def _register() -> None:
    for panel, module_name, attribute in VERBS:
        if find_spec(f"pams_mil.cli.{module_name}") is None:
            continue
        verb = getattr(import_module(f"pams_mil.cli.{module_name}"), attribute)
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=module_name, rich_help_panel=panel)
        else:
            app.command(attribute, rich_help_panel=panel)(verb)


_register()


def main() -> None:
    """Run `pams`; Ctrl-C ends quietly with the usual exit code."""
    try:
        app()
    except KeyboardInterrupt:
        errors.print("\nInterrupted.")
        sys.exit(130)
