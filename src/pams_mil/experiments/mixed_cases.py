"""Slides with several findings: does the most urgent one win? The tagged subset against the rest.

Recall of the most urgent group counts a slide as found when any class of that group is predicted.
"""

from __future__ import annotations

import numpy as np

from pams_mil import atomic
from pams_mil.errors import ConfigError
from pams_mil.evaluate.predictions import Predictions
from pams_mil.evaluate.scores import score
from pams_mil.experiments.arms import main_arms
from pams_mil.experiments.entries import read_entries
from pams_mil.experiments.study import Section, Setting, Table, run_arms
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.reduce import divide
from pams_mil.report import charts, svg
from pams_mil.report.bench import Entry, SeedSpread
from pams_mil.report.text_tables import spread_text

DISCOVER = "run"
TITLE = "Mixed cases: slides with several findings"
NAME = "mixed-cases"
SCORES = ("acc", "auc", "ascc", "asmc")


def run(setting: Setting) -> Section:
    """Score all methods of the main table on the tagged slides and on the others."""
    if setting.tag is None:
        raise ConfigError(
            "mixed-cases needs the column that marks mixed slides: --tag COLUMN=VALUE, e.g. findings=mixed."
        )
    column, value = setting.tag
    entries = read_entries(run_arms(setting, main_arms(setting.hierarchy)), tags=(column,))
    groups = setting.hierarchy.names(0)
    urgent = len(groups) - 1
    rows, radar = [], {}
    for entry in entries:
        for subset in (value, f"not {value}"):
            spreads = _spreads(entry, column, value, subset == value, urgent)
            rows.append((entry.model, entry.method, subset, spreads))
            if subset == value:
                radar[entry.model, entry.method] = [spread.mean for spread in spreads]
    head = ("model", "method", "slides", *(METRICS[key].label for key in SCORES), f"Recall of {groups[urgent]}")
    text = tuple(
        (model, method, subset, *(spread_text(spread, "acc", digits=1) for spread in spreads))
        for model, method, subset, spreads in rows
    )
    atomic.write_csv(setting.folder(NAME) / "table.csv", head, text)
    pictures = draw(radar, [*(METRICS[key].label for key in SCORES), f"Recall of {groups[urgent]}"], setting)
    return Section(
        NAME,
        TITLE,
        tables=(Table("Percent, mean ± population sd over seeds.", head, text),),
        figures=tuple(
            (name, f"{model}: the strongest methods on slides with {column} = {value}; outward is better.")
            for name, model in pictures.items()
        ),
        files=("table.csv",),
    )


def _spreads(entry: Entry, column: str, value: str, inside: bool, urgent: int) -> list[SeedSpread]:
    values: list[list[float]] = []
    for run in entry.runs.values():
        rows = np.asarray([(cell == value) == inside for cell in run.tags[column]])
        if not rows.any():
            raise ConfigError(f"No test slide has {column} {'=' if inside else 'other than'} {value!r}.")
        part = run.where(rows)
        scores = score(part, resamples=0)[-1].values
        values.append([*(scores[key] for key in SCORES), group_recall(part, urgent)])
    return [SeedSpread.of(of_runs) for of_runs in zip(*values, strict=True)]


def group_recall(predictions: Predictions, group: int) -> float:
    """Share of the slides of a coarse class that were predicted as any of its classes."""
    target, predicted, _ = predictions.at(0)
    return float(divide(np.sum((target == group) & (predicted == group)), np.sum(target == group)))


def draw(radar: dict[tuple[str, str], list[float]], axes: list[str], setting: Setting) -> dict[str, str]:
    """A radar per model with PAMS, CE and the two methods of the best AsCC beside them; models by the file's name."""
    models = list(dict.fromkeys(model for model, _ in radar))
    names = {"radar" if not number else f"radar_{number + 1}": model for number, model in enumerate(models)}
    for name, model in names.items():
        values = {method: found for (of, method), found in radar.items() if of == model}
        best = sorted(values, key=lambda method: (-values[method][SCORES.index("ascc")], method))
        shown = dict.fromkeys([*(method for method in ("PAMS", "CE") if method in values), *best[:2]])
        drawn = charts.radar(axes, [(method, values[method]) for method in shown], legend=True)
        atomic.write_text(setting.folder(NAME) / f"{name}.svg", svg.standalone(drawn))
    return names
