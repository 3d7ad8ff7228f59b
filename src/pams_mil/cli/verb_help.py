"""The help of a verb: what each option takes beside its name, what it means in all the room that is left."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import Any

from rich.panel import Panel
from rich.text import Text

from pams_mil.cli.console import output

PANELS = {"argument": "Arguments", "option": "Options"}
_NEVER_BROKEN = "\u00a0"


def print_help(verb: Any, ctx: Any) -> None:
    """Print usage, text, arguments and options; an example that takes several lines can be copied as it stands."""
    params = {kind: [one for one in verb.get_params(ctx) if one.param_type_name == kind] for kind in PANELS}
    usage = " ".join(["[OPTIONS]", *(_name(one, ctx) for one in params["argument"])])
    width = output.width - 1
    _print(f"\n Usage: {ctx.command_path} {usage}\n")
    for text in verb.help.split("\n\n"):
        if text.startswith("Example:"):
            lines = _wrapped(re.sub(" (?!--)", _NEVER_BROKEN, text), width - 2, indent=4)  # an option keeps its value
            _print(" \\\n".join(lines) + "\n", style="bold")
        else:
            _print("\n".join(_wrapped(text, width)) + "\n")
    for kind, title in PANELS.items():
        names = [_name(one, ctx) for one in params[kind]]
        left = max(map(len, names), default=0)
        content = Text()
        for name, one in zip(names, params[kind], strict=True):
            text = " ".join(filter(None, [one.help, _fact(one)]))
            lines = _wrapped(text, width - left - 5, indent=0)
            content.append(f"{name:{left}}  ", style="bold cyan")
            content.append(f"\n{'':{left + 2}}".join(line.strip() for line in lines) + "\n")
        if names:
            output.print(Panel(content[:-1], title=title, title_align="left", border_style="dim"))


def _name(param: Any, ctx: Any) -> str:
    """How an argument or option is written: PREDICTIONS..., --out PATH, --labels/--no-labels."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper() + ("..." if param.nargs == -1 else ""))
    names = "/".join((", ".join(sorted(param.opts, key=len)), *param.secondary_opts))
    if param.is_flag:
        return names
    kind = (getattr(param, "display_type", None) or param.make_metavar)(ctx)  # the latter before typer 0.29
    known = None if "|" in kind else re.search("path|int|float", kind, re.IGNORECASE)
    return f"{names} {param.metavar or (known[0].upper() if known else 'TEXT')}"


def _fact(param: Any) -> str:
    """Whether an argument or option is required, or what it is without being given."""
    default = param.default
    if param.required:
        return "[required]"
    if default is True and param.secondary_opts:
        default = param.opts[0].removeprefix("--")
    if default is None or isinstance(default, bool) or callable(default) or default in ((), []):
        return ""
    return f"[default: {default}]".replace(" ", _NEVER_BROKEN)


def _wrapped(text: str, width: int, *, indent: int = 0) -> list[str]:
    lines = wrap(text, width, initial_indent=" ", subsequent_indent=" " * (indent + 1), break_on_hyphens=False)
    return [line.replace(_NEVER_BROKEN, " ") for line in lines]


def _print(text: str, style: str = "") -> None:
    output.print(text, style=style, soft_wrap=True)
