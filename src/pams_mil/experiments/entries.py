"""The predictions of a grid's finished runs, method by method and seed by seed; every row knows its fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pams_mil.data.tables import Columns, read_table
from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.grid import GridRun
from pams_mil.engine.run.folder import RunFolder
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions, join_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.bench import Entry
from pams_mil.report.charts import mean_epochs


def read_entries(
    done: GridRun, *, tags: tuple[str, ...] = (), change: Callable[[Cell, Predictions], Predictions] | None = None
) -> list[Entry]:
    """One entry per method and model; its runs are seeds.

    Args:
        done: The finished grid.
        tags: Further columns of the table to read.
        change: What to make of every run's predictions before folds are joined.
    """
    trees: dict[str | tuple[str, ...], ClassHierarchy] = {}
    by_row: dict[tuple[str, str], dict[int, dict[str, Predictions]]] = {}
    logs: dict[tuple[str, str], list[Columns]] = {}
    for cell in done.finished:
        hierarchy = trees.setdefault(cell.config.classes, ClassHierarchy.load(cell.config.classes))
        folder = RunFolder(done.out / cell.key)
        path = folder.predictions_file(cell.split)
        predictions = read_predictions(path, hierarchy, Source(tags=tags), name=cell.key)
        if change is not None:
            predictions = change(cell, predictions)
        by_row.setdefault((cell.model, cell.method), {}).setdefault(cell.seed, {})[cell.repetition] = predictions
        log = folder.metrics_file
        logs.setdefault((cell.model, cell.method), []).append(read_table(log) if log.exists() else {})
    order = dict.fromkeys((cell.model, cell.method) for cell in done.cells)
    return [Entry(*key, _repetitions(by_row[key]), mean_epochs(logs[key])) for key in order if key in by_row]


def _repetitions(seeds: dict[int, dict[str, Predictions]]) -> dict[str, Predictions]:
    """Every seed's predictions, in which each row knows the fold (the network) that made it."""
    return {
        f"seed {seed}": folds[next(iter(folds))]
        if len(folds) == 1
        else join_predictions(
            f"seed {seed}",
            [replace(one, tags={**one.tags, "fold": [name] * len(one)}) for name, one in folds.items()],
        )
        for seed, folds in seeds.items()
    }
