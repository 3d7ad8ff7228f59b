"""Missed urgency against false alarms as an inline SVG: one line per model, with bands and marked decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from pams_mil.arrays import Array
from pams_mil.evaluate.operating_points import OperatingPoints
from pams_mil.metrics.operating import constant_hull
from pams_mil.report import svg

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

    plane = svg.Plane(560, 400, (0.0, across), (0.0, up))

    def place(lost: float, raised: float) -> svg.Place:
        return plane.at(raised, lost)

    def path(lost: Array, raised: Array) -> list[svg.Place]:
        return [place(u, o) for u, o in zip(lost.tolist(), raised.tolist(), strict=True)]

    names, css = ("false alarms, % of slides", "missed urgency, % of slides"), ("over-text", "severe-text")
    parts = [*plane.axes(_steps(across), _steps(up), names, css=css), svg.polyline(path(missed, alarms), "chance")]
    for number, one in enumerate(series):
        if one.points is not None and one.points.band is not None:
            band = one.points.band
            there = path(band.low, band.false_alarms)
            # The band goes there along its lower bound and back along the upper one, cut where the plane ends.
            back = path(np.minimum(band.high, up)[::-1], band.false_alarms[::-1])
            parts.append(svg.polygon([*there, *back], f"band {svg.series(number)}"))
    for number, one in reversed(list(enumerate(series))):  # of equal curves the first is seen
        if one.points is not None:
            curve = one.points.curve
            # At most so many corners: a curve may have one per slide, and every one makes the page longer.
            kept = np.unique(np.linspace(0, len(curve.kappa) - 1, MOST_DRAWN).round().astype(np.int64))
            line = path(curve.missed[kept], curve.false_alarms[kept])
            parts.append(svg.polyline(line, f"curve {svg.series(number)}", one.name))
    for number, one in enumerate(series):
        style = svg.series(number)
        if one.points is not None:
            for kappa in MARKED_KAPPAS:
                parts.append(svg.dot(place(*one.points.curve.at(kappa)), 2.5, style, f"{one.name}, κ = {kappa:g}"))
            title = f"{one.name}, most probable class (κ = 1)"
            parts.append(svg.dot(place(*one.points.argmax), 5.5, f"open {style}", title))
        title = f"{one.name}, as decided in the file: {_percent(*one.decided)}"
        parts.append(svg.square(place(*one.decided), 8, style, title))
    return svg.picture(plane.width, plane.height, "missed urgency against false alarms", parts)


def _steps(most: float) -> list[float]:
    """Round shares from 0, about ten of them."""
    step = next((step for step in (0.01, 0.02, 0.05, 0.1) if most / step <= 10), 0.1)
    return [float(share) for share in np.arange(0.0, most + 1e-9, step)]


def _percent(missed: float, alarms: float) -> str:
    return f"{100 * missed:.1f} % missed, {100 * alarms:.1f} % false alarms"
