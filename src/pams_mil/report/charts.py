"""Small charts as inline SVG that follow the page's light or dark colors through CSS classes.

Everything here is plain geometry on numbers and escaped text; no scripts, no network, no fonts to load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

Series = tuple[str, Sequence[float]]


def diverging_bars(under: Sequence[int], over: Sequence[int]) -> Markup:
    """Mistakes by distance: missed urgency to the left, false alarms to the right, one row per distance from 1."""
    row, label, half, top = 26, 46, 200, 28
    most = max([1, *under, *over])
    height = top + row * len(under) + 6
    center = half + label
    parts = [
        f'<svg viewBox="0 0 {2 * half + 2 * label} {height}" role="img" aria-label="mistakes by distance">',
        f'<text x="{center - 26}" y="16" class="end severe-text">missed urgency</text>',
        f'<text x="{center + 26}" y="16" class="over-text">false alarms</text>',
    ]
    for position, (low, high) in enumerate(zip(under, over, strict=True)):
        y = top + position * row
        width_low, width_high = low / most * (half - 26), high / most * (half - 26)
        parts.append(f'<text x="{center}" y="{y + 15}" class="mid dim">{position + 1}</text>')
        parts.append(_bar(center - 16 - width_low, y + 3, width_low, "severe"))
        parts.append(_bar(center + 16, y + 3, width_high, "over"))
        parts.append(f'<text x="{center - 22 - width_low:.1f}" y="{y + 15}" class="end">{low or ""}</text>')
        parts.append(f'<text x="{center + 22 + width_high:.1f}" y="{y + 15}">{high or ""}</text>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  numbers and constants only


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
    parts = [f'<svg viewBox="0 0 {left + width + 40} {height}" role="img" aria-label="expected class of errors">']
    for number in range(count):
        tick = x(number + 1)
        parts.append(f'<line x1="{tick:.1f}" x2="{tick:.1f}" y1="{top - 8}" y2="{height - 8}" class="grid"/>')
        parts.append(f'<text x="{tick:.1f}" y="{top - 14}" class="mid dim">{escape(short(classes[number], 7))}</text>')
    for position, (label, value) in enumerate(zip(names or classes, expected, strict=True)):
        y = top + position * row + 12
        true = x(position + 1)
        parts.append(f'<text x="{left - 14}" y="{y + 4}" class="end">{escape(short(label, 27))}</text>')
        parts.append(f'<rect x="{true - 1.5:.1f}" y="{y - 9}" width="3" height="18" class="truth"/>')
        if math.isfinite(value):
            nearest = ranks[min(count - 1, max(0, round(value) - 1))]
            tied = nearest == ranks[position]
            side = "tied" if tied else "severe" if value < position + 1 else "over"
            parts.append(f'<line x1="{true:.1f}" x2="{x(value):.1f}" y1="{y}" y2="{y}" class="{side}-line"/>')
            parts.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="6" class="{side}"/>')
        else:
            why = "no errors" if slides[position] else "no slides"
            parts.append(f'<text x="{true + 8:.1f}" y="{y + 4}" class="dim">{why}</text>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  text is escaped above


def radar(axes: Sequence[str], series: Sequence[Series]) -> Markup:
    """Metrics from 0 (center) to 1 (rim), one polygon per model; an undefined value is drawn at the center."""
    radius, cx, cy = 120, 260, 150
    parts = [f'<svg viewBox="0 0 {2 * cx} {2 * cy + 6}" role="img" aria-label="radar of the metrics">']

    def point(axis: int, value: float) -> tuple[float, float]:
        angle = 2 * math.pi * axis / len(axes) - math.pi / 2
        return cx + radius * value * math.cos(angle), cy + radius * value * math.sin(angle)

    def polygon(values: Sequence[float]) -> str:
        return " ".join("{:.1f},{:.1f}".format(*point(axis, value)) for axis, value in enumerate(values))

    for ring in (0.25, 0.5, 0.75, 1.0):
        parts.append(f'<polygon points="{polygon([ring] * len(axes))}" class="grid-shape"/>')
    for axis, label in enumerate(axes):
        x, y = point(axis, 1.14)
        anchor = "mid" if abs(x - cx) < 8 else ("end" if x < cx else "")
        parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" class="{anchor}">{escape(label)}</text>')
    for number, (name, values) in enumerate(series):
        clipped = [min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0 for value in values]
        title = f"<title>{escape(name)}</title>"
        parts.append(f'<polygon points="{polygon(clipped)}" class="series s{number % 6}">{title}</polygon>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  text is escaped above


def short(text: str, most: int) -> str:
    """Text cut to `most` characters.

    >>> short("Adenocarcinoma", 8)
    'Adenoca…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def _bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{max(0.0, width):.1f}" height="18" rx="2" class="{kind}"/>'
