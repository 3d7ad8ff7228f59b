"""Charts of an audit: how far mistakes lie, where they point, and the metrics of all models at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from pams_mil.report import svg

Series = tuple[str, Sequence[float]]


def diverging_bars(under: Sequence[int], over: Sequence[int]) -> Markup:
    """Mistakes by distance: missed urgency to the left, false alarms to the right, one row per distance from 1."""
    row, label, half, top = 26, 46, 200, 28
    most = max([1, *under, *over])
    center = half + label
    parts = [
        svg.text(center - 26, 16, "missed urgency", "end severe-text"),
        svg.text(center + 26, 16, "false alarms", "over-text"),
    ]
    for position, (low, high) in enumerate(zip(under, over, strict=True)):
        y = top + position * row
        width_low, width_high = low / most * (half - 26), high / most * (half - 26)
        parts.append(svg.text(center, y + 15, str(position + 1), "mid dim"))
        parts.append(svg.bar(center - 16 - width_low, y + 3, width_low, 18, "severe"))
        parts.append(svg.bar(center + 16, y + 3, width_high, 18, "over"))
        parts.append(svg.text(center - 22 - width_low, y + 15, str(low or ""), "end"))
        parts.append(svg.text(center + 22 + width_high, y + 15, str(high or "")))
    return svg.picture(2 * center, top + row * len(under) + 6, "mistakes by distance", parts)


def expected_class(
    classes: Sequence[str], expected: Sequence[float], ranks: Sequence[int], slides: Sequence[int],
    names: Sequence[str] = (),
) -> Markup:  # fmt: skip
    """Where the probability of misclassified slides points, per true class; left of the mark urgency is missed.

    Args:
        classes: Least urgent first.
        expected: Mean class number, from 1, of each true class's wrong slides; not finite where none is wrong.
        ranks: Urgency of the classes; a mean nearest to an equally urgent class is neither missed nor over-called.
        slides: How many slides of each class there are.
        names: The classes' names at full length, beside the rows; the classes themselves when there are none.
    """
    row, left, width, top = 28, 200, 290, 34
    count = len(classes)

    def x(number: float) -> float:
        return left + (number - 1) / max(1, count - 1) * width

    height = top + row * count + 8
    parts = []
    for number, name in enumerate(classes, 1):
        parts.append(svg.line((x(number), top - 8), (x(number), height - 8)))
        parts.append(svg.text(x(number), top - 14, svg.short(name, 7), "mid dim"))
    for position, (label, value) in enumerate(zip(names or classes, expected, strict=True)):
        y = top + position * row + 12
        true = x(position + 1)
        parts.append(svg.text(left - 14, y + 4, svg.short(label, 27), "end"))
        parts.append(svg.bar(true - 1.5, y - 9, 3, 18, "truth"))
        if math.isfinite(value):
            # Class numbers count from 1, and a mean between tied classes is neither side.
            nearest = ranks[min(count - 1, max(0, round(value) - 1))]
            tied = nearest == ranks[position]
            side = "tied" if tied else "severe" if value < position + 1 else "over"
            parts.append(svg.line((true, y), (x(value), y), f"{side}-line"))
            parts.append(svg.dot((x(value), y), 6, side))
        else:
            why = "no errors" if slides[position] else "no slides"
            parts.append(svg.text(true + 8, y + 4, why, "dim"))
    return svg.picture(left + width + 40, height, "expected class of errors", parts)


def radar(axes: Sequence[str], series: Sequence[Series], *, legend: bool = False) -> Markup:
    """Metrics from 0 (center) to 1 (rim), one polygon per model; an undefined value is drawn at the center.

    A page has a legend of its own; with `legend` the names stand below the picture.
    """
    radius, cx, cy, row = 120, 260, 150, 20
    height = 2 * cy + 6

    def point(axis: int, value: float) -> svg.Place:
        # The first axis points up; y grows downward, so the others follow clockwise.
        angle = 2 * math.pi * axis / len(axes) - math.pi / 2
        return cx + radius * value * math.cos(angle), cy + radius * value * math.sin(angle)

    def corners(values: Sequence[float]) -> list[svg.Place]:
        return [point(axis, value) for axis, value in enumerate(values)]

    parts = [svg.polygon(corners([ring] * len(axes)), "grid-shape") for ring in (0.25, 0.5, 0.75, 1.0)]
    for axis, label in enumerate(axes):
        x, y = point(axis, 1.14)
        anchor = "mid" if abs(x - cx) < 8 else ("end" if x < cx else "")
        parts.append(svg.text(x, y + 4, label, anchor))
    for number, (name, values) in enumerate(series):
        clipped = [min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0 for value in values]
        parts.append(svg.polygon(corners(clipped), f"series {svg.series(number)}", name))
        if legend:
            parts.append(svg.dot((cx - 60, height + row / 2), 5, svg.series(number)))
            parts.append(svg.text(cx - 48, height + row / 2 + 4, name))
            height += row
    return svg.picture(2 * cx, height, "radar of the metrics", parts)
