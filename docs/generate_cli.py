"""Writes docs/reference/cli.md from the help of every verb. Run: make pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from pams_mil import atomic
from pams_mil.cli.main import VERBS, app

PAGE = Path(__file__).with_name("reference") / "cli.md"

HEAD = """# The command line

<!-- Generated from the help of the commands by docs/generate_cli.py; edit that. -->

`pams --help` lists the verbs, and each verb's `--help` says what stands here. Exit codes: 0 done; 1 done, but something
was found or left out (problems in a cohort, slides that failed, a violated bound); 2 a mistake in the command or its
files, and nothing was written; 130, 143 and 129 after Ctrl-C, SIGTERM and SIGHUP, with everything saved that was done.
"""
EXAMPLE = "Example: pams "
RUN_ELSEWHERE = "<!-- not run: the example of every verb is run on its own by tests/docs/test_commands.py -->"


def page() -> str:
    """The whole page, in the order of `pams --help`."""
    group: Any = typer.main.get_command(app)
    panels: dict[str, list[str]] = {}
    for panel, module, attribute in VERBS:
        panels.setdefault(panel, []).append(module if attribute == "app" else attribute)
    parts = [HEAD]
    for panel, names in panels.items():
        parts.append(f"## {panel}\n")
        for words, verb in (found for name in names for found in verbs(group.get_command(None, name), (name,))):
            parts.append(section(words, verb))
    return "\n".join(parts)


def verbs(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A verb, or every verb of a group."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from verbs(inner, (*words, name))
    if not hasattr(command, "commands"):
        yield words, command


def section(words: tuple[str, ...], verb: Any) -> str:
    """One verb: what it does, its example, its arguments and options."""
    text, _, example = (verb.help or "").partition(EXAMPLE)
    shown, _, rest = example.partition("\n\n")
    body = [f"### pams {' '.join(words)}", text.strip()]
    if shown:
        body.append(f"{RUN_ELSEWHERE}\n```console\n$ pams {' '.join(shown.split())}\n```")
    if rest.strip():
        body.append(rest.strip())
    rows = [row(parameter) for parameter in verb.params if not parameter.hidden and parameter.name != "help"]
    if rows:
        body.append("\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows]))
    return "\n\n".join(part for part in body if part) + "\n"


def row(parameter: Any) -> str:
    """A line of the table."""
    meaning = " ".join((parameter.help or "").split())
    return f"| {names(parameter)} | {escape(meaning)} | {default(parameter)} |"


def names(parameter: Any) -> str:
    """How it is written on the command line."""
    if parameter.param_type_name == "argument":
        shown = parameter.metavar or parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
        return f"`{shown}`".replace("|", "\\|")
    return ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))


def default(parameter: Any) -> str:
    """Its default, as one would type it; nothing for switches that are off and for what is not given."""
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or callable(value) or value in ((), []):
        return ""
    if value is True:
        return "on"
    if isinstance(value, (list, tuple)):
        return ", ".join(f"`{getattr(item, 'value', item)}`" for item in value)
    return f"`{getattr(value, 'value', value)}`"


def escape(text: str) -> str:
    """Text that stays as it is inside a Markdown table."""
    for sign in ("\\", "|", "<", "*", "_", "[", "]"):
        text = text.replace(sign, "\\" + sign)
    return text


if __name__ == "__main__":
    atomic.write_text(PAGE, page())
