"""Missed urgency against false alarms as an inline SVG: one line per model, with bands and marked decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from pams_mil.arrays import Array
from pams_mil.metrics.operating import OperatingCurve, constant_hull
from pams_mil.report import svg

MARKED_KAPPAS = (2.0, 5.0, 10.0)


class CurveBand(Protocol):
    """Misses from `low` to `high` at given false alarms."""

    @property
    def false_alarms(self) -> Array:
        """Where the band is known."""

    @property
    def low(self) -> Array:
        """Misses at its lower edge."""

    @property
    def high(self) -> Array:
        """Misses at its upper edge."""


@dataclass(frozen=True)
class CurveSeries:
    """One model: (missed, false alarms) as decided, and its curve where there are probabilities."""

    name: str
    decided: tuple[float, float]
    curve: OperatingCurve | None = None
    band: CurveBand | None = None


def curve_plane(series: Sequence[CurveSeries], shares: npt.ArrayLike) -> svg.Plane:
    """The axes that hold all curves; `shares` are those of the ranks, least urgent first, for the constant calls."""
    missed, alarms = constant_hull(np.asarray(shares, dtype=np.float64))
    across = max(1e-3, float(alarms.max()), *(one.decided[1] for one in series))
    up = max(1e-3, float(missed.max()), *(one.decided[0] for one in series))
    return svg.Plane(560, 400, svg.ticks(0.0, across, 10), svg.ticks(0.0, up, 10))


def curve_chart(
    series: Sequence[CurveSeries], shares: npt.ArrayLike, *, bound: float | None = None, of: str = "slides"
) -> Markup:
    """The chart; `shares` as in `curve_plane`, `bound` a certified share of missed urgency, drawn across."""
    plane = curve_plane(series, shares)
    missed, alarms = constant_hull(np.asarray(shares, dtype=np.float64))

    def place(lost: float, raised: float) -> svg.Place:
        return plane.at(raised, lost)

    def path(lost: Array, raised: Array) -> list[svg.Place]:
        places = [place(u, o) for u, o in zip(lost.tolist(), raised.tolist(), strict=True)]
        # Points of one half pixel are one: a curve may have a corner for every slide.
        return list({(round(2 * x), round(2 * y)): (x, y) for x, y in places}.values())

    names, css = (f"false alarms, % of {of}", f"missed urgency, % of {of}"), ("over-text", "severe-text")
    parts = [*plane.axes(names, css=css), svg.polyline(path(missed, alarms), "chance")]
    if bound is not None and bound <= plane.ys[-1]:
        (left, y), (right, _) = plane.at(plane.xs[0], bound), plane.at(plane.xs[-1], bound)
        parts.append(svg.line((left, y), (right, y), "severe-line", ' stroke-dasharray="5 4"'))
        parts.append(svg.text(right - 2, y - 5, f"α = {100 * bound:g} %", "end severe-text"))
    for number, one in enumerate(series):
        if one.band is not None:
            there = path(one.band.low, one.band.false_alarms)
            # The band goes there along its lower bound and back along the upper one, cut where the plane ends.
            back = path(np.minimum(one.band.high, plane.ys[-1])[::-1], one.band.false_alarms[::-1])
            parts.append(svg.polygon([*there, *back], f"band {svg.series(number)}"))
    for number, one in reversed(list(enumerate(series))):  # of equal curves the first is seen
        if one.curve is not None:
            parts.append(
                svg.polyline(path(one.curve.missed, one.curve.false_alarms), f"curve {svg.series(number)}", one.name)
            )
    for number, one in enumerate(series):
        style = svg.series(number)
        if one.curve is not None and not np.isnan(one.curve.kappa).all():  # the mean of several curves has no κ
            for kappa in MARKED_KAPPAS:
                parts.append(svg.dot(place(*one.curve.at(kappa)), 2.5, style, f"{one.name}, κ = {kappa:g}"))
            title = f"{one.name}, most probable class (κ = 1)"
            parts.append(svg.dot(place(*one.curve.at(1.0)), 5.5, f"open {style}", title))
        title = f"{one.name}, as decided: {_percent(*one.decided)}"
        parts.append(svg.square(place(*one.decided), 8, style, title))
    return svg.picture(plane.width, plane.height, "missed urgency against false alarms", parts)


def _percent(missed: float, alarms: float) -> str:
    return f"{100 * missed:.1f} % missed, {100 * alarms:.1f} % false alarms"
