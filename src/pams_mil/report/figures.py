"""Pictures of a benchmark as inline SVG: who misses how much urgency, and accuracy against mildness of mistakes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from pams_mil.report.charts import short


@dataclass(frozen=True)
class Bar:
    """A value from 0 to 1 with its interval."""

    label: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """A method in the plane."""

    label: str
    x: float
    y: float


def missed_urgency(bars: Sequence[Bar]) -> Markup:
    """Share of slides called less urgent than they are, one bar per method, with 95 % whiskers."""
    row, left, width, top = 34, 170, 300, 8
    most = max([1e-9, *(bar.high if math.isfinite(bar.high) else bar.value for bar in bars)])
    height = top + row * len(bars) + 4
    parts = [f'<svg viewBox="0 0 {left + width + 80} {height}" role="img" aria-label="missed urgency by method">']
    for position, bar in enumerate(bars):
        y = top + position * row
        end = left + bar.value / most * width
        parts.append(f'<text x="{left - 12}" y="{y + 19}" class="end">{escape(short(bar.label, 24))}</text>')
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{end - left:.1f}" height="22" rx="2" class="severe"/>')
        after = end
        if math.isfinite(bar.low) and math.isfinite(bar.high):
            low, after = left + bar.low / most * width, left + bar.high / most * width
            parts.append(f'<path d="M{low:.1f} {y + 15}H{after:.1f}M{low:.1f} {y + 10}v10M{after:.1f} {y + 10}v10" '
                         'fill="none" stroke="var(--ink)" stroke-width="1.5"/>')  # fmt: skip
        parts.append(f'<text x="{after + 8:.1f}" y="{y + 19}">{100 * bar.value:.1f} %</text>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  text is escaped above


def front(points: Sequence[Point]) -> list[int]:
    """Which points no other point beats in both directions, from left to right; larger is better in both.

    >>> front([Point("a", 1, 3), Point("b", 2, 2), Point("c", 1.5, 1)])
    [0, 1]
    """
    best = [
        number
        for number, one in enumerate(points)
        if not any(two.x >= one.x and two.y >= one.y and (two.x > one.x or two.y > one.y) for two in points)
    ]
    return sorted(best, key=lambda number: points[number].x)


def pareto(points: Sequence[Point], x_name: str, y_name: str) -> Markup:
    """Accuracy to the right, milder mistakes upward; the line joins methods that nobody beats in both."""
    shown = [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]
    left, right, top, bottom, width, height = 64, 30, 16, 46, 520, 340
    x_low, x_high = _range([point.x for point in shown])
    y_low, y_high = _range([point.y for point in shown])

    def at(point: Point) -> tuple[float, float]:
        return (
            left + (point.x - x_low) / (x_high - x_low) * (width - left - right),
            height - bottom - (point.y - y_low) / (y_high - y_low) * (height - top - bottom),
        )

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(y_name)} against {escape(x_name)}">']
    for step in range(5):
        x, y = left + step / 4 * (width - left - right), height - bottom - step / 4 * (height - top - bottom)
        parts.append(f'<path d="M{x:.1f} {top}V{height - bottom}M{left} {y:.1f}H{width - right}" class="grid"/>')
        x_text, y_text = x_low + step / 4 * (x_high - x_low), y_low + step / 4 * (y_high - y_low)
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" class="mid dim">{100 * x_text:.1f}</text>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" class="end dim">{100 * y_text:.1f}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 8}" class="mid">{escape(x_name)}, %</text>')
    parts.append(f'<text transform="translate(16 {height / 2}) rotate(-90)" class="mid">{escape(y_name)}, %</text>')
    line = " ".join("{:.1f},{:.1f}".format(*at(shown[number])) for number in front(shown))
    parts.append(f'<polyline points="{line}" fill="none" stroke="var(--dim)" stroke-dasharray="4 4"/>')
    for number, point in enumerate(shown):
        x, y = at(point)
        side = "end" if x > 0.7 * width else ""
        shift = -10 if side else 10
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" class="s{number % 6}"/>')
        parts.append(
            f'<text x="{x + shift:.1f}" y="{y - 8:.1f}" class="{side}">{escape(short(point.label, 28))}</text>'
        )
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  text is escaped above


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.12 * (high - low) or 0.05
    return low - room, high + room
