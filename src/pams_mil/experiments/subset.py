"""Scores of a tagged subset of the test slides and of the others, e.g. slides with several findings.

Recall of the most urgent group counts a slide as found when any class of that group is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from pams_mil.errors import ConfigError
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.evaluate.scores import score
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.reduce import divide
from pams_mil.report import charts
from pams_mil.report.bench import Entry
from pams_mil.report.bench_page import spread_text
from pams_mil.report.page import ReportTable

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
