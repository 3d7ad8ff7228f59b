"""`pams experiment`: the paper's tables and figures on your own cohort."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import output, print_json, print_note
from pams_mil.cli.out_option import out_folder
from pams_mil.errors import ConfigError, listing, nearest

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from pams_mil.experiments.study import Table

QUICK_TRAINING = {"epochs": 8, "patience": None, "lr": 1e-3}
QUICK_WIDTH, QUICK_LANDMARKS = 64, 32


def experiment(
    name: str = typer.Argument(
        ...,
        help="main-table, ablation, remix-table, sensitivity, mixed-cases, metric-analysis, cifar10, time-complexity.",
    ),
    changes: list[str] | None = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Training settings, e.g. epochs=20 lr=2e-4."
    ),
    manifest: Path | None = typer.Option(
        None, "--manifest", help="Cohort table; for cifar10 the folder of the images."
    ),
    classes: str | None = typer.Option(None, "--classes", help="A preset or a YAML class file."),
    features: Path | None = typer.Option(None, "--features", help="Folder of feature files, or a pack."),
    models: str = typer.Option("abmil", "--models", help="Models, comma-separated, e.g. abmil,dtfd,transmil."),
    seeds: str = typer.Option("0,1,2", "--seeds", help="Seeds, comma-separated."),
    folds: str | None = typer.Option(None, "--folds", help="Folds of the manifest, comma-separated."),
    tag: str | None = typer.Option(None, "--tag", help="COLUMN=VALUE that marks mixed cases."),
    hidden: int | None = typer.Option(None, "--hidden", min=1, help="Width of the models' embeddings."),
    quick: bool = typer.Option(False, "--quick", help="One seed, few epochs, small models: minutes instead of hours."),
    out: Path = typer.Option(
        Path("experiments"), "--out", callback=out_folder, help="Folder for runs, tables, figures and report.html."
    ),
    engine: str = typer.Option("local", "--engine", help="local (processes) or ray."),
    workers: int | None = typer.Option(None, "--workers", min=1, help="Processes; default: one per core."),
    address: str | None = typer.Option(None, "--address", help="Ray cluster, e.g. auto."),
    resamples: int = typer.Option(2000, "--resamples", min=0, help="Resamples of patients for intervals."),
    json: bool = typer.Option(False, "--json", help="Print tables and lines as JSON."),
) -> None:
    """Run one of the paper's experiments; run it again to continue.

    Example: pams experiment ablation --manifest digits/manifest.csv --classes digits --quick
    """
    from pams_mil import discover
    from pams_mil.cli.audit import parse_tag
    from pams_mil.cli.bench import make_engine
    from pams_mil.cli.grid_bar import grid_bar
    from pams_mil.experiments.experiments_page import names, picture_file, write_section
    from pams_mil.experiments.study import Setting

    if name not in names():
        raise ConfigError(f"There is no experiment {name!r}.{nearest(name, names())} Available: {listing(names())}.")
    with grid_bar() as tell:
        setting = Setting(
            out=out,
            classes=classes or _default_classes(name, manifest),
            engine=make_engine(engine, workers=workers, threads=None, address=address, cpus=1.0, gpus=0.0),
            manifest=manifest,
            features=features,
            models=tuple(_model(model.strip(), quick, hidden) for model in models.split(",")),
            seeds=_numbers("--seeds", seeds)[: 1 if quick else None],
            folds=None if folds is None else _numbers("--folds", folds),
            training=_training(changes or [], quick and name != "cifar10"),
            resamples=min(resamples, 200) if quick else resamples,
            quick=quick,
            tag=parse_tag(tag),
            tell=tell,
        )
        section = discover.load("experiments", name.replace("-", "_"))(setting)
    report = write_section(section, out)
    files = [*section.files, *(picture_file(out / name, figure).name for figure, _ in section.figures)]
    if json:
        print_json({"out": str(out / name), "report": str(report), **section.to_json(), "files": files})
    else:
        for table in section.tables:
            _show(table)
        for line in section.lines:
            output.print(line)
    print_note(f"In {out / name}: {', '.join(files)}. Report: {report}")


def _model(name: str, quick: bool, hidden: int | None) -> dict[str, Any]:
    """A model of the width that was asked for, in the options that it has."""
    from pams_mil.discover import load
    from pams_mil.engine.config.complete_config import option_defaults

    width = hidden or (QUICK_WIDTH if quick else None)
    if width is None:
        return {"name": name}
    known = option_defaults(load("models", name))
    if hidden and "embedding_features" not in known:
        raise ConfigError(
            f"The model {name!r} has no option embedding_features, which --hidden sets; leave --hidden out."
        )
    heads = known.get("attention_heads", 1)
    if width % heads:
        raise ConfigError(f"--hidden {width}: the width of {name!r} must be a multiple of its {heads} attention heads.")
    wanted = {"embedding_features": width, "attention_features": max(1, width // 2)}
    wanted |= {"landmarks": QUICK_LANDMARKS} if quick else {}
    return {"name": name, **{key: value for key, value in wanted.items() if key in known}}


def _training(changes: list[str], quick: bool) -> dict[str, Any]:
    from pams_mil.engine.config.run_config import with_overrides

    return with_overrides(QUICK_TRAINING if quick else {}, [change.removeprefix("training.") for change in changes])


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{option} must be whole numbers separated by commas, found {text!r}.") from error


def _default_classes(name: str, manifest: Path | None) -> str:
    if name == "cifar10":
        return "cifar10"
    if manifest is None:
        return "digits"  # experiments that train nothing do not look at it
    raise ConfigError("Say which classes these are: --classes with a preset or a YAML class file.")


def _show(table: Table) -> None:
    """Print a table; columns that the terminal has no room for are left to the files."""
    columns = list(range(len(table.head)))
    if table.head[0] == "model" and len({row[0] for row in table.rows}) == 1:
        columns = columns[1:]
    widths = [max(map(len, map(_whole, texts))) + 2 for texts in zip(table.head, *table.rows, strict=True)]
    while len(columns) > 2 and sum(widths[column] for column in columns) > output.width:
        columns = columns[:-1]
    output.print(_rich(table, columns))
    if left := [table.head[column] for column in range(columns[-1] + 1, len(table.head))]:
        output.print(f"No room here for: {', '.join(left)}.", style="dim")
    output.print()


def _rich(table: Table, columns: list[int]) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(
        title=Text(table.caption), title_justify="left", title_style="dim", header_style="bold", box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    for column in columns:
        shown.add_column(Text(table.head[column]), justify="left" if column == columns[0] else "right", no_wrap=True)
    for number, row in enumerate(table.rows):
        cells = []
        for column in columns:
            place = (number, column)
            style = "bold" if place in table.bold else "underline" if place in table.underlined else ""
            cells.append(Text(_whole(row[column]), style=style))
        shown.add_row(*cells)
    return shown


def _whole(number: str) -> str:
    return number.replace(" ± ", "±")
