"""How a method moves while it trains: severity AUC, missed urgency and false alarms on validation, epoch by epoch.

A loss that weighs missed urgency moves the operating point, and the whole curve may move too. The first is seen in
misses and false alarms of the most probable class, which go opposite ways; only the second is seen in the severity AUC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

SHOWN = {
    "severity_auc": ("severity_auc", "severity AUC"),
    "missed": ("under_call_rate", "missed urgency"),
    "false_alarms": ("over_call_rate", "false alarms"),
}
"""By the name in JSON: the metric in a run's `metrics.csv`, there with `val_` before it, and its name on the page."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 230, 40, 10, 26, 34
STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25)


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
    step = next(size for size in (*STEPS, 1.0) if max(values) - min(values) <= 5 * size)
    low, high = math.floor(min(values) / step), math.ceil(max(values) / step + 1e-9)
    high = max(high, low + 1)
    last = max([2, *(len(line) for _, _, line in lines)])
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def x(epoch: int) -> float:
        return LEFT + (epoch - 1) / (last - 1) * (right - LEFT)

    def y(value: float) -> float:
        return bottom - (value / step - low) / (high - low) * (bottom - TOP)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title} by epoch">']
    parts.append(f'<text x="{LEFT}" y="14">{title}, %</text>')
    for tick in range(low, high + 1):
        at = y(tick * step)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" class="end dim">{100 * tick * step:.0f}</text>')
    for epoch in sorted({1, (1 + last) // 2, last}):
        parts.append(f'<text x="{x(epoch):.1f}" y="{bottom + 16}" class="mid dim">{epoch}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 4}" class="mid dim">epoch</text>')
    for number, method, line in reversed(lines):  # of equal lines the first is seen
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in enumerate(line, 1) if math.isfinite(value))
        name = f"<title>{escape(method)}</title>"
        parts.append(f'<polyline points="{points}" class="curve s{number % 6}">{name}</polyline>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  text is escaped above


def _mean(cells: Sequence[str]) -> float:
    finite = [value for value in (float(cell or "nan") for cell in cells) if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
