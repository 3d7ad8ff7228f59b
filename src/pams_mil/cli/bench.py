"""`pams bench`: a fair comparison of methods and models, resumable, on this machine or a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markdown import Markdown
from typer import Argument, Exit, Option

from pams_mil.cli.console import errors, output, print_json, print_note, progress_bar
from pams_mil.cli.grid_bar import grid_bar
from pams_mil.cli.options import WorkerOptions, out_folder
from pams_mil.errors import ConfigError, counted

if TYPE_CHECKING:
    from pams_mil.experiments.paper import Study


def bench(
    grid: str = Argument(
        ...,
        metavar="GRID",
        help="A YAML file of methods, models, seeds and folds (docs/training.md), or paper: and one of main-table, "
        "ablation, remix, sensitivity, mixed-cases, cifar10, time, metrics (docs/paper.md).",
    ),
    changes: list[str] | None = Argument(None, metavar="[KEY=VALUE]...", help="Changes to the grid."),
    out: Path | None = Option(None, callback=out_folder, help="Folder for runs and report; default bench/<grid>."),
    workers: WorkerOptions = WorkerOptions(),
    resamples: int = Option(2000, min=0, help="Resamples of patients for intervals; 0: none."),
    calibrated: bool = Option(
        False,
        "--calibrated",
        help="Also calibrate every run on its validation slides, and decide by the Bayes rule for AsCC.",
    ),
    json: bool = Option(False, "--json", help="Print the scores as JSON instead of tables."),
) -> None:
    """Run methods x models x seeds x folds and compare them; run it again to continue.

    Example: pams bench grid.yaml --out bench/bracs
    """
    from pams_mil.cli.audit_table import audit_command, show_bench, slide_files, view_command
    from pams_mil.engine.config.grid_config import load_grid, reference_label
    from pams_mil.engine.grid.grid import run_grid
    from pams_mil.engine.run.cv_folder import run_of
    from pams_mil.experiments import paper
    from pams_mil.experiments.derived_rows import read_entries, summarize_grid
    from pams_mil.report.bench_page import tables_page, write_bench

    name = paper.paper_name(grid)
    folder = out or Path("bench") / (name or Path(grid).stem)
    failed = 0
    if name in paper.STUDIES:
        study = _study(name, changes or [], folder, resamples)
        result, further = study.bench, study.further
        if result is None:
            tables_page(study.title, further, folder)
        else:
            write_bench(result, folder, further)
    else:
        settings = load_grid(grid, changes or []) if name is None else paper.paper_grid(name, changes or [])
        reference, runner = reference_label(settings), workers.start()
        with grid_bar() as tell:
            done = run_grid(settings, folder, runner, progress=tell, each=tell.each)
        with progress_bar() as progress:
            result = summarize_grid(
                done, reference, resamples, calibrated=calibrated, split=settings.split, note=print_note,
                progress=progress,
            )  # fmt: skip
        further, failed = paper.further(name, settings, done, read_entries(done)), len(done.failures)
        classes = done.cells[0].config.classes
        links = {}
        for row in result.rows:
            runs = [] if row.epochs is None else [run for run in map(run_of, row.files) if run is not None]
            # Seeds of a trained row are averaged; folds test other slides, and no command shows those of all.
            view = view_command(*runs) if runs and len(runs) == len(row.runs) else ""
            reports = [report for run in runs for report in sorted((run / "reports").glob("*"))]
            pages, pictures = slide_files(row.predictions.slide_ids, folder, reports)
            again = audit_command(row.name, row.files, classes, view=view)
            links[row.name] = replace(again, pages=pages, pictures=pictures)
        write_bench(result, folder, further, links)
    if json:
        tables = [
            {"caption": table.caption, "head": [head.text for head in table.heads],
             "rows": [[cell.text for cell in row] for row in table.cells]}
            for table in further.tables
        ]  # fmt: skip
        print_json({**({} if result is None else result.to_json()), "tables": tables})
    else:
        if result is not None:
            show_bench(result)
        for table in further.tables:
            output.print(table.caption, style="bold")
            output.print(Markdown(table.markdown()))
    print_note(f"Report: {folder / 'report.html'}")
    if failed:
        print_note(f"{counted(failed, 'run')} failed; see {folder / 'failures.csv'}. Run it again to retry.")
        raise Exit(1)


def _study(name: str | None, changes: list[str], folder: Path, resamples: int) -> Study:
    """A study of the paper that is not a grid of runs on bags."""
    from pams_mil.experiments.cifar10 import cifar10_study
    from pams_mil.experiments.paper import metrics_study
    from pams_mil.experiments.remix_time import time_study

    if name == "cifar10":
        with grid_bar() as tell:
            return cifar10_study(changes, folder, resamples=resamples, progress=tell)
    if changes:
        raise ConfigError(f"paper:{name} has no settings, found {', '.join(changes)}.")
    with errors.status(f"Working on {name}"):
        return time_study() if name == "time" else metrics_study()
