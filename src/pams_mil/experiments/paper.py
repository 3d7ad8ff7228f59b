"""The paper's tables on any cohort: grids for `pams bench paper:NAME`, and readers of what a grid's runs left.

A grid is a file of `grids/`; the user says which cohort. `numbers/` holds what the paper prints, shown beside one's own
and always marked as the paper's.

A tagged subset of the test slides, e.g. those with several findings, is scored beside the others. Recall of the most
urgent group counts a slide as found when any class of that group is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from pams_mil.arrays import Array, Ints
from pams_mil.class_checks import names_by_rank
from pams_mil.data.tables import read_table
from pams_mil.engine.config.grid_config import GridConfig, label
from pams_mil.engine.config.run_config import build, with_overrides
from pams_mil.engine.config.yaml_file import read_yaml
from pams_mil.engine.grid.grid import GridRun
from pams_mil.errors import ConfigError, listing, nearest
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.predictions.join import join_seeds
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.scores import finding_scores, score
from pams_mil.experiments.derived_rows import read_entries
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.metric import METRICS, LabelMetrics
from pams_mil.metrics.reduce import divide
from pams_mil.report import charts
from pams_mil.report.audit_tables import finding_table
from pams_mil.report.bench import Bench, Entry
from pams_mil.report.bench_page import Further, spread_text
from pams_mil.report.page import ReportTable

FOLDER = Path(__file__).parent
PREFIX = "paper:"
PENALTIES = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
TOO_LOW = ((18, 1, 1, 0, 0), (4, 15, 1, 0, 0), (2, 3, 14, 1, 0), (2, 2, 2, 13, 1), (1, 2, 2, 3, 12))
"""Rows = true, columns = predicted, five classes i to v: a model whose mistakes mostly miss urgency."""
GRIDS = ("main-table", "ablation", "remix", "sensitivity", "mixed-cases")
STUDIES = ("cifar10", "time", "metrics")
"""Studies that are not a grid of runs on bags."""


@dataclass(frozen=True)
class Study:
    """Tables and pictures of a study, and a benchmark where it compares methods."""

    title: str
    further: Further
    bench: Bench | None = None


def paper_name(grid: str) -> str | None:
    """The name behind `paper:`; None for the path of a grid file.

    >>> paper_name("paper:ablation"), paper_name("grid.yaml")
    ('ablation', None)
    """
    if not grid.startswith(PREFIX):
        return None
    name, names = grid.removeprefix(PREFIX), (*GRIDS, *STUDIES)
    if name not in names:
        raise ConfigError(f"The paper has no table {name!r} here.{nearest(name, names)} Available: {listing(names)}.")
    return name


def paper_grid(name: str, changes: Sequence[str] = ()) -> GridConfig:
    """A grid of the paper on the cohort that `changes` name."""
    path = FOLDER / "grids" / f"{'main-table' if name == 'mixed-cases' else name}.yaml"
    content = with_overrides(read_yaml(path), changes, kind=GridConfig)
    if "classes" not in content or "manifest" not in content.get("data", {}):
        raise ConfigError(
            f"{PREFIX}{name} trains on a cohort, found none. Add manifest=labels.csv features=FOLDER classes=NAME."
        )
    if name == "mixed-cases" and not content.get("subset"):
        raise ConfigError(
            f"{PREFIX}{name} needs the column that marks mixed slides: subset=COLUMN=VALUE, e.g. subset=findings=mixed."
        )
    groups = ClassHierarchy.load(content["classes"]).num_classes(0)
    methods = [
        {**method, "weights": stretch(method["weights"], groups)}
        if isinstance(method, dict) and isinstance(method.get("weights"), list)
        else method
        for method in content["methods"]
    ]
    return build(GridConfig, {**content, "methods": methods}, where=f"{PREFIX}{name}")


def stretch(ratio: Sequence[float], groups: int) -> list[float]:
    """The paper's three weights, or interpolated over another number of groups.

    >>> stretch((2, 3, 5), 3), stretch((2, 3, 5), 5)
    ([2.0, 3.0, 5.0], [2.0, 2.5, 3.0, 4.0, 5.0])
    """
    places = np.linspace(0, len(ratio) - 1, groups) if groups > 1 else np.zeros(1)
    return [float(weight) for weight in np.interp(places, np.arange(len(ratio)), ratio)]


def paper_numbers(table: str) -> dict[tuple[str, str, str, str], tuple[float, float | None]]:
    """A table of the paper: (dataset, model, method, metric) -> mean and deviation, in percent or seconds.

    >>> paper_numbers("main-table")["bracs", "transmil", "PAMS", "ascc"]
    (64.92, 0.14)
    """
    columns = read_table(FOLDER / "numbers" / f"{table}.csv")
    keys = zip(*(columns[name] for name in ("dataset", "model", "method", "metric")), strict=True)
    numbers = zip(columns["mean"], columns["sd"], strict=True)
    return {key: (float(mean), float(sd) if sd else None) for key, (mean, sd) in zip(keys, numbers, strict=True)}


def paper_table(name: str, labels: Sequence[str], dataset: str = "bracs") -> list[ReportTable]:
    """What the paper prints for rows with these labels; none where it prints none of them."""
    if not (FOLDER / "numbers" / f"{name}.csv").exists():
        return []
    numbers = {key[1:]: value for key, value in paper_numbers(name).items() if key[0] == dataset}
    models, metrics = (list(dict.fromkeys(key[place] for key in numbers)) for place in (0, 2))
    rows = []
    for model in models:
        for method in labels:
            cells = [numbers.get((model, method, metric)) for metric in metrics]
            if any(cells):
                rows.append([model, method, *("–" if cell is None else _number(*cell) for cell in cells)])
    caption = f"The paper's own numbers ({dataset.upper()}, finest level), for orientation only."
    heads = ["model", "method", *(METRICS[metric].label for metric in metrics)]
    return [ReportTable(heads, rows, text=(0, 1), caption=caption)] if rows else []


def _number(mean: float, sd: float | None) -> str:
    return f"{mean:.2f}" + (f" ± {sd:.2f}" if sd else "")


def harm_tables(models: Sequence[Predictions]) -> list[ReportTable]:
    """AsCC and rank of every model under other penalties, and with neighboring classes swapped."""
    tables = []
    for what, assumptions in (
        ("penalties P", by_penalty(models, PENALTIES)),
        ("orders of the classes", by_swap(models)),
    ):
        rows = [
            [model.name, *(f"{100 * one.scores[number]:.1f} ({one.ranks[number]})" for one in assumptions)]
            for number, model in enumerate(models)
        ]
        caption = f"AsCC in percent under other {what}, rank in brackets."
        tables.append(ReportTable(["model", *(one.name for one in assumptions)], rows, caption=caption))
    return tables


def metrics_study() -> Study:
    """Do the metrics see what matters? Two models of equal accuracy whose mistakes point in opposite directions.

    ECC and EMC cannot tell them apart; AsCC, AsMC and E(Risk) can.
    """
    models, rows = mirrored_models(), []
    keys = ("acc", "ecc", "emc", "ascc", "asmc", "risk", "severe_errors")
    for model in models:
        values = score(model, resamples=0)[-1].values
        texts = (f"{100 * values[key]:.1f}" if METRICS[key].percent else f"{values[key]:.2f}" for key in keys)
        rows.append([model.name, *texts])
    caption = "Two models with mirrored mistakes: equal by every symmetric metric."
    scores = ReportTable(["model", *(METRICS[key].label for key in keys)], rows, caption=caption)
    return Study("What the metrics see", Further((scores, *harm_tables(models))))


def mirrored_models() -> list[Predictions]:
    """Five classes; B makes A's mistakes in the opposite direction, with the classes counted from the other end."""
    hierarchy = ClassHierarchy.flat(["i", "ii", "iii", "iv", "v"], name="scenario")
    a = np.asarray(TOO_LOW, dtype=np.int64)
    models = []
    # Turning both axes around keeps every distance and swaps misses with false alarms.
    for name, matrix in (("A", a), ("B", a[::-1, ::-1])):
        true, predicted = np.nonzero(matrix)
        counts = matrix[true, predicted]
        slides = [f"{name}{number}" for number in range(int(counts.sum()))]
        models.append(Predictions(name, hierarchy, slides, np.repeat(true, counts), np.repeat(predicted, counts)))
    return models


def further(name: str | None, grid: GridConfig, done: GridRun, entries: Sequence[Entry]) -> Further:
    """What the readers add to a benchmark: paper's numbers, rankings under other harms, a tagged subset, findings."""
    tables: list[ReportTable] = []
    pictures: dict[str, Markup] = {}
    if grid.subset is not None:
        column, _, value = grid.subset.partition("=")
        if not column or not value:
            raise ConfigError(f"subset must be COLUMN=VALUE, e.g. findings=mixed, found {grid.subset!r}.")
        table, radars = subset_table(read_entries(done, tags=(column,)), column, value)
        tables.append(table)
        pictures |= {f"radar-{number}.svg": radar for number, radar in enumerate(radars.values(), 1)}
    if name is not None:
        tables += paper_table(name, [label(method) for method in grid.methods])
    if name == "main-table":
        first = entries[0].model
        tables += harm_tables([join_seeds(entry.method, entry.runs) for entry in entries if entry.model == first])
    for entry in entries:
        joined = join_seeds(entry.method, entry.runs)
        if joined.finding_probabilities is not None:
            tables.append(finding_table(f"{entry.method} on {entry.model}", finding_scores(joined)))
    return Further(tables, pictures)


@dataclass(frozen=True)
class Assumption:
    """One set of harm assumptions, and every model's score and rank (1 = best) under it."""

    name: str
    scores: Array
    ranks: Ints


def by_penalty(models: Sequence[Predictions], penalties: Sequence[float]) -> list[Assumption]:
    """Scores and ranks for each penalty P."""
    every = np.arange(len(models[0].hierarchy))
    return [_assume(f"P = {p:g}", models, LabelMetrics(models[0].hierarchy, penalty=p), every) for p in penalties]


def by_swap(models: Sequence[Predictions]) -> list[Assumption]:
    """Scores and ranks as given, then with each pair of neighboring classes swapped in the order of urgency."""
    tree = models[0].hierarchy
    names, rows = tree.names(), []
    for low in range(-1, len(names) - 1):
        order = np.arange(len(names))
        if low >= 0:
            order[[low, low + 1]] = order[[low + 1, low]]
        ordered = [names[index] for index in order]
        # One level whose ties sit at the same places as before.
        tied = names_by_rank(ordered, tree.ranks().tolist())
        swapped = LabelMetrics(ClassHierarchy.flat(tied, distance_by=tree.distance_by))
        rows.append(_assume(f"{names[low]} ↔ {names[low + 1]}" if low >= 0 else "as given", models, swapped, order))
    return rows


def _assume(name: str, models: Sequence[Predictions], score: LabelMetrics, order: Ints) -> Assumption:
    """The slides stay what they are; only the place of their class in the order changes, in rows and columns."""
    confusions = [count_cells(model.target, model.predicted, len(order))[np.ix_(order, order)] for model in models]
    scores = score(np.stack(confusions))["ascc"]
    return Assumption(name, scores, 1 + (scores > scores[:, None]).sum(axis=1))


KEYS = ("acc", "auc", "ascc", "asmc")


def subset_table(entries: Sequence[Entry], column: str, value: str) -> tuple[ReportTable, dict[str, Markup]]:
    """Every method on the slides with `column` = `value` and on the others, and a radar per model of the former.

    The radar shows the first and the last method and the two of the highest AsCC.
    """
    hierarchy = next(iter(entries[0].runs.values())).hierarchy
    axes = [*(METRICS[key].label for key in KEYS), f"Recall of {hierarchy.names(0)[-1]}"]
    rows, means = [], dict[tuple[str, str], list[float]]()
    for entry in entries:
        for inside in (True, False):
            spreads = _spreads(entry, column, value, inside)
            texts = [spread_text(spread, "acc", digits=1) for spread in spreads]
            rows.append([entry.model, entry.method, value if inside else f"not {value}", *texts])
            if inside:
                means[entry.model, entry.method] = [spread.estimate for spread in spreads]
    caption = f"Slides with {column} = {value} and the others; percent, mean ± population sd over runs."
    table = ReportTable(["model", "method", "slides", *axes], rows, text=(0, 1, 2), caption=caption)
    return table, {model: _radar(model, means, axes) for model in dict.fromkeys(entry.model for entry in entries)}


def _radar(model: str, means: dict[tuple[str, str], list[float]], axes: list[str]) -> Markup:
    values = {method: scores for (of, method), scores in means.items() if of == model}
    best = sorted(values, key=lambda method: (-values[method][KEYS.index("ascc")], method))
    ends = list(values)[-1], next(iter(values))
    return charts.radar(axes, [(method, values[method]) for method in dict.fromkeys([*ends, *best[:2]])], legend=True)


def _spreads(entry: Entry, column: str, value: str, inside: bool) -> list[Contrast]:
    values: list[list[float]] = []
    for run in entry.runs.values():
        rows = np.asarray([(cell == value) == inside for cell in run.tags[column]])
        if not rows.any():
            raise ConfigError(f"No test slide has {column} {'=' if inside else 'other than'} {value!r}.")
        scores = score(run.where(rows), resamples=0)[-1].values
        values.append([*(scores[key] for key in KEYS), most_urgent_recall(run.where(rows))])
    return [Contrast.over_seeds("acc", of_runs) for of_runs in zip(*values, strict=True)]


def most_urgent_recall(predictions: Predictions) -> float:
    """Share of the slides of the most urgent coarse class that were predicted as any of its classes."""
    group = predictions.hierarchy.num_classes(0) - 1
    target, predicted, _ = predictions.at(0)
    return float(divide(np.sum((target == group) & (predicted == group)), np.sum(target == group)))
