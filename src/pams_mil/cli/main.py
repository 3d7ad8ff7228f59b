"""`pams`: the entry point. Errors that the user can fix end in one message and exit code 2."""

from __future__ import annotations

import errno
import signal
import sys
from collections import Counter
from importlib import import_module
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from pams_mil import __version__
from pams_mil.atomic import explain
from pams_mil.cli.console import errors
from pams_mil.cli.options import with_groups
from pams_mil.cli.verb_help import print_help
from pams_mil.errors import ConfigError, PamsError, RunInterruptedError, counted

_OF_THE_MACHINE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EEXIST, errno.ENOTDIR,
                   errno.ENAMETOOLONG}  # fmt: skip
"""What the system refuses without any bug of ours: missing rights, a full disk, a file where a folder should be."""

PANELS = {
    "Class hierarchies": "classes",
    "Audits": "audit certify monitor reveal demo",
    "Data": "check split pack unpack cohort",
    "Slides": "extract heatmap view",
    "Training": "init train cv tune calibrate predict evaluate export",
    "Benchmarks": "bench remix",
}
"""The verbs in the order of `--help`."""
_ELSEWHERE = {"unpack": ("pack", "unpack"), "classes": ("classes", "app"), "cohort": ("cohort", "app")}
_PLACES = {
    name: (panel, *_ELSEWHERE.get(name, (name, name))) for panel, names in PANELS.items() for name in names.split()
}
VERBS = list(_PLACES.values())
"""Panel in `--help`, module in `pams_mil.cli`, and the command (or sub-application `app`) in it."""


class Verb(TyperCommand):
    """A verb whose help fits any width, and whose options are given once unless they take several values."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Typer keeps the line breaks of a docstring, which are those of the source and not of the terminal.
        self.help = "\n\n".join(" ".join(text.split()) for text in (self.help or "").split("\n\n"))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As `verb_help` prints it."""
        print_help(self, ctx)

    def make_parser(self, ctx: Any) -> Any:
        """The parser, which refuses what it would take the last of: --classes a --classes b."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            result = parse(args=args)
            order: list[Any] = result[2]
            for one, times in Counter(order).items():
                if times > 1 and not (one.param_type_name == "argument" or one.multiple or one.is_flag):
                    raise ConfigError(f"{one.opts[0]} is given {counted(times, 'time')}; expected it once.")
            return result

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser


class Group(TyperGroup):
    """Verbs below one name."""

    def get_help_option(self, ctx: Any) -> Any:
        """As ever, with a default: typer would import pydantic to learn that nobody asked for help here."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default, option.metavar = False, ""  # nothing follows it
        return option


class Verbs(Group):
    """All verbs, each imported when it is asked for; a `PamsError` ends in a message for people, not in a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of `--help`."""
        return list(_PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb of this name; None: there is none."""
        if cmd_name not in self.commands and cmd_name in _PLACES:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that is asked for; a misspelt one is answered with its likeness among all of them."""
        if args and args[0] not in _PLACES:
            # Typer compares a wrong name with the verbs it has loaded, so here all of them are.
            for name in _PLACES:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except RunInterruptedError as error:
            errors.print(str(error), soft_wrap=True, highlight=False, markup=False)
            raise typer.Exit(error.exit_code) from error
        except PamsError as error:
            _complain(str(error))
            raise typer.Exit(error.exit_code) from error
        except OSError as error:
            # Without a file name there is nothing to tell the user; a traceback then says more.
            if error.errno not in _OF_THE_MACHINE or error.filename is None:
                raise
            _complain(f"{error.filename}: {explain(error)}")
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
def _options(version: bool = typer.Option(False, "--version", metavar="", help="Print the version and exit.")) -> None:
    if version:
        print(f"pams-mil {__version__}")
        raise typer.Exit


def _complain(text: str) -> None:
    errors.print(Text("Error:", style="bold red"), Text(text), soft_wrap=True)


def _load(name: str) -> Any:
    """Import a verb: `pams train --help` needs no other's options."""
    panel, module, attribute = _PLACES[name]
    verb = getattr(import_module(f"pams_mil.cli.{module}"), attribute)
    # Typer turns functions into commands only as parts of an application, so each gets one of its own.
    one = typer.Typer(rich_markup_mode="rich")
    if isinstance(verb, typer.Typer):
        for command in verb.registered_commands:
            command.cls = Verb
        one.add_typer(verb, cls=Group, name=name, rich_help_panel=panel)
    else:
        one.command(name, cls=Verb, rich_help_panel=panel)(with_groups(verb))
    return typer.main.get_group(one).commands[name]


def main() -> None:
    """Run `pams`; Ctrl-C, SIGTERM and SIGHUP tidy up and end with the usual exit codes, 130, 143 and 129."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Only where nobody decided otherwise: under nohup SIGHUP is ignored, and must stay so.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    app()
