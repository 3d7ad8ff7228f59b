"""`pams bench`: a fair comparison of methods and models, resumable, on this machine or a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pams_mil.cli.console import errors, output, print_json, print_note, progress_bar
from pams_mil.cli.options import WorkerOptions, out_folder
from pams_mil.errors import ConfigError, counted

if TYPE_CHECKING:
    from pams_mil.report.bench import Bench
    from pams_mil.report.bench_page import Further


def bench(
    grid: str = typer.Argument(
        ...,
        metavar="GRID",
        help="A YAML file of methods, models, seeds and folds (docs/training.md), or paper: and one of main-table, "
        "ablation, remix, sensitivity, mixed-cases, cifar10, time, metrics (docs/paper.md).",
    ),
    changes: list[str] | None = typer.Argument(None, metavar="[KEY=VALUE]...", help="Changes to the grid."),
    out: Path | None = typer.Option(
        None, "--out", callback=out_folder, help="Folder for runs and report; default bench/<grid>."
    ),
    workers: WorkerOptions = WorkerOptions(),
    resamples: int = typer.Option(2000, "--resamples", min=0, help="Resamples of patients for intervals; 0: none."),
    calibrated: bool = typer.Option(
        False,
        "--calibrated",
        help="Also calibrate every run on its validation slides, and decide by the Bayes rule for AsCC.",
    ),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON instead of tables."),
) -> None:
    """Run methods x models x seeds x folds and compare them; run it again to continue.

    Example: pams bench grid.yaml --out bench/bracs
    """
    from pams_mil.cli.audit_table import audit_command
    from pams_mil.cli.grid_bar import grid_bar
    from pams_mil.engine.config.grid_config import load_grid, reference_label
    from pams_mil.engine.grid.grid import run_grid
    from pams_mil.experiments import paper
    from pams_mil.experiments.derived_rows import read_entries, summarize_grid
    from pams_mil.report.bench_page import write_bench

    name = paper.paper_name(grid)
    folder = out or Path("bench") / (name or Path(grid).stem)
    if name in paper.STUDIES:
        _study(name, changes or [], folder, resamples, json)
        return
    settings = load_grid(grid, changes or []) if name is None else paper.paper_grid(name, changes or [])
    reference = reference_label(settings)
    runner = workers.start()
    with grid_bar() as tell:
        done = run_grid(settings, folder, runner, progress=tell, each=tell.each)
    with progress_bar() as progress:
        result = summarize_grid(
            done, reference, resamples, calibrated=calibrated, split=settings.split, note=print_note, progress=progress
        )
    further = paper.further(name, settings, done, read_entries(done))
    classes = done.cells[0].config.classes
    commands = {row.name: audit_command(row.name, row.files, classes) for row in result.rows}
    write_bench(result, folder, further, commands=commands, views=_views(result))
    _print(result, further, folder, json)
    if done.failures:
        failed = counted(len(done.failures), "run")
        print_note(f"{failed} failed; see {folder / 'failures.csv'}. Run it again to retry.")
        raise typer.Exit(1)


def _views(result: Bench) -> dict[str, str]:
    """The command that shows the slides of every trained row: its seeds are averaged, folds test other slides."""
    from pams_mil.cli.audit_table import run_of, view_command

    runs = {row.name: [run_of(file) for file in row.files] for row in result.rows if row.epochs is not None}
    seeds = {row.name: len(row.repetitions) for row in result.rows}
    return {name: view_command(*folders) for name, folders in runs.items() if len(folders) == seeds[name]}


def _study(name: str | None, changes: list[str], folder: Path, resamples: int, json: bool) -> None:
    """A study of the paper that is not a grid of runs on bags."""
    from pams_mil.cli.grid_bar import grid_bar
    from pams_mil.experiments import paper
    from pams_mil.report.bench_page import tables_page, write_bench

    if name == "cifar10":
        from pams_mil.experiments.cifar10 import cifar10_study

        with grid_bar() as tell:
            study = cifar10_study(changes, folder, resamples=resamples, progress=tell)
    elif changes:
        raise ConfigError(f"paper:{name} has no settings, found {', '.join(changes)}.")
    elif name == "time":
        from pams_mil.experiments.remix_time import time_study

        with errors.status("Timing every remix"):
            study = time_study()
    else:
        study = paper.metrics_study()
    if study.bench is None:
        tables_page(study.title, study.further, folder)
    else:
        write_bench(study.bench, folder, study.further)
    _print(study.bench, study.further, folder, json)


def _print(result: Bench | None, further: Further, folder: Path, json: bool) -> None:
    from rich.markdown import Markdown

    from pams_mil.cli.bench_table import show

    if json:
        tables = [
            {"caption": table.caption, "head": [head.label for head in table.heads],
             "rows": [[cell.text for cell in row] for row in table.cells]}
            for table in further.tables
        ]  # fmt: skip
        print_json({**({} if result is None else result.to_json()), "tables": tables})
    else:
        if result is not None:
            show(result)
        for table in further.tables:
            output.print(table.caption, style="bold")
            output.print(Markdown(table.markdown()))
    print_note(f"Report: {folder / 'report.html'}")
