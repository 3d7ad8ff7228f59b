"""Rows of a benchmark that cost no training: the same probabilities calibrated, decided or restored otherwise.

Calibrated: a run is calibrated on its own validation slides, which undoes what its loss and its remix did to the
probabilities as far as these slides show it, and the Bayes rule for AsCC then asks the same of all methods. What still
differs is what the models know, not where their training put the operating point.

Untrained: MSCE is in good part a decision rule; its most probable class is nearly that of cross-entropy under
`implied_cost`. Cross-entropy decided with this cost is PAMS' operating point without PAMS' training; PAMS with the bias
of MSCE removed is PAMS' training at an ordinary operating point.

The predictions of a grid's finished runs, method by method and seed by seed; every row knows its fold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.tables import Columns, read_table
from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.grid import GridRun
from pams_mil.engine.prediction.calibrate import calibrate
from pams_mil.engine.run.folder import RunFolder
from pams_mil.errors import PamsError
from pams_mil.evaluate.committee import average
from pams_mil.evaluate.decisions.debias import TrainingBias
from pams_mil.evaluate.decisions.decide import redecide
from pams_mil.evaluate.decisions.probability_calibration import ProbabilityCalibration
from pams_mil.evaluate.predictions.join import join_predictions
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.severity_aware import Pams
from pams_mil.report.bench import Bench, Entry, summarize
from pams_mil.report.charts import mean_epochs
from pams_mil.severity import implied_cost, loss_weight

OF_THE_WEIGHT = ("alpha", "costs", "orientation", "distance")
"""Options of MSCE's weight; with another one its bias is another one."""


def summarize_grid(
    done: GridRun,
    reference: str,
    resamples: int,
    *,
    calibrated: bool = False,
    split: str = "test",
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Bench:
    """Compare the predictions of all finished runs of a grid, with rows that cost no training.

    `reference` is the label of the method that the others are compared with. With `calibrated`, every run is calibrated
    too; `note` is told which cannot be, and why.
    """
    entries = [_kept(done, entry) for entry in with_untrained(done, read_entries(done))]
    if calibrated:
        entries, refused = with_calibrated(done, entries, lambda share: progress("Calibrating", share))
        for run, reason in refused.items():
            note(f"{run} cannot be calibrated: {reason}")
    progress("Comparing", 0.0)
    return summarize(entries, reference=reference, resamples=resamples, missing=done.failures, split=split)


def with_calibrated(
    done: GridRun, entries: Sequence[Entry], progress: Callable[[float], None] | None = None
) -> tuple[list[Entry], dict[str, str]]:
    """The entries with their calibrated runs, and the runs that cannot be calibrated with the reason.

    A method with such a run gets no calibrated ones: the others alone would be another set of slides.
    """
    fitted: dict[str, ProbabilityCalibration] = {}
    refused: dict[str, str] = {}
    cells = done.finished
    for number, cell in enumerate(cells, 1):
        try:
            fitted[cell.key] = calibrate(done.out / cell.key, trusted=True).levels[-1].calibration
        except PamsError as error:
            refused[cell.key] = str(error)
        if progress is not None:
            progress(number / len(cells))

    def calibrated(cell: Cell, run: Predictions) -> Predictions:
        if cell.key not in fitted or run.probabilities is None:
            return run
        return redecide(replace(run, probabilities=fitted[cell.key](run.probabilities)), rule="ascc")

    left_out = {(cell.model, cell.method) for cell in cells if cell.key in refused}
    by_row = {(entry.model, entry.method): entry.runs for entry in read_entries(done, change=calibrated)}
    runs = {key: repetitions for key, repetitions in by_row.items() if key not in left_out}
    return [replace(entry, calibrated=runs.get((entry.model, entry.method))) for entry in entries], refused


def with_untrained(done: GridRun, entries: Sequence[Entry]) -> list[Entry]:
    """The entries, and after the first of cross-entropy and of PAMS an untrained row, for models that have both.

    The first alone: arms that vary a method repeat what its first row shows, and every row more weakens the others'
    corrected p.
    """
    methods = {(cell.model, cell.method): cell.config.method for cell in done.cells}
    names = {key: choice.name for key, choice in methods.items()}
    rows: list[Entry] = []
    shown: set[tuple[str, str]] = set()
    for entry in entries:
        rows.append(entry)
        here = {name for (model, _), name in names.items() if model == entry.model}
        scored = all(run.probabilities is not None for run in entry.runs.values())
        name, options = names[entry.model, entry.method], methods[entry.model, entry.method].options
        if not ({"ce", "pams"} <= here and scored) or (entry.model, name) in shown:
            continue
        shown.add((entry.model, name))
        hierarchy = next(iter(entry.runs.values())).hierarchy
        if name == "ce":
            cost = implied_cost(loss_weight(hierarchy))
            runs = {key: redecide(run, rule="risk", cost=cost) for key, run in entry.runs.items()}
            rows.append(Entry(entry.model, f"{entry.method} + MSCE's cost", runs, files=entry.files))
        elif name == "pams" and all(
            options.get(key, getattr(Pams, key)) == getattr(Pams, key) for key in OF_THE_WEIGHT
        ):
            bias = TrainingBias(loss_weight(hierarchy), bool(options.get("detach_weight", False)))
            runs = {key: redecide(run, debias=bias) for key, run in entry.runs.items()}
            rows.append(Entry(entry.model, f"{entry.method}, bias removed", runs))
    return rows


def read_entries(
    done: GridRun, *, tags: tuple[str, ...] = (), change: Callable[[Cell, Predictions], Predictions] | None = None
) -> list[Entry]:
    """One entry per method and model; its runs are seeds, with further columns `tags` of the table.

    `change` says what to make of every run's predictions before folds are joined.
    """
    trees: dict[str | tuple[str, ...], ClassHierarchy] = {}
    by_row: dict[tuple[str, str], dict[int, dict[str, Predictions]]] = {}
    logs: dict[tuple[str, str], list[Columns]] = {}
    files: dict[tuple[str, str], list[Path]] = {}
    for cell in done.finished:
        hierarchy = trees.setdefault(cell.config.classes, ClassHierarchy.load(cell.config.classes))
        folder = RunFolder(done.out / cell.key)
        path = folder.predictions_file(cell.split)
        predictions = read_predictions(path, hierarchy, Source(tags=tags), name=cell.key)
        if change is not None:
            predictions = change(cell, predictions)
        by_row.setdefault((cell.model, cell.method), {}).setdefault(cell.seed, {})[cell.repetition] = predictions
        files.setdefault((cell.model, cell.method), []).append(path)
        log = folder.metrics_file
        logs.setdefault((cell.model, cell.method), []).append(read_table(log) if log.exists() else {})
    order = dict.fromkeys((cell.model, cell.method) for cell in done.cells)
    return [
        Entry(*key, _repetitions(by_row[key]), mean_epochs(logs[key]), files=tuple(files[key]))
        for key in order
        if key in by_row
    ]


def _kept(done: GridRun, entry: Entry) -> Entry:
    """An entry whose predictions are in files; probabilities that no run has written are written beside the cells."""
    if entry.files:
        return entry
    folder = done.out.parent / "derived" / FileNames()[f"{entry.model}--{entry.method}"]
    files = {folder / f"{FileNames()[name]}.csv": run for name, run in entry.runs.items()}
    for file, run in files.items():
        write_predictions(file, run)
    return replace(entry, files=tuple(files))


def mean_entry(done: GridRun, model: str, method: str) -> Entry | None:
    """The runs of a row as one committee: the mean of their probabilities; None until all of them are finished."""
    row = [cell for cell in done.cells if (cell.model, cell.method) == (model, method)]
    if not row or not {cell.key for cell in row} <= {cell.key for cell in done.finished}:
        return None
    hierarchy = ClassHierarchy.load(row[0].config.classes)
    files = [RunFolder(done.out / cell.key).predictions_file(cell.split) for cell in row]
    members = [read_predictions(file, hierarchy, name=cell.key) for cell, file in zip(row, files, strict=True)]
    return Entry(model, f"{method} of {len(row)}", {f"seed {row[0].seed}": average(method, members)})


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
