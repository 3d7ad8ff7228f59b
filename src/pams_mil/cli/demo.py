"""`pams demo`: train cross-entropy, PAMS and a committee on real images and see which one misses fewer urgent cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Exit, Option

from pams_mil.cli.console import print_note, print_result, progress_bar
from pams_mil.cli.grid_bar import grid_bar
from pams_mil.cli.options import out_folder
from pams_mil.errors import counted

if TYPE_CHECKING:
    from pams_mil.engine.config.grid_config import Cell, GridConfig

RESAMPLES = 1000
REFERENCE = "Cross-entropy"
METHODS: tuple[dict[str, Any], ...] = (
    {"name": "ce", "label": REFERENCE, "towers": "finest", "training": {"batch": 4, "lr": 3e-3}},
    {"name": "pams", "label": "PAMS", "training": {"batch": 2, "lr": 2e-3}},
)
"""The first rows of the table. Batch size and learning rate of each had the best mean AsCC on validation bags of four
other cohorts (`experiments/settings-demo.yaml`). The test split chose nothing."""
TEST_BAGS = 700
"""A hundred of every class: bags to test on cost nothing, and with fewer chance decides which row is ahead."""
COMMITTEE = "Committee"
"""The last row: the mean of the members that `pams cv` trains, one of each."""
MODEL = "Digits"
"""What the rows are compared on."""


def demo(
    out: Path = Option(
        Path("demo-report"), callback=out_folder, help="Folder for the cohort, the runs and the report."
    ),
    seeds: int = Option(3, min=1, help="Runs per method."),
    epochs: int = Option(50, min=1, help="Epochs of cross-entropy and PAMS; members of the committee train for half."),
) -> None:
    """Train cross-entropy, PAMS and a committee on bags of handwritten digits and compare their mistakes.

    Digits 0 to 6 stand for findings of growing urgency; a bag's label is its most urgent digit. Cross-entropy and PAMS
    train the same model (AB-MIL) with the same seeds and epochs; the committee is the mean of eight small models, one
    of each. Takes a minute or two on two cores; run it again to continue.

    Example: pams demo --out demo-report
    """
    from pams_mil.cli.audit_table import show_bench
    from pams_mil.cohorts.cohort_writer import write_cohort
    from pams_mil.cohorts.digits import Digits
    from pams_mil.engine.config.grid_config import cells
    from pams_mil.engine.grid.engines import LocalEngine
    from pams_mil.engine.grid.grid import run_cells
    from pams_mil.experiments.derived_rows import mean_entry, read_entries
    from pams_mil.report.bench import summarize
    from pams_mil.report.bench_page import write_bench

    cohort, maker = out / "cohort", Digits(test=TEST_BAGS)
    if not (cohort / "manifest.csv").exists():
        with progress_bar() as bar:
            write_cohort(
                cohort, maker.slides(), total=len(maker),
                progress=lambda done: bar("Making bags of digits", done / len(maker)),
            )  # fmt: skip
    labels = " and ".join(method["label"] for method in METHODS)
    print_result(
        f"Training {labels} on {cohort}: AB-MIL, {counted(seeds, 'seed')} each; and a committee of eight small models. "
        f"{counted(epochs, 'epoch')}, and {max(1, epochs // 2)} for the committee."
    )
    grid = demo_grid(cohort, seeds, epochs)
    wanted = [*cells(grid), *member_cells(grid)]
    with grid_bar() as tell:
        done = run_cells(wanted, out, out / "cells", LocalEngine(), progress=tell, each=tell.each)
    entries = [entry for entry in read_entries(done) if entry.method != COMMITTEE]
    committee = mean_entry(done, MODEL, COMMITTEE)
    entries += [committee] if committee is not None else []
    result = summarize(entries, reference=REFERENCE, resamples=RESAMPLES, missing=done.failures)
    write_bench(result, out)
    show_bench(result)
    print_note(f"Report: {out / 'report.html'}")
    if done.failures:
        raise Exit(1)


def demo_grid(cohort: Path, seeds: int, epochs: int) -> GridConfig:
    """All methods with everything else the same, small enough to wait for."""
    from pams_mil.engine.config.grid_config import GridConfig
    from pams_mil.engine.config.run_config import build

    content = {
        "data": {"manifest": cohort / "manifest.csv", "features": cohort / "h5_files"},
        "classes": "digits",
        "methods": METHODS,
        "models": [{"name": "abmil", "label": MODEL, "embedding_features": 128, "attention_features": 64}],
        "seeds": list(range(seeds)),
        "training": {"epochs": epochs, "patience": None, "select": "last", "average": 3},
        "compute": {"accelerator": "cpu"},
    }
    return build(GridConfig, content)


def member_cells(grid: GridConfig) -> list[Cell]:
    """One run of every member of the committee."""
    from pams_mil.engine.config.grid_config import Cell
    from pams_mil.engine.tuning.recipes import load_committee

    recipe = load_committee()
    budget = {"epochs": max(1, grid.training.epochs // 2), "lr": 2e-3}
    shared = {
        "data": grid.data.model_dump(), "classes": grid.classes, "compute": grid.compute.model_dump(),
        "training": {**recipe.training, **budget}, "seed": grid.seeds[0],
    }  # fmt: skip
    return [
        Cell(f"{COMMITTEE}--{member.name}", MODEL, COMMITTEE, grid.seeds[0], None, member.config(shared))
        for member in recipe.recipes
    ]
