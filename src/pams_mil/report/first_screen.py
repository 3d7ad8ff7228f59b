"""The first screen of a page: the sentence, the curve with its handle, and what is missed, in a clinician's words.

Everything stands in the page as the files decided it, so that it reads without scripts; `live.js` then moves the same
elements. Its sentences are those of this module, word for word.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from pams_mil.arrays import Array, Ints
from pams_mil.evaluate.operating_points import Band, OperatingPoints
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import DecisionPath
from pams_mil.metrics.operating import class_shares, constant_calls
from pams_mil.report import live, svg
from pams_mil.report.charts import CurveSeries, curve_chart, curve_plane
from pams_mil.report.live import ScreenModel
from pams_mil.report.page import ReportTable, readable_level

MOST_BESIDE = 3
"""Models whose table is beside the curve."""


@dataclass(frozen=True)
class Counts:
    """One decision about labelled slides, counted: `cells` is the confusion matrix [true, called]."""

    name: str
    cells: Array
    hierarchy: ClassHierarchy
    noun: str = "slide"
    mean_of: int = 1

    @classmethod
    def of(cls, model: Predictions | ScreenModel) -> Counts:
        """The calls as decided."""
        one = model if isinstance(model, ScreenModel) else ScreenModel.of(model)
        return cls(one.name, one.cells(), one.hierarchy, one.noun, one.num_seeds)

    @property
    def level(self) -> int | None:
        """The level of the matrix: the finest that is readable; None where even the coarsest has too many classes."""
        return readable_level(self.hierarchy)

    @property
    def is_finest(self) -> bool:
        """Whether all classes are shown at once; else groups first, and classes fold out."""
        return self.level == self.hierarchy.num_levels - 1

    @property
    def is_tied(self) -> bool:
        """Whether some classes are equally urgent."""
        return len(set(self.hierarchy.ranks().tolist())) < len(self.hierarchy)

    @property
    def n(self) -> float:
        """Number of slides."""
        return float(self.cells.sum())

    @property
    def missed(self) -> float:
        """Slides called less urgent than they are."""
        return float(self.cells[self.hierarchy.outranks()].sum())

    @property
    def false_alarms(self) -> float:
        """Slides called more urgent than they are."""
        return float(self.cells[self.hierarchy.outranks().T].sum())

    @property
    def sentence(self) -> str:
        """What was missed and raised, in one sentence."""
        mean = f", the mean of {self.mean_of} seeds" if self.mean_of > 1 else ""
        return (
            f"{self.name} misses urgency in {number(self.missed)} of {self._units(self.n)} "
            f"({_percent(self.missed, self.n)}) and raises {number(self.false_alarms)} false "
            f"{'alarm' if number(self.false_alarms) == '1' else 'alarms'} "
            f"({_percent(self.false_alarms, self.n)}){mean}."
        )

    @property
    def most_urgent(self) -> str:
        """What becomes of the most urgent class that has slides; nothing where only the least urgent has."""
        low = self._called_low()
        for index in range(len(low) - 1, 0, -1):
            total = float(self.cells[index].sum())
            if total and self.hierarchy.ranks()[index] > self.hierarchy.ranks()[0]:
                count = "none is" if not low[index] else "1 is" if low[index] == 1 else f"{number(low[index])} are"
                name = self.hierarchy.display(self.hierarchy.names()[index])
                return f"Of {self._units(total)} with {name}, the most urgent class here, {count} called less urgent."
        return ""

    def missed_by_class(self, level: int = -1) -> list[dict[str, Any]]:
        """Misses of every class or group that can be missed, most urgent first: calls less urgent than the class."""
        groups, names, ranks = self.hierarchy.groups(level), self.hierarchy.names(level), self.hierarchy.ranks()
        low = np.bincount(groups, weights=self._called_low(), minlength=len(names))
        total = np.bincount(groups, weights=self.cells.sum(1), minlength=len(names))
        top = np.zeros(len(names), dtype=np.int64)
        np.maximum.at(top, groups, ranks)
        return [
            {
                "index": index,
                "name": self.hierarchy.display(names[index]),
                "percent": 100 * low[index] / total[index] if total[index] else 0.0,
                "text": f"{number(low[index])} of {number(total[index])}",
            }
            for index in range(len(names) - 1, -1, -1)
            if top[index] > ranks[0]
        ]

    def row(self) -> list[str]:
        """The cells of the table of models behind the name, as decided in the file."""
        right = float(np.trace(self.cells))
        cost = (self.missed + self.false_alarms) / self.n
        of_class = self.cells.sum(1)
        shares = class_shares(np.arange(len(of_class)), of_class, self.hierarchy.ranks())
        missed_share, alarm_share = constant_calls(shares)
        constant = float((missed_share + alarm_share).min())
        beside = f" (×{cost / constant:.2f})" if constant > 0 else ""
        missed, alarms = (f"{number(count)} ({_percent(count, self.n)})" for count in (self.missed, self.false_alarms))
        return ["as decided", missed, alarms, _percent(right, self.n), f"{100 * cost:.1f}{beside}"]

    def matrix(self, level: int) -> list[list[dict[str, Any]]]:
        """Cells with the CSS classes of their kind and their shade, a share of the true class."""
        size, groups = self.hierarchy.num_classes(level), self.hierarchy.groups(level)
        lifted = np.zeros((size, size))
        np.add.at(lifted, (groups[:, None], groups[None, :]), self.cells)
        return matrix_cells(lifted, self.hierarchy, level)

    def _units(self, count: float) -> str:
        return f"{number(count)} {self.noun}" + ("" if number(count) == "1" else "s")

    def _called_low(self) -> Array:
        low: Array = np.where(self.hierarchy.outranks(), self.cells, 0).sum(1)
        return low


@dataclass(frozen=True)
class FirstScreen:
    """What `live.html.j2` shows: everything as decided in the files, of the first model where only one fits.

    `models` are all of them, or one model under every order of urgency; `orders` are the first models of each order, by
    which is shown what is missed. `plane` and `data` are for the script, `many` says where slides are that are not in
    the page.
    """

    models: list[Counts]
    orders: list[Counts]
    chart: Markup
    plane: str
    data: Markup
    many: str
    has_pictures: bool

    @property
    def by_order(self) -> bool:
        """Whether the models are one under several orders."""
        return len(self.orders) > 1

    @property
    def is_wide(self) -> bool:
        """Whether the table of models is below sentence and curve, for it would be taller than the curve."""
        return len(self.models) > MOST_BESIDE


def first_screen(
    models: Sequence[ScreenModel], *, bands: Sequence[Band | None] = (), bound: float | None = None, **options: Any
) -> FirstScreen:
    """The first screen of some models.

    `bands` are around their curves, `bound` is a certified share of missed urgency, `options` those of `live_data`.
    """
    series = [
        CurveSeries.of(one.name, one.hierarchy.ranks(), one.target, one.decided, one.path, one.weight, band)
        for one, band in zip(models, bands or [None] * len(models), strict=True)
    ]
    counts, data = [Counts.of(one) for one in models], live.live_data(models, **options)
    block = '<script type="application/json" id="live-data">{}</script>'
    return FirstScreen(
        models=counts,
        orders=list({one.hierarchy.digest: one for one in reversed(counts)}.values())[::-1],
        chart=curve_chart(series, bound=bound, of=f"{models[0].noun}s"),
        plane=json.dumps(curve_plane(series).to_json()),
        data=Markup(block).format(Markup(live.embedded_json(data))),  # noqa: S704  cannot end its element
        many=f"The {sum(map(len, models)):,} slides are in {data['file']} beside this page." if data["file"] else "",
        has_pictures=any(one.links.pictures for one in models),
    )


def curve_series(
    models: Sequence[Predictions], points: Sequence[OperatingPoints | None] = (), level: int = -1
) -> list[CurveSeries]:
    """The curves of models at a level, and where each decided; `points` are those of an audit at that level."""
    series = []
    for model, of_model in zip(models, points or [None] * len(models), strict=True):
        # At every level a slide has one answer, its finest call.
        ranks = model.hierarchy.ranks(level)[model.hierarchy.groups(level)]
        path = None if model.probabilities is None else DecisionPath(model.path.reach, ranks)
        one = CurveSeries.of(model.name, ranks, model.target, model.predicted, path)
        series.append(one if of_model is None else replace(one, curve=of_model.curve, band=of_model.band))
    return series


def matrix_cells(cells: Array | Ints, hierarchy: ClassHierarchy, level: int = -1) -> list[list[dict[str, Any]]]:
    """Counts [true, called] with CSS classes: the kind of mistake, and a shade by the share of the true class."""
    kinds, totals = call_kinds(hierarchy, level), cells.sum(1)
    return [
        [
            {
                "count": number(count),
                "css": f"{kinds[t, r]} {f'q{round(10 * (count / totals[t]) ** 0.5)}' if count else 'none'}",
            }
            for r, count in enumerate(row)
        ]
        for t, row in enumerate(cells)
    ]


def call_kinds(hierarchy: ClassHierarchy, level: int = -1) -> npt.NDArray[np.str_]:
    """What each call [true, called] is, by its color in `svg.KINDS`."""
    severe = hierarchy.outranks(level)
    kinds = np.where(severe, "severe", np.where(severe.T, "over", "tied"))
    np.fill_diagonal(kinds, "right")
    return kinds


def notebook_html(sentences: Sequence[str], series: Sequence[CurveSeries], table: ReportTable) -> str:
    """What a notebook shows of some models: the sentences, the curves and a table."""
    words = Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in sentences)
    colors = ", ".join(f"{one.name}: {color}" for one, color in zip(series, svg.COLOR_NAMES, strict=False))
    picture = embedded_picture(svg.standalone(curve_chart(series)), f"missed urgency against false alarms; {colors}")
    return str(words + picture + Markup("<p><small>{}</small></p>").format(colors) + table.__html__())


def embedded_picture(drawn: str, label: str) -> Markup:
    """An SVG file as an image element that needs no other file."""
    image = base64.b64encode(drawn.encode()).decode()
    return Markup('<img width="480" alt="{}" src="data:image/svg+xml;base64,{}">').format(label, image)


def number(count: float) -> str:
    """A count, or a mean of counts with one digit.

    >>> number(12.0), number(12 * (1 / 3)), number(7 / 3)
    ('12', '4', '2.3')
    """
    return str(round(count)) if abs(count - round(count)) < 1e-6 else f"{count:.1f}"


def _percent(count: float, total: float) -> str:
    return f"{100 * (count / total):.1f} %"
