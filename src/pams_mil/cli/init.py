"""`pams init`: a commented config to start from."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from typer import Argument, Option

from pams_mil.atomic import write_text
from pams_mil.cli.console import output
from pams_mil.cli.options import new_file, read_template


def init(
    file: Path = Argument(Path("pams.yaml"), help="Where to write the config."),
    force: bool = Option(False, "--force", help="Replace an existing file."),
) -> None:
    """Write a commented training config to fill in.

    Example: pams init my-run.yaml
    """
    write_text(new_file(file, force=force), template(quote(str(file))))
    output.print(f"Wrote {file}. Edit it, then: pams train {quote(str(file))}")


def template(file: str) -> str:
    """The commented config, with the methods and models that exist."""
    from pams_mil.discover import available

    words = {"file": file, "methods": ", ".join(available("methods")), "models": ", ".join(available("models"))}
    return read_template("config.yaml", **words)
