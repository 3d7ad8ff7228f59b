"""How a method moves while it trains: urgency AUC, missed urgency and false alarms on validation, epoch by epoch.

A loss that weighs missed urgency moves the operating point, and the whole curve may move too. The first is seen in
misses and false alarms of the most probable class, which go opposite ways; only the second is seen in the urgency AUC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pams_mil.report import svg

SHOWN = {
    "urgency_auc": ("urgency_auc", "urgency AUC"),
    "missed": ("missed_rate", "missed urgency"),
    "false_alarms": ("false_alarm_rate", "false alarms"),
}
"""By the name in JSON: the metric in a run's `metrics.csv`, there with `val_` before it, and its name on the page."""
WIDTH, HEIGHT = 360, 250


@dataclass(frozen=True)
class Epochs:
    """Scores by name of SHOWN, one value per epoch from the first: the mean over the runs that trained so long."""

    scores: dict[str, list[float]]


def mean_epochs(runs: Sequence[Mapping[str, Sequence[str]]]) -> Epochs | None:
    """The mean over runs of their logs, columns of `metrics.csv`; None where a log lacks a column.

    >>> log = {f"val_{metric}": ["0.5", "0.7"] for metric, _ in SHOWN.values()}
    >>> short = {name: ["0.1"] for name in log}
    >>> mean_epochs([log, short]).scores["missed"]
    [0.3, 0.7]
    """
    columns = [f"val_{metric}" for metric, _ in SHOWN.values()]
    if not runs or any(column not in run for run in runs for column in columns):
        return None
    longest = max(len(run[columns[0]]) for run in runs)
    return Epochs(
        {
            name: [_mean([run[column][epoch] for run in runs if epoch < len(run[column])]) for epoch in range(longest)]
            for name, column in zip(SHOWN, columns, strict=True)
        }
    )


def epoch_charts(series: Sequence[tuple[int, str, Epochs]]) -> Markup:
    """A chart per score; one line per method, drawn in the color of its number in the page's legend."""
    charts = [
        _chart(title, [(number, method, epochs.scores[name]) for number, method, epochs in series])
        for name, (_, title) in SHOWN.items()
    ]
    return Markup("").join(charts)


def _chart(title: str, lines: Sequence[tuple[int, str, Sequence[float]]]) -> Markup:
    values = [value for _, _, line in lines for value in line if math.isfinite(value)] or [0.0, 1.0]
    last = max([2, *(len(line) for _, _, line in lines)])
    epochs = sorted({1, (1 + last) // 2, last})
    plane = svg.Plane(WIDTH, HEIGHT, epochs, svg.ticks(min(values), max(values), 5))
    parts = plane.axes(("epoch", f"{title}, %"), x_scale=1)
    for number, method, line in reversed(lines):  # of equal lines the first is seen
        places = [plane.at(epoch, value) for epoch, value in enumerate(line, 1) if math.isfinite(value)]
        parts.append(svg.polyline(places, f"curve {svg.series(number)}", method))
    return svg.picture(WIDTH, HEIGHT, f"{title} by epoch", parts)


def _mean(cells: Sequence[str]) -> float:
    finite = [value for value in (float(cell or "nan") for cell in cells) if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
