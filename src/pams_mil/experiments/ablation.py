"""What each part of PAMS is worth: the full model against itself without MSCE, alignment, SFR, and without all."""

from __future__ import annotations

import math
from dataclasses import replace

from pams_mil.evaluate.compare import Difference
from pams_mil.experiments.arms import ablation_arms
from pams_mil.experiments.bench_section import bench_section
from pams_mil.experiments.study import Section, Setting, Table, compare_arms
from pams_mil.experiments.study_figures import COLORS, drawing
from pams_mil.metrics.metric import METRICS
from pams_mil.report.bench import TABLE, Bench

DISCOVER = "run"
TITLE = "Ablation: what each part contributes"
NAME = "ablation"
SHOWN = (*TABLE, "missed_rate")


def run(setting: Setting) -> Section:
    """Train the ablations and report differences from the full model of the same runs."""
    arms = ablation_arms()
    bench = compare_arms(setting, arms, reference="PAMS")
    draw(bench, setting)
    meaning = (
        "Change of each metric, in points, when a part is removed. The part helps where a bar is below 0, for missed "
        "urgency above 0."
    )
    section = bench_section(setting, NAME, TITLE, bench, arms, (("differences", meaning),))
    return replace(section, tables=(differences(bench), *section.tables))


def differences(bench: Bench) -> Table:
    """Ablated minus full at the finest level, in points, with 95 % intervals over patients."""
    finest = bench.hierarchy.level_names[-1]
    rows = []
    for row in bench.rows:
        if row.comparison is None:
            continue
        cells = []
        for key in SHOWN:
            d = row.comparison.levels[finest].get(key)
            cells.append("–" if d is None else _points(d))
        rows.append((row.model, row.method, *cells))
    head = ("model", "ablation", *(METRICS[key].label for key in SHOWN))
    return Table(f"{finest}: difference from PAMS in points, 95 % interval over patients.", head, tuple(rows))


def _points(difference: Difference) -> str:
    low, high = (100 * bound for bound in difference.interval)
    interval = "" if math.isnan(low) else f" [{low:.1f}, {high:.1f}]"
    return f"{100 * difference.difference:+.1f}{interval}"


def draw(bench: Bench, setting: Setting) -> None:
    """Grouped bars of the differences, one panel per model."""
    finest = bench.hierarchy.level_names[-1]
    folder, models = setting.folder(NAME), bench.models
    with drawing(folder, "differences", width=5.0 * len(models), ncols=len(models), squeeze=False) as (_, axes):
        for ax, model in zip(axes[0], models, strict=True):
            rows = [row for row in bench.of_model(model) if row.comparison is not None]
            for number, row in enumerate(rows):
                found = row.comparison.levels[finest] if row.comparison is not None else {}
                keys = [key for key in SHOWN if key in found]
                places = [index + (number - (len(rows) - 1) / 2) * 0.8 / len(rows) for index in range(len(keys))]
                heights = [100 * found[key].difference for key in keys]
                ax.bar(places, heights, width=0.8 / len(rows), color=COLORS[number], label=row.method)
                ax.set_xticks(range(len(keys)), [METRICS[key].label for key in keys])
            ax.axhline(0, color="black", linewidth=0.8)
            ax.set(title=model, ylabel="points against PAMS")
        axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
