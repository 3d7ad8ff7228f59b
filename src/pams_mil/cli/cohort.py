"""`pams cohort make`: cohorts that need no download, in CLAM's layout, with the truth of every instance."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import Any

import typer
from typer import Argument, Option

from pams_mil.cli.console import print_json, print_result, progress_bar
from pams_mil.cli.options import out_folder
from pams_mil.errors import ConfigError, counted, listing, nearest

app = typer.Typer(
    help="Make cohorts for trying things out, without any download.",
    epilog="Example: pams cohort make digits my-digits",
    no_args_is_help=True,
)


@app.callback()
def _cohort() -> None:
    """Keeps `make` a named command although it is the only one."""


@app.command("make")
def make(
    kind: str = Argument(..., help="digits, synthetic or cifar10."),
    out: Path = Argument(..., callback=out_folder, help="A new folder."),
    seed: int = Option(0, help="Same seed, same cohort."),
    option: list[str] = Option(
        [], "--set", help="NAME=VALUE, e.g. train=100, noise=0.3, mixed=0.5, classes=colon; may be repeated."
    ),
    source: Path | None = Option(None, help="cifar10: the local copy to read."),
    json: bool = Option(False, "--json", help="Print counts and paths as JSON."),
) -> None:
    """Write features, manifest.csv and instance_labels.csv of a synthetic cohort.

    Example: pams cohort make digits my-digits
    """
    from pams_mil.cohorts.cohort_writer import write_cohort

    maker = build(kind, option, seed, source)
    total = len(maker)
    with progress_bar() as bar:
        manifest = write_cohort(
            out, maker.slides(), total=total, progress=lambda done: bar(f"Making {kind}", done / total)
        )
    mixed = sum("mixed" in record.tags for record in manifest)
    classes = getattr(maker, "classes", kind)
    table, features = out / "manifest.csv", out / "h5_files"
    if json:
        counts = {"slides": len(manifest), "patients": len(manifest.patients), "mixed": mixed}
        print_json({"manifest": str(table), "features": str(features), "classes": classes, **counts})
        return
    print_result(
        f"{counted(len(manifest), 'slide')} of {counted(len(manifest.patients), 'patient')}, "
        f"{mixed:,} of them mixed, written to {out}."
    )
    print_result(f"Next: pams check {quote(str(table))} --features {quote(str(features))} --classes {quote(classes)}")


def build(kind: str, options: list[str], seed: int, source: Path | None) -> Any:
    """The cohort that the options, NAME=VALUE, describe."""
    from pams_mil.cohorts import Cifar10, Digits, Synthetic

    makers: dict[str, Any] = {"digits": Digits, "synthetic": Synthetic, "cifar10": Cifar10}
    if kind not in makers:
        raise ConfigError(f"There is no cohort {kind!r}.{nearest(kind, makers)} Choose one of {listing(makers)}.")
    known = {item.name: str(item.type) for item in fields(makers[kind]) if item.name not in ("seed", "source")}
    settings: dict[str, Any] = {"seed": seed}
    for option in options:
        name, sign, text = option.partition("=")
        if not sign or name not in known:
            raise ConfigError(
                f"--set {option!r} is not NAME=VALUE with a known name.{nearest(name, known)} "
                f"Known: {listing(known, most=20)}."
            )
        try:
            settings[name] = {"int": int, "float": float, "str": str}[known[name]](text)
        except ValueError:
            raise ConfigError(f"--set {name} must be a number ({known[name]}), found {text!r}.") from None
    if kind == "cifar10":
        if source is None:
            raise ConfigError("cifar10 needs --source, the folder of a local copy such as cifar-10-batches-py.")
        settings["source"] = source
    return makers[kind](**settings)
