"""Charts of pages, as inline SVG: curves, mistakes and metrics of an audit, bars and epochs of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from markupsafe import Markup

from pams_mil.arrays import Array, Ints
from pams_mil.errors import counted
from pams_mil.evaluate.operating_points import Band
from pams_mil.evaluate.orders import OrderedComparison
from pams_mil.evaluate.scores import LevelScores
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import DecisionPath
from pams_mil.metrics.operating import OperatingCurve, class_shares, constant_hull, exact_curve
from pams_mil.report import svg
from pams_mil.report.page import READABLE

Series = tuple[str, Sequence[float]]


@dataclass(frozen=True)
class ModelChart:
    """A chart of one model on the audit's page, with its title and what is to be said of it."""

    title: str
    picture: Markup
    note: str = ""


def model_charts(scores: LevelScores, hierarchy: ClassHierarchy) -> list[ModelChart]:
    """All charts of a model that can be drawn of its scores at a level."""
    drawn = (draw(scores, hierarchy) for draw in MODEL_CHARTS)
    return [chart for chart in drawn if chart is not None]


def mistakes_by_distance(scores: LevelScores, hierarchy: ClassHierarchy) -> ModelChart | None:
    """Misses (left) and false alarms by how far the call is from the truth; None of too many classes."""
    if len(scores.classes) > READABLE:
        return None
    S, severe, distance = scores.confusion, hierarchy.outranks(scores.level), hierarchy.distance(scores.level)
    steps = range(1, len(S))
    under, over = ([int(S[side & (distance == step)].sum()) for step in steps] for side in (severe, severe.T))
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
    picture = svg.picture(2 * center, top + row * len(under) + 6, "mistakes by distance", parts)
    tied = int(S[~severe & ~severe.T & (distance > 0)].sum())
    words = f"{counted(tied, 'mistake')} between equally urgent classes, in neither direction"
    note = Markup('<span class="key"><i class="tied"></i>{}</span>').format(words) if tied else ""
    return ModelChart("Mistakes by distance between the classes", picture, note)


def direction_of_errors(scores: LevelScores, hierarchy: ClassHierarchy) -> ModelChart | None:
    """The expected class of misclassified slides; None without probabilities or of too many classes."""
    if scores.expected_class is None or len(scores.classes) > READABLE:
        return None
    names, slides = [hierarchy.display(label) for label in scores.classes], scores.confusion.sum(1).tolist()
    picture = expected_class(
        scores.classes, scores.expected_class.tolist(), hierarchy.ranks(scores.level).tolist(), slides, names
    )
    absent = ", ".join(name for name, count in zip(names, slides, strict=True) if not count)
    note = Markup('<span class="dim">Expected class of misclassified slides, by true class (black mark).{}</span>')
    unknown = f" There are no slides of {absent}, so nothing is known of mistakes there." if absent else ""
    return ModelChart("Where errors put their probability", picture, note.format(unknown))


MODEL_CHARTS: list[Callable[[LevelScores, ClassHierarchy], ModelChart | None]] = [
    mistakes_by_distance,
    direction_of_errors,
]
"""What the audit's page draws of every model; a chart of your own is one more function here."""


def expected_class(
    classes: Sequence[str], expected: Sequence[float], ranks: Sequence[int], slides: Sequence[int],
    names: Sequence[str] = (),
) -> Markup:  # fmt: skip
    """Where the probability of misclassified slides points, per true class; left of the mark urgency is missed.

    `expected` is the mean class number, from 1, of each true class's wrong slides; not finite where none is wrong. A
    mean nearest to an equally urgent class is neither missed nor over-called. `slides` counts those of each class,
    `names` are the classes at full length.
    """
    count = len(classes)
    rows = svg.Rows(range(1, count + 1), names or classes, left=200, width=290, row=28)
    parts = rows.axes(svg.short(name, 7) for name in classes)
    for place, value in enumerate(expected):
        x, y = rows.at(place + 1, place)
        parts.append(svg.bar(x - 1.5, y - 9, 3, 18, "truth"))
        if not math.isfinite(value):
            parts.append(svg.text(x + 8, y + 4, "no errors" if slides[place] else "no slides", "dim"))
            continue
        # Class numbers count from 1, and a mean between tied classes is neither side.
        tied = ranks[min(count - 1, max(0, round(value) - 1))] == ranks[place]
        side = "tied" if tied else "severe" if value < place + 1 else "over"
        parts += [svg.line((x, y), rows.at(value, place), f"{side}-line"), svg.dot(rows.at(value, place), 6, side)]
    return svg.picture(530, rows.bottom + 8, "expected class of errors", parts)


def score_chart(scores: Sequence[Mapping[str, Any]], chosen: str, reference: str) -> Markup:
    """Urgency AUC of a rung's recipes with one standard error to each side, the best first."""
    ends = [score["urgency_auc"] + sign * score["standard_error"] for score in scores for sign in (-1, 1)]
    names = [f"{one['recipe']}{' (reference)' if one['recipe'] == reference else ''}" for one in scores]
    rows = svg.Rows(svg.ticks(min(ends), max(ends), 4), names, left=230, width=240, row=22)
    bold = ["bold" if score["recipe"] == chosen else "" for score in scores]
    parts = rows.axes([f"{100 * value:.6g}" for value in rows.ticks], bold)
    for place, score in enumerate(scores):
        value, error = score["urgency_auc"], score["standard_error"]
        css = "s1" if score["recipe"] == chosen else "s0" if score["within_one_standard_error"] else "s5"
        whisker = rows.at(value - error, place), rows.at(value + error, place)
        parts += [svg.line(*whisker, css, ' stroke-width="1.5"'), svg.dot(rows.at(value, place), 4.5, css)]
        parts.append(svg.text(480, whisker[0][1] + 4, f"{100 * value:.1f}"))
    return svg.picture(530, rows.bottom + 8, "urgency AUC of the recipes", parts)


def verdict_chart(comparison: OrderedComparison) -> Markup:
    """One row per order: how much more the candidate misses, with its interval, and which model is safer.

    Misses are compared at equal false alarms where both models have probabilities, else as decided.
    """
    gaps = []
    for one in comparison.by_order.values():
        level = list(one.levels)[-1]
        gaps.append(one.matched[level].missed if level in one.matched else one.levels[level]["missed_rate"])
    ends = [abs(value) for gap in gaps for value in (gap.difference, *gap.shown_interval) if math.isfinite(value)]
    most = svg.ticks(0.0, max([0.01, *ends]), 2)[-1]
    rows = svg.Rows((-most, -most / 2, 0.0, most / 2, most), list(comparison.by_order), left=104, width=216, row=30)
    parts = rows.axes([f"{100 * value:+.3g}" if value else "0" for value in rows.ticks])
    middle, low_end = rows.at(0.0, 0)[0], rows.bottom
    parts.append(svg.line((middle, rows.top - 6), (middle, low_end), "whisker"))
    for place, (gap, safer) in enumerate(zip(gaps, comparison.safer.values(), strict=True)):
        css = {comparison.reference: "s0", comparison.candidate: "s1", None: "s5"}[safer]
        low, high = gap.shown_interval
        if math.isfinite(low) and math.isfinite(high):
            parts.append(svg.line(rows.at(low, place), rows.at(high, place), f"curve {css}"))
        if math.isfinite(gap.difference):
            parts.append(svg.dot(rows.at(gap.difference, place), 6, css, f"{100 * gap.difference:+.1f} points"))
        words = "not settled" if safer is None else f"{svg.short(safer, 14)} is safer"
        parts.append(svg.text(330, rows.at(0.0, place)[1] + 4, words, "dim" if safer is None else "bold"))
    names = [svg.short(name, 24) for name in (comparison.candidate, comparison.reference)]
    parts += [
        svg.text(middle - 10, low_end + 16, "misses less", "end dim"),
        svg.text(middle + 10, low_end + 16, "misses more", "dim"),
        svg.text(middle, low_end + 34, f"{' − '.join(names)}, points of missed urgency", "mid dim"),
    ]
    return svg.picture(460, low_end + 42, "which model is safer, by order of urgency", parts)


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


MARKED_KAPPAS = (2.0, 5.0, 10.0)


@dataclass(frozen=True)
class CurveSeries:
    """One model: (missed, false alarms) as decided, and its curve where there are probabilities.

    `shares` are those of the ranks, least urgent first, for the best constant calls.
    """

    name: str
    decided: tuple[float, float]
    shares: Array
    curve: OperatingCurve | None = None
    band: Band | None = None

    @classmethod
    def of(
        cls, name: str, ranks: Ints, target: Ints, decided: Ints, path: DecisionPath | None,
        weight: float | Array = 1.0, band: Band | None = None,
    ) -> CurveSeries:  # fmt: skip
        """Of labeled slides: `ranks` of the classes, true and called classes, the path along κ, weights."""
        weights = np.ones(len(target)) * (1.0 if isinstance(weight, float) else weight)
        true, called = ranks[target], ranks[decided]
        missed, alarms = (float(weights[rows].sum() / weights.sum()) for rows in (called < true, called > true))
        curve = None if path is None else exact_curve(path, target, weights)
        return cls(name, (missed, alarms), class_shares(target, weights, ranks), curve, band)


def curve_plane(series: Sequence[CurveSeries]) -> svg.Plane:
    """The axes that hold all curves."""
    missed, alarms = map(np.concatenate, zip(*(constant_hull(one.shares) for one in series), strict=True))
    across = max(1e-3, float(alarms.max()), *(one.decided[1] for one in series))
    up = max(1e-3, float(missed.max()), *(one.decided[0] for one in series))
    return svg.Plane(560, 400, svg.ticks(0.0, across, 10), svg.ticks(0.0, up, 10))


def curve_chart(series: Sequence[CurveSeries], *, bound: float | None = None, of: str = "slides") -> Markup:
    """The chart; `bound` is a certified share of missed urgency, drawn across."""
    plane = curve_plane(series)

    def place(lost: float, raised: float) -> svg.Place:
        return plane.at(raised, lost)

    def path(lost: Array, raised: Array) -> list[svg.Place]:
        places = [place(u, o) for u, o in zip(lost.tolist(), raised.tolist(), strict=True)]
        # Points of one half pixel are one: a curve may have a corner for every slide.
        return list({(round(2 * x), round(2 * y)): (x, y) for x, y in places}.values())

    names, css = (f"false alarms, % of {of}", f"missed urgency, % of {of}"), ("over-text", "severe-text")
    parts = plane.axes(names, css=css)
    # One for all models that are under the same order.
    parts += dict.fromkeys(svg.polyline(path(*constant_hull(one.shares)), "chance") for one in series)
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


Point = tuple[str, float, float]
"""A method in the plane: its name, x and y."""


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats in both directions, from left to right; larger is better in both.

    >>> front([("a", 1, 3), ("b", 2, 2), ("c", 1.5, 1)])
    [('a', 1, 3), ('b', 2, 2)]
    """
    best = [
        (name, x, y)
        for name, x, y in points
        if not any(x2 >= x and y2 >= y and (x2 > x or y2 > y) for _, x2, y2 in points)
    ]
    return sorted(best, key=lambda point: point[1])


def pareto(points: Sequence[Point], x_name: str, y_name: str) -> Markup:
    """Accuracy to the right, milder mistakes upward; the line joins methods that nobody beats in both."""
    shown = [point for point in points if math.isfinite(point[1]) and math.isfinite(point[2])]
    xs, ys = [x for _, x, _ in shown] or [0.0, 1.0], [y for *_, y in shown] or [0.0, 1.0]
    plane = svg.Plane(520, 340, svg.ticks(min(xs), max(xs), 5), svg.ticks(min(ys), max(ys), 5))
    parts = plane.axes((f"{x_name}, %", f"{y_name}, %"))
    parts.append(svg.polyline([plane.at(x, y) for _, x, y in front(shown)], "chance"))
    for number, (name, *values) in enumerate(shown):
        x, y = plane.at(*values)
        side, shift = ("end", -10) if x > 0.55 * plane.width else ("", 10)
        parts.append(svg.dot((x, y), 6, svg.series(number)))
        # A label above the uppermost point would leave the picture.
        parts.append(svg.text(x + shift, y + 18 if y < plane.top + 12 else y - 8, svg.short(name, 28), side))
    return svg.picture(plane.width, plane.height, f"{y_name} against {x_name}", parts)


SHOWN = {
    "urgency_auc": ("urgency_auc", "urgency AUC"),
    "missed": ("missed_rate", "missed urgency"),
    "false_alarms": ("false_alarm_rate", "false alarms"),
}
"""By the name in JSON: the metric in a run's `metrics.csv`, there with `val_` before it, and its name on the page."""


Epochs = dict[str, list[float]]
"""Scores by name of SHOWN, one value per epoch from the first: the mean over the runs that trained so long."""


def mean_epochs(runs: Sequence[Mapping[str, Sequence[str]]]) -> Epochs | None:
    """The mean over runs of their logs, columns of `metrics.csv`; None where a log lacks a column.

    >>> log = {f"val_{metric}": ["0.5", "0.7"] for metric, _ in SHOWN.values()}
    >>> short = {name: ["0.1"] for name in log}
    >>> mean_epochs([log, short])["missed"]
    [0.3, 0.7]
    """
    columns = {name: f"val_{metric}" for name, (metric, _) in SHOWN.items()}
    if not runs or any(column not in run for run in runs for column in columns.values()):
        return None
    return {name: [*map(_mean, zip_longest(*(run[column] for run in runs)))] for name, column in columns.items()}


def epoch_charts(methods: Sequence[tuple[str, Epochs | None]]) -> Markup:
    """A chart per score; one line per method that was trained, in the color of its number in the page's legend."""
    series = [(number, name, epochs) for number, (name, epochs) in enumerate(methods) if epochs is not None]
    if not series:
        return Markup("")
    drawn, last = [], max([2, *(len(line) for _, _, epochs in series for line in epochs.values())])
    for name, (_, title) in SHOWN.items():
        values = [value for _, _, epochs in series for value in epochs[name] if math.isfinite(value)] or [0.0, 1.0]
        plane = svg.Plane(360, 250, sorted({1, (1 + last) // 2, last}), svg.ticks(min(values), max(values), 5))
        parts = plane.axes(("epoch", f"{title}, %"), x_scale=1)
        for number, method, epochs in reversed(series):  # of equal lines the first is seen
            places = [plane.at(epoch, value) for epoch, value in enumerate(epochs[name], 1) if math.isfinite(value)]
            parts.append(svg.polyline(places, f"curve {svg.series(number)}", method))
        drawn.append(svg.picture(plane.width, plane.height, f"{title} by epoch", parts))
    return Markup("").join(drawn)


def _mean(cells: Sequence[str | None]) -> float:
    finite = [value for value in (float(cell or "nan") for cell in cells) if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
