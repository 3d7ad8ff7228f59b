"""Slides with several findings: does the most urgent one win? The tagged subset against the rest.

Recall of the most urgent group counts a slide as found when any class of that group is predicted.
"""

from __future__ import annotations

import math

import numpy as np

from pams_mil import atomic
from pams_mil.errors import ConfigError
from pams_mil.evaluate.predictions import Predictions
from pams_mil.evaluate.scores import score
from pams_mil.experiments.arms import main_arms
from pams_mil.experiments.entries import read_entries
from pams_mil.experiments.study import Section, Setting, Table, run_arms
from pams_mil.experiments.study_figures import COLORS, drawing
from pams_mil.metrics.reduce import divide
from pams_mil.metrics.table import FACTS
from pams_mil.report.bench import Entry, SeedSpread

DISCOVER = "run"
TITLE = "Mixed cases: slides with several findings"
NAME = "mixed-cases"
METRICS = ("acc", "auc", "ascc", "asmc")


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
    head = ("model", "method", "slides", *(FACTS[key].label for key in METRICS), f"Recall of {groups[urgent]}")
    text = tuple((model, method, subset, *map(_text, spreads)) for model, method, subset, spreads in rows)
    atomic.write_csv(setting.folder(NAME) / "table.csv", head, text)
    draw(radar, [*(FACTS[key].label for key in METRICS), f"Recall of\n{groups[urgent]}"], setting)
    return Section(
        NAME,
        TITLE,
        tables=(Table("Percent, mean ± population sd over seeds.", head, text),),
        figures=(("radar", f"The strongest methods on slides with {column} = {value}; outward is better."),),
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
        values.append([*(scores[key] for key in METRICS), group_recall(part, urgent)])
    return [SeedSpread.of(column) for column in zip(*values, strict=True)]


def group_recall(predictions: Predictions, group: int) -> float:
    """Share of the slides of a coarse class that were predicted as any of its classes."""
    target, predicted, _ = predictions.at(0)
    return float(divide(np.sum((target == group) & (predicted == group)), np.sum(target == group)))


def draw(radar: dict[tuple[str, str], list[float]], axes_labels: list[str], setting: Setting) -> None:
    """A radar per model with PAMS, CE and the two methods of the best AsCC beside them."""
    models = list(dict.fromkeys(model for model, _ in radar))
    angles = [2 * math.pi * number / len(axes_labels) for number in range(len(axes_labels))]
    options = {"ncols": len(models), "squeeze": False, "subplot_kw": {"projection": "polar"}}
    with drawing(setting.folder(NAME), "radar", width=3.6 * len(models), height=3.6, **options) as (_, axes):
        for ax, model in zip(axes[0], models, strict=True):
            methods = [method for of, method in radar if of == model]
            best = sorted((-radar[model, method][METRICS.index("ascc")], method) for method in methods)
            shown = list(
                dict.fromkeys([*(m for m in ("PAMS", "CE") if m in methods), *(method for _, method in best[:2])])
            )
            for number, method in enumerate(shown):
                values = [0.0 if math.isnan(value) else min(1.0, value) for value in radar[model, method]]
                ax.plot([*angles, angles[0]], [*values, values[0]], color=COLORS[number], label=method, linewidth=1.4)
                ax.fill(angles, values, color=COLORS[number], alpha=0.08)
            ax.set_xticks(angles, axes_labels)
            ax.tick_params(axis="x", pad=10)
            ax.set_rlabel_position(36)  # between two axes
            ax.set(ylim=(0, 1), title=model)
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _text(spread: SeedSpread) -> str:
    if math.isnan(spread.mean):
        return "–"
    return f"{100 * spread.mean:.1f}" + ("" if math.isnan(spread.sd) else f" ± {100 * spread.sd:.1f}")
