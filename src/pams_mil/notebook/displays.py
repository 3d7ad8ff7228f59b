"""Displays on matplotlib axes, after scikit-learn's: `from_predictions(...)`, `.plot(ax=)`, then `ax_` and `figure_`.

Colors are those of the pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb

from pams_mil.arrays import Ints
from pams_mil.hierarchy import ClassHierarchy, as_hierarchy
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.operating import constant_hull
from pams_mil.notebook.array_inputs import predictions_from_arrays
from pams_mil.report import svg
from pams_mil.report.charts import CurveSeries
from pams_mil.report.first_screen import call_kinds, curve_series


class OperatingCurveDisplay:
    """Missed urgency against false alarms at every κ, of one or several models.

    >>> P = [[0.75, 0.25], [0.5, 0.5], [0.9, 0.1]]
    >>> display = OperatingCurveDisplay.from_predictions([0, 1, 1], P, ["low", "high"])
    >>> display.ax_.get_ylabel()
    'missed urgency, % of slides'
    """

    ax_: Any
    figure_: Any
    lines_: list[Any]

    def __init__(self, series: Sequence[CurveSeries]) -> None:
        self.series = series

    @classmethod
    def from_predictions(
        cls, y_true: Any, models: Any, classes: Any, *, labels: Sequence[Any] | None = None, ax: Any = None
    ) -> OperatingCurveDisplay:
        """The curve of probabilities, or of several models by name; arguments as in `pams_mil.audit`."""
        predictions = predictions_from_arrays(y_true, models, as_hierarchy(classes), labels=labels)
        return cls(curve_series(predictions)).plot(ax=ax)

    def plot(self, ax: Any = None) -> OperatingCurveDisplay:
        """Draw on these axes, or on new ones."""
        self.ax_ = plt.subplots()[1] if ax is None else ax
        self.figure_ = self.ax_.figure
        missed, alarms = constant_hull(self.series[0].shares)
        self.ax_.plot(100 * alarms, 100 * missed, "--", color="0.5", linewidth=1, label="best constant call")
        self.lines_ = []
        for one, color in zip(self.series, itertools.cycle(svg.SERIES), strict=False):
            if one.band is not None:
                band = one.band
                self.ax_.fill_between(
                    100 * band.false_alarms, 100 * band.low, 100 * band.high, color=color, alpha=0.13, linewidth=0
                )
            if one.curve is not None:
                self.lines_ += self.ax_.plot(
                    100 * one.curve.false_alarms, 100 * one.curve.missed, color=color, label=one.name
                )
            lost, raised = one.decided
            label = None if one.curve is not None else one.name
            self.ax_.plot(100 * raised, 100 * lost, "s", color=color, markersize=6, label=label)
        self.ax_.set_xlabel("false alarms, % of slides")
        self.ax_.set_ylabel("missed urgency, % of slides")
        self.ax_.set_xlim(left=0)
        self.ax_.set_ylim(bottom=0)
        self.ax_.legend()
        return self


class SeverityConfusionDisplay:
    """A confusion matrix whose cells say what kind of mistake they are: missed urgency, false alarm, tied, right."""

    ax_: Any
    figure_: Any

    def __init__(self, cells: Ints, hierarchy: ClassHierarchy) -> None:
        self.cells = cells
        self.hierarchy = hierarchy

    @classmethod
    def from_predictions(
        cls, y_true: Any, y_pred: Any, classes: Any, *, labels: Sequence[Any] | None = None, ax: Any = None
    ) -> SeverityConfusionDisplay:
        """The matrix of calls, or of probabilities at their most probable class; arguments as in `pams_mil.audit`."""
        hierarchy = as_hierarchy(classes)
        (one,) = predictions_from_arrays(y_true, {"model": y_pred}, hierarchy, labels=labels)
        return cls(count_cells(one.target, one.predicted, len(hierarchy)), hierarchy).plot(ax=ax)

    def plot(self, ax: Any = None) -> SeverityConfusionDisplay:
        """Draw on these axes, or on new ones."""
        self.ax_ = plt.subplots()[1] if ax is None else ax
        self.figure_ = self.ax_.figure
        size = len(self.hierarchy)
        tints = np.array([[to_rgb(svg.KINDS[kind]) for kind in row] for row in call_kinds(self.hierarchy)])
        share = np.sqrt(self.cells / np.maximum(1, self.cells.sum(1, keepdims=True)))[..., None]
        self.ax_.imshow(1 - 0.6 * share * (1 - tints))
        for t in range(size):
            for r in range(size):
                self.ax_.text(r, t, str(self.cells[t, r]), ha="center", va="center")
        names = [self.hierarchy.display(name) for name in self.hierarchy.names()]
        self.ax_.set_xticks(range(size), names, rotation=45, ha="right")
        self.ax_.set_yticks(range(size), names)
        self.ax_.set_xlabel("called")
        self.ax_.set_ylabel("true")
        return self
