"""The first screen of a page: the sentence, the curve with its handle, and what is missed, in a clinician's words.

Everything stands in the page as the files decided it, so that it reads without scripts; `live.js` then moves the same
elements. Its sentences are those of this module, word for word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from pams_mil.arrays import Array, Ints
from pams_mil.errors import counted
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.metrics.operating import CurveResampler, class_shares, constant_calls
from pams_mil.report import live
from pams_mil.report.curve_chart import CurveBand, CurveSeries, curve_chart, curve_plane
from pams_mil.report.readable import readable_level
from pams_mil.report.report_table import TableHead
from pams_mil.severity import PENALTY

HEADS = (
    TableHead("κ", "the operating point: one missed urgency counts as much as κ false alarms"),
    TableHead("missed", "slides that are called less urgent than they are"),
    TableHead("false alarms", "slides that are called more urgent than they are"),
    TableHead("right", "slides that are called what they are"),
    TableHead(
        "expected cost",
        "for 100 slides, κ per missed urgency and 1 per false alarm at the chosen κ; ×: over the best constant call",
    ),
)


@dataclass(frozen=True)
class Counts:
    """One decision about labelled slides, counted: `cells` is the confusion matrix [true, called]."""

    name: str
    cells: Ints
    hierarchy: ClassHierarchy

    @classmethod
    def of(cls, predictions: Predictions, calls: Ints | None = None) -> Counts:
        """The calls of the predictions, or others for the same slides."""
        predicted = predictions.predicted if calls is None else calls
        size = predictions.hierarchy.num_classes()
        return cls(predictions.name, count_cells(predictions.target, predicted, size), predictions.hierarchy)

    @property
    def n(self) -> int:
        """Number of slides."""
        return int(self.cells.sum())

    @property
    def missed(self) -> int:
        """Slides called less urgent than they are."""
        return int(self.cells[self.hierarchy.outranks()].sum())

    @property
    def false_alarms(self) -> int:
        """Slides called more urgent than they are."""
        return int(self.cells[self.hierarchy.outranks().T].sum())

    @property
    def sentence(self) -> str:
        """What was missed and raised, in one sentence."""
        return (
            f"{self.name} misses urgency in {self.missed} of {counted(self.n, 'slide')} "
            f"({_percent(self.missed, self.n)}) and raises {counted(self.false_alarms, 'false alarm')} "
            f"({_percent(self.false_alarms, self.n)})."
        )

    @property
    def most_urgent(self) -> str:
        """What becomes of the most urgent class that has slides; nothing where only the least urgent has."""
        low = self._called_low()
        for index in range(len(low) - 1, 0, -1):
            total = int(self.cells[index].sum())
            if total and self.hierarchy.ranks()[index] > self.hierarchy.ranks()[0]:
                count = "none is" if not low[index] else "1 is" if low[index] == 1 else f"{low[index]} are"
                name = self.hierarchy.display(self.hierarchy.names()[index])
                return (
                    f"Of {counted(total, 'slide')} with {name}, the most urgent class here, {count} called less urgent."
                )
        return ""

    def missed_by_class(self) -> list[dict[str, Any]]:
        """Misses of every class that can be missed, most urgent first."""
        low, names = self._called_low(), self.hierarchy.names()
        return [
            {
                "index": index,
                "name": self.hierarchy.display(names[index]),
                "percent": 100 * low[index] / max(1, int(self.cells[index].sum())),
                "text": f"{low[index]} of {int(self.cells[index].sum())}",
            }
            for index in range(len(names) - 1, -1, -1)
            if self.hierarchy.ranks()[index] > self.hierarchy.ranks()[0]
        ]

    def row(self) -> list[str]:
        """The cells of the table of models, as decided in the file."""
        right = int(np.trace(self.cells))
        cost = (self.missed + self.false_alarms) / self.n
        of_rank = self.cells.sum(1)
        shares = class_shares(np.repeat(np.arange(len(of_rank)), of_rank), np.ones(self.n), self.hierarchy.ranks())
        missed_share, alarm_share = constant_calls(shares)
        constant = float((missed_share + alarm_share).min())
        beside = f" (×{cost / constant:.2f})" if constant > 0 else ""
        missed, alarms = (f"{count} ({_percent(count, self.n)})" for count in (self.missed, self.false_alarms))
        return [self.name, "as decided", missed, alarms, _percent(right, self.n), f"{100 * cost:.1f}{beside}"]

    def matrix(self, level: int = -1) -> list[list[dict[str, Any]]]:
        """Cells with the CSS classes of their kind and their shade, a share of the true class."""
        size, groups = self.hierarchy.num_classes(level), self.hierarchy.groups(level)
        lifted = np.zeros((size, size), dtype=np.int64)
        np.add.at(lifted, (groups[:, None], groups[None, :]), self.cells)
        return matrix_cells(lifted, self.hierarchy, level)

    def missed_by_group(self, level: int) -> list[dict[str, Any]]:
        """Misses of every group, most urgent first: slides that are called less urgent than their class."""
        groups, names = self.hierarchy.groups(level), self.hierarchy.names(level)
        low = np.bincount(groups, weights=self._called_low(), minlength=len(names)).astype(np.int64)
        total = np.bincount(groups, weights=self.cells.sum(1), minlength=len(names)).astype(np.int64)
        return [
            {
                "index": index,
                "name": self.hierarchy.display(names[index]),
                "percent": 100 * low[index] / max(1, total[index]),
                "text": f"{low[index]} of {total[index]}",
            }
            for index in range(len(names) - 1, -1, -1)
        ]

    def _called_low(self) -> Ints:
        low: Ints = np.where(self.hierarchy.outranks(), self.cells, 0).sum(1)
        return low


@dataclass(frozen=True)
class FirstScreen:
    """What `live.html.j2` shows: everything as decided in the files, of the first model where only one fits."""

    models: list[Counts]
    chart: Markup
    plane: str
    data: Markup
    many: str
    heads: tuple[TableHead, ...] = HEADS

    @property
    def first(self) -> Counts:
        """The model that is shown first."""
        return self.models[0]

    @property
    def sentences(self) -> list[str]:
        """One per model."""
        return [model.sentence for model in self.models]

    @property
    def worst(self) -> str:
        """What becomes of the most urgent class."""
        return self.first.most_urgent

    @property
    def rows(self) -> list[list[str]]:
        """The table of models."""
        return [model.row() for model in self.models]

    @property
    def missed(self) -> list[dict[str, Any]]:
        """Misses by class."""
        return self.first.missed_by_class()

    @property
    def level(self) -> int | None:
        """The level of the matrix: the finest that is readable; None where even the coarsest has too many classes."""
        return readable_level(self.first.hierarchy)

    @property
    def is_finest(self) -> bool:
        """Whether all classes are shown at once; else groups first, and classes fold out."""
        return self.level == self.first.hierarchy.num_levels - 1

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Misses by group, where classes are too many to be shown at once."""
        return [] if self.is_finest or self.level is None else self.first.missed_by_group(self.level)

    @property
    def classes(self) -> list[str]:
        """Names in the matrix as people know them, least urgent first."""
        hierarchy = self.first.hierarchy
        return [] if self.level is None else [hierarchy.display(name) for name in hierarchy.names(self.level)]

    @property
    def matrix(self) -> list[list[dict[str, Any]]]:
        """The confusion matrix."""
        return [] if self.level is None else self.first.matrix(self.level)

    @property
    def tied(self) -> bool:
        """Whether some classes are equally urgent."""
        ranks = self.first.hierarchy.ranks()
        return len(np.unique(ranks)) < len(ranks)


def first_screen(
    models: Sequence[Predictions],
    *,
    bands: Sequence[CurveBand | None] = (),
    penalty: float = PENALTY,
    pages: Mapping[str, str] | None = None,
    command: str = "",
    with_slides: bool | None = None,
) -> FirstScreen:
    """The first screen of some models; arguments as in `live_data`, `bands` around the curves."""
    counts = [Counts.of(model) for model in models]
    series, shares = curve_series(models, bands), rank_shares(models[0])
    data = live.live_data(models, penalty=penalty, pages=pages, command=command, with_slides=with_slides)
    block = '<script type="application/json" id="live-data">{}</script>'
    many = sum(map(len, models))
    return FirstScreen(
        models=counts,
        chart=curve_chart(series, shares),
        plane=json.dumps(curve_plane(series, shares).to_json()),
        data=Markup(block).format(Markup(live.embedded_json(data))),  # noqa: S704  cannot end its element
        many=f"The {many:,} slides are in {live.SLIDES_FILE} beside this page.",
    )


def curve_series(
    models: Sequence[Predictions], bands: Sequence[CurveBand | None] = (), level: int = -1
) -> list[CurveSeries]:
    """The curves of models at a level, and where each decided."""
    series = []
    for number, model in enumerate(models):
        target, predicted, p = model.at(level)
        outranks, cells = (
            model.hierarchy.outranks(level),
            count_cells(target, predicted, model.hierarchy.num_classes(level)),
        )
        decided = (float(cells[outranks].sum() / len(model)), float(cells[outranks.T].sum() / len(model)))
        curve = None
        if p is not None:
            curve = CurveResampler(decision_path(p, model.hierarchy, level=level), target).curve(np.ones(len(target)))
        series.append(CurveSeries(model.name, decided, curve, bands[number] if bands else None))
    return series


def rank_shares(model: Predictions, level: int = -1) -> Array:
    """The share of slides of every rank, least urgent first."""
    target = model.at(level)[0]
    return class_shares(target, np.ones(len(target)), model.hierarchy.ranks(level))


def matrix_cells(cells: Ints, hierarchy: ClassHierarchy, level: int = -1) -> list[list[dict[str, Any]]]:
    """Counts [true, called] with CSS classes: the kind of mistake, and a shade by the share of the true class."""
    severe = hierarchy.outranks(level)
    kinds = np.where(severe, "severe", np.where(severe.T, "over", "tied"))
    np.fill_diagonal(kinds, "right")
    totals = np.maximum(1, cells.sum(1))
    return [
        [
            {
                "count": int(count),
                "css": f"{kinds[t, r]} {f'q{round(10 * (count / totals[t]) ** 0.5)}' if count else 'none'}",
            }
            for r, count in enumerate(row)
        ]
        for t, row in enumerate(cells)
    ]


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %"
