"""Chart of a benchmark: accuracy against mildness of mistakes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pams_mil.report import svg


@dataclass(frozen=True)
class Point:
    """A method in the plane."""

    label: str
    x: float
    y: float


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
    xs, ys = ([point.x for point in shown] or [0.0, 1.0], [point.y for point in shown] or [0.0, 1.0])
    plane = svg.Plane(520, 340, svg.ticks(min(xs), max(xs), 5), svg.ticks(min(ys), max(ys), 5))
    parts = plane.axes((f"{x_name}, %", f"{y_name}, %"))
    parts.append(svg.polyline([plane.at(shown[number].x, shown[number].y) for number in front(shown)], "chance"))
    for number, point in enumerate(shown):
        x, y = plane.at(point.x, point.y)
        side, shift = ("end", -10) if x > 0.55 * plane.width else ("", 10)
        parts.append(svg.dot((x, y), 6, svg.series(number)))
        # A label above the uppermost point would leave the picture.
        parts.append(svg.text(x + shift, y + 18 if y < plane.top + 12 else y - 8, svg.short(point.label, 28), side))
    return svg.picture(plane.width, plane.height, f"{y_name} against {x_name}", parts)
