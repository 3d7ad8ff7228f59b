"""The help of a verb: what each option takes beside its name, what it means in all the room that is left."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import Any

from rich.panel import Panel
from rich.text import Text

from pams_mil.cli.console import output, print_result

PANELS = {"argument": "Arguments", "option": "Options"}
_NEVER_BROKEN = "\u00a0"


def print_help(verb: Any, ctx: Any) -> None:
    """Print usage, text, arguments and options; an example that takes several lines can be copied as it stands."""
    params = {kind: [one for one in verb.get_params(ctx) if one.param_type_name == kind] for kind in PANELS}
    usage = " ".join(["[OPTIONS]", *(_name(one, ctx) for one in params["argument"])])
    print_result(f"\n Usage: {ctx.command_path} {usage}\n")
    for text in verb.help.split("\n\n"):
        if text.startswith("Example:"):
            together = re.sub(" (?!--)", _NEVER_BROKEN, text)  # an option keeps its value
            print_result(" " + " \\\n ".join(_wrapped(together, output.width - 4, "    ")) + "\n", style="bold")
        else:
            print_result(" " + "\n ".join(_wrapped(text, output.width - 2)) + "\n")
    for kind, title in PANELS.items():
        names = [_name(one, ctx) for one in params[kind]]
        left, content = max(map(len, names), default=0), Text()
        for name, one in zip(names, params[kind], strict=True):
            lines = _wrapped(" ".join(filter(None, [one.help, _fact(one)])), output.width - left - 6)
            content.append(f"{name:{left}}  ", style="bold cyan")
            content.append(f"\n{'':{left + 2}}".join(lines) + "\n")
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


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    lines = wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_NEVER_BROKEN, " ") for line in lines]
