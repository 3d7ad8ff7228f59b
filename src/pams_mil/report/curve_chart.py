"""Missed urgency against false alarms as an inline SVG: one line per model, with bands and marked decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from pams_mil.evaluate.operating_points import OperatingPoints
from pams_mil.metrics.operating import constant_hull

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 400, 56, 14, 14, 46
MOST_DRAWN = 300
MARKED_KAPPAS = (2.0, 5.0, 10.0)


@dataclass(frozen=True)
class CurveSeries:
    """One model: its points, or for a file without probabilities only (missed, false alarms) as decided."""

    name: str
    decided: tuple[float, float]
    points: OperatingPoints | None


def curve_chart(series: Sequence[CurveSeries], shares: Sequence[float]) -> Markup:
    """The chart; `shares` are those of the ranks, least urgent first, for the constant calls."""
    missed, alarms = constant_hull(np.asarray(shares, dtype=np.float64))
    across = max(1e-9, float(alarms.max()), *(one.decided[1] for one in series))
    up = max(1e-9, float(missed.max()), *(one.decided[0] for one in series))

    def place(lost: float, raised: float) -> tuple[float, float]:
        x = LEFT + raised / across * (WIDTH - LEFT - RIGHT)
        return x, HEIGHT - BOTTOM - lost / up * (HEIGHT - TOP - BOTTOM)

    def path(lost: Sequence[float], raised: Sequence[float]) -> str:
        places = (place(u, o) for u, o in zip(lost, raised, strict=True))
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="missed urgency against false alarms">']
    parts += _axes(across, up)
    parts.append(f'<polyline points="{path(missed.tolist(), alarms.tolist())}" class="chance"/>')
    for number, one in enumerate(series):
        if one.points is not None and one.points.band is not None:
            band = one.points.band
            there = path(band.low.tolist(), band.false_alarms.tolist())
            back = path(np.minimum(band.high, up)[::-1].tolist(), band.false_alarms[::-1].tolist())
            parts.append(f'<polygon points="{there} {back}" class="band s{number % 6}"/>')
    for number, one in reversed(list(enumerate(series))):  # of equal curves the first is seen
        if one.points is not None:
            curve = one.points.curve
            kept = np.unique(np.linspace(0, len(curve.kappa) - 1, MOST_DRAWN).round().astype(np.int64))
            line, name = path(curve.missed[kept].tolist(), curve.false_alarms[kept].tolist()), escape(one.name)
            parts.append(f'<polyline points="{line}" class="curve s{number % 6}"><title>{name}</title></polyline>')
    for number, one in enumerate(series):
        style, name = f"s{number % 6}", escape(one.name)
        if one.points is not None:
            for kappa in MARKED_KAPPAS:
                x, y = place(*one.points.curve.at(kappa))
                title = f"<title>{name}, κ = {kappa:g}</title>"
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" class="{style}">{title}</circle>')
            x, y = place(*one.points.argmax)
            title = f"<title>{name}, most probable class (κ = 1)</title>"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" class="open {style}">{title}</circle>')
        x, y = place(*one.decided)
        title = f"<title>{name}, as decided in the file: {_percent(*one.decided)}</title>"
        parts.append(f'<path d="M{x - 4:.1f} {y - 4:.1f} h8 v8 h-8 z" class="{style}">{title}</path>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  text is escaped above


def _axes(across: float, up: float) -> list[str]:
    parts = []
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for share in np.arange(0.0, across + 1e-9, _step(across)):
        x = LEFT + share / across * (right - LEFT)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" class="mid dim">{100 * share:.0f}</text>')
    for share in np.arange(0.0, up + 1e-9, _step(up)):
        y = bottom - share / up * (bottom - TOP)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="end dim">{100 * share:.0f}</text>')
    middle = (TOP + bottom) / 2
    center = f'x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 8}"'
    parts.append(f'<text {center} class="mid over-text">false alarms, % of slides</text>')
    turned = f'transform="rotate(-90 14 {middle:.0f})"'
    parts.append(f'<text x="14" y="{middle:.0f}" class="mid severe-text" {turned}>missed urgency, % of slides</text>')
    return parts


def _step(most: float) -> float:
    return next((step for step in (0.01, 0.02, 0.05, 0.1) if most / step <= 10), 0.1)


def _percent(missed: float, alarms: float) -> str:
    return f"{100 * missed:.1f} % missed, {100 * alarms:.1f} % false alarms"
