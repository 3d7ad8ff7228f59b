"""Remix strategies under plain cross-entropy: none, ReMix, PseudoMix, RandomMix and SFR."""

from __future__ import annotations

from math import isnan
from typing import Any

from pams_mil.experiments.arms import remix_arms
from pams_mil.experiments.bench_section import bench_section
from pams_mil.experiments.study import Section, Setting, compare_arms
from pams_mil.experiments.study_figures import COLORS, drawing
from pams_mil.metrics.metric import METRICS
from pams_mil.report.bench import Bench

DISCOVER = "run"
TITLE = "Remix: what mixing bags does under cross-entropy"
NAME = "remix-table"


def run(setting: Setting) -> Section:
    """Train cross-entropy with every remix."""
    arms = remix_arms()
    bench = compare_arms(setting, arms, reference="SFR")
    draw(bench, setting)
    figure = ("remix", "Accuracy, mildness of mistakes and missed urgency by remix; bars are sd over runs.")
    return bench_section(setting, NAME, TITLE, bench, arms, (figure,))


def draw(bench: Bench, setting: Setting) -> None:
    """Bars per strategy for accuracy, AsMC and missed urgency, one row of panels per model."""
    keys, finest, models = ("acc", "asmc", "missed_rate"), bench.hierarchy.num_levels - 1, bench.models
    layout: dict[str, Any] = {"nrows": len(models), "ncols": len(keys), "squeeze": False}
    with drawing(setting.folder(NAME), "remix", width=7, height=2.4 * len(models), **layout) as (_, axes):
        for line, model in zip(axes, models, strict=True):
            rows = bench.of_model(model)
            for ax, key in zip(line, keys, strict=True):
                spreads = [row.spreads[finest, key] for row in rows]
                means, bars = [100 * s.mean for s in spreads], [100 * (0 if isnan(s.sd) else s.sd) for s in spreads]
                colors = [COLORS[1] if row.method == "SFR" else COLORS[0] for row in rows]
                ax.barh(range(len(rows)), means, xerr=bars, color=colors, error_kw={"linewidth": 0.8})
                ax.set_yticks(range(len(rows)), [row.method for row in rows])
                ax.invert_yaxis()
                ax.set(xlabel=f"{METRICS[key].label} (%)", title=model if key == keys[0] else "")
