"""What a metric sees: the slides of one or several networks at one level of the classes, and their sums.

A statistic turns slides into columns that are summed over slides (`Sums`) and reads the weighted sums again (`view`):
cells of the confusion matrix, events along the operating curve, scores in order, losses of single slides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Bools, Ints
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import DecisionPath, decision_path
from pams_mil.metrics.operating import constant_hull, curve_auc, lower_hull
from pams_mil.metrics.reduce import ConfusionCells, divide
from pams_mil.metrics.resampling import Sums
from pams_mil.severity import PENALTY, metric_weight, symmetric_weight

BINS = 4096
"""Events along a resampled curve are put into at most this number of bins; a curve as observed is never binned."""
SCORE_BINS = 1024
"""Scores of more slides than BINS are put into this number of bins for the AUC of resamples."""
SCORE_COLUMNS, FEWEST_SCORE_BINS = 2**17, 256
"""Bins of all classes together, and the fewest of each."""


@dataclass(frozen=True, eq=False)
class Slides:
    """True classes, calls and probabilities [n, C] of the finest level, to be scored at `level`."""

    hierarchy: ClassHierarchy
    target: Ints
    predicted: Ints
    probabilities: Array | None = None
    level: int = -1
    penalty: float = PENALTY
    finest_path: DecisionPath | None = None
    """Calls at every κ, where they are known already."""
    finding_targets: Bools | None = None
    finding_probabilities: Array | None = None
    """True sets and probabilities of single findings [n, K], where slides have several."""

    def __len__(self) -> int:
        return len(self.target)

    def take(self, rows: npt.NDArray[Any]) -> Slides:
        """Chosen slides."""
        names = ("target", "predicted", "probabilities", "finding_targets", "finding_probabilities")
        columns = {name: column[rows] for name in names if (column := getattr(self, name)) is not None}
        path = None if self.probabilities is None else self.path.take(rows)
        return replace(self, **columns, finest_path=path)

    @cached_property
    def true(self) -> Ints:
        """True classes of the level."""
        return self.hierarchy.lift(self.target, self.level)

    @cached_property
    def called(self) -> Ints:
        """Calls of the level: the finest call, lifted."""
        return self.hierarchy.lift(self.predicted, self.level)

    @property
    def scores(self) -> Array:
        """Probabilities of the level's classes."""
        if self.probabilities is None:
            raise ParameterError("These slides have no probabilities.")
        return self.hierarchy.summed(self.probabilities, self.level)

    @cached_property
    def path(self) -> DecisionPath:
        """The finest call at every κ, ranked by the urgency of the level: a slide has one answer at all levels."""
        path = self.finest_path
        if path is None:
            if self.probabilities is None:
                raise ParameterError("These slides have no probabilities, so they have no operating points.")
            path = decision_path(self.probabilities, self.hierarchy)
        lifted = self.hierarchy.groups(self.level)
        return DecisionPath(path.reach, self.hierarchy.ranks(self.level)[lifted])


class Statistic:
    """Sums over slides, and what they mean."""

    sums: Sums

    def including(self, other: Any) -> Statistic:
        """The same with columns for all that the other has, so that sums can be moved from one to the other.

        Itself, where the columns are the same for all models of these slides.
        """
        return self

    def view(self, sums: Array) -> Any:
        """The weighted sums [B, F], or the values that metrics are computed from."""
        return sums


@dataclass(frozen=True, eq=False)
class CellsView(ConfusionCells):
    """Counts of the cells of confusion matrices, with the weights of all C x C cells."""

    W: Array
    symmetric: Array
    outranks: Bools


class Cells(Statistic):
    """The cells of the confusion matrix at the level that have slides, here or in `others`."""

    def __init__(self, slides: Slides, bins: int | None = None, others: Ints | None = None) -> None:
        size = slides.hierarchy.num_classes(slides.level)
        cell = slides.true * size + slides.called
        self.cells = np.unique(cell if others is None else np.concatenate([cell, others]))
        self.sums = Sums(np.arange(len(slides)), np.searchsorted(self.cells, cell), len(self.cells))
        self._slides, self._weights = slides, _cell_weights(slides.hierarchy, slides.level, slides.penalty)

    def including(self, other: Cells) -> Cells:
        """The same with columns for the other's cells."""
        return Cells(self._slides, others=other.cells)

    def view(self, sums: Array) -> CellsView:
        """Counts [B, K] and the cells' weights."""
        size = len(self._weights[0])
        counts = np.asarray(sums, dtype=np.float64)
        return CellsView(counts, self.cells // size, self.cells % size, size, *self._weights)


def cells_view(S: npt.NDArray[Any], hierarchy: ClassHierarchy, level: int, penalty: float) -> CellsView:
    """Confusion matrices [..., C, C] as label metrics take them."""
    cells = ConfusionCells.of(S)
    weights = _cell_weights(hierarchy, level, penalty)
    return CellsView(cells.counts, cells.true, cells.predicted, cells.num_classes, *weights)


def _cell_weights(hierarchy: ClassHierarchy, level: int, penalty: float) -> tuple[Array, Array, Bools]:
    weight = metric_weight(hierarchy, level, penalty=penalty)
    return weight, symmetric_weight(hierarchy, level), hierarchy.outranks(level)


class Curve(Statistic):
    """Events along the operating curve, by their place on it.

    Growing κ, a slide is called ever more urgently: it stops being missed at one κ, becomes a false alarm at another,
    and each class passed on the way eases its miss. Places are the ranks of these κ on the model's own curve, so that
    two models' events can be exchanged however their probabilities are scaled.
    """

    def __init__(self, slides: Slides, bins: int | None = BINS) -> None:
        hierarchy, level, path = slides.hierarchy, slides.level, slides.path
        ranks, n = path.ranks, len(slides)
        self.loss = hierarchy.distance(level).astype(np.float64) * hierarchy.outranks(level)
        self.ranks = hierarchy.ranks(level)
        group = hierarchy.groups(level)
        loss = self.loss[group][:, group]  # [C, C] of finest classes, at the level
        rows, kappas, eased = [], [], []
        for c in range(1, len(ranks)):
            # Passing from class c − 1 to c: what the miss of each slide becomes smaller by.
            change = loss[slides.target, c - 1] - loss[slides.target, c]
            moved = np.flatnonzero(change > 0)
            rows.append(moved)
            kappas.append(path.reach[moved, c])
            eased.append(change[moved])
        missable = np.flatnonzero(ranks[slides.target] > ranks[0])
        alarming = np.flatnonzero(ranks[slides.target] < ranks[-1])
        reached, raised = path.kappa_to_reach(slides.target)[missable], path.kappa_to_exceed(slides.target)[alarming]
        events = np.concatenate([reached, raised, *kappas])
        self.points = len(events) if bins is None else min(bins, len(events))
        # The last event must fall into the last bin and equal κ into one bin.
        bin_of = _places(events) * self.points // max(1, len(events))
        of_reached, of_raised, of_eased = np.split(bin_of, [len(reached), len(reached) + len(raised)])
        row = np.concatenate([missable, alarming, *rows, np.arange(n)])
        column = np.concatenate([
            of_reached, self.points + of_raised, 2 * self.points + of_eased, 3 * self.points + slides.true
        ])  # fmt: skip
        value = np.concatenate([np.ones(len(reached) + len(raised)), *eased, np.ones(n)])
        self.sums = Sums(row, column, 3 * self.points + hierarchy.num_classes(level), value)

    def view(self, sums: Array) -> CurveView:
        """Missed urgency and false alarms along the curve."""
        reached, raised, eased, classes = np.split(sums, [self.points, 2 * self.points, 3 * self.points], axis=-1)
        total = classes.sum(axis=-1, keepdims=True)
        return CurveView(
            missed=_left(reached) / total,
            false_alarms=_running(raised) / total,
            weighed=_left(eased) / total,
            classes=classes / total,
            ranks=self.ranks,
            loss=self.loss,
        )


@dataclass(frozen=True, eq=False)
class CurveView:
    """Curves [B, K]: shares missed, missed distance and false alarms; shares of the classes [B, C]."""

    missed: Array
    false_alarms: Array
    weighed: Array
    classes: Array
    ranks: Ints
    loss: Array

    @cached_property
    def _constant(self) -> tuple[Array, Array]:
        of_rank = np.unique(self.ranks)[:, None] == self.ranks
        return constant_hull(self.classes @ of_rank.T.astype(np.float64))

    def auc(self, most: float | None = None) -> Array:
        """Urgency AUC, up to `most` false alarms."""
        return curve_auc(self.missed, self.false_alarms, self._constant, most)

    def weighed_auc(self) -> Array:
        """Severity AUC: the same with every miss weighed by its distance."""
        alarms = self._constant[1]
        last = np.searchsorted(self.ranks, np.unique(self.ranks), side="right") - 1  # the best of tied calls
        chance = lower_hull((self.classes @ self.loss)[..., last], alarms)
        return curve_auc(self.weighed, self.false_alarms, (chance, alarms))

    def missed_at(self, false_alarms: npt.ArrayLike) -> Array:
        """Missed at these shares of false alarms, one for all curves or one for each."""
        return _interpolated(self.missed, self.false_alarms, false_alarms)

    def false_alarms_at(self, missed: npt.ArrayLike) -> Array:
        """The fewest false alarms at which no more is missed."""
        return _interpolated(self.false_alarms[..., ::-1], self.missed[..., ::-1], missed)


class Ranking(Statistic):
    """Every class's scores in order, of its own slides and of all, for one-vs-rest AUC.

    The order of the rest matters only at places where a class has slides of its own, here or in `others`: every such
    place is a column, and so is every gap between two. n slides of C classes need at most 3 n + C columns, not n C.
    """

    def __init__(self, slides: Slides, bins: int | None = BINS, others: Ints | None = None) -> None:
        scores, n, size = slides.scores, len(slides), slides.hierarchy.num_classes(slides.level)
        few = min(SCORE_BINS, max(FEWEST_SCORE_BINS, SCORE_COLUMNS // size))
        points = n if bins is None or n <= bins else few
        # The place of every slide in the order of every class, [C, n], all orders one behind the other.
        place = np.stack([c * points + _places(scores[:, c]) * points // n for c in range(size)])
        own = place[slides.true, np.arange(n)]
        self.own = np.unique(own if others is None else np.concatenate([own, others]))
        starts = np.zeros(size * points + 1, dtype=bool)  # a column starts at each class, own place, and right after
        starts[np.concatenate([np.arange(0, len(starts), points), self.own, self.own + 1])] = True
        column = np.cumsum(starts) - 1
        self._at, self._bounds, self._width = column[self.own], column[::points], int(column[-1])
        self._own_bounds = np.searchsorted(self.own, np.arange(size + 1) * points)
        self.sums = Sums(
            np.concatenate([np.tile(np.arange(n), size), np.arange(n)]),
            np.concatenate([column[place].ravel(), self._width + np.searchsorted(self.own, own)]),
            self._width + len(self.own),
        )
        self._of = slides, bins

    def including(self, other: Ranking) -> Ranking:
        """The same with columns for the places of the other's slides."""
        return Ranking(*self._of, other.own)

    def view(self, sums: Array) -> Array:
        """One-vs-rest AUC of every class, [B, C]; NaN for a class without slides, or with all of them."""
        own = sums[:, self._width :]
        below, own_below = _running(sums[:, : self._width]), _running(own)
        # What is below each place, and half of what is at it, less the class's own slides; counted over all classes.
        rest = below[:, self._at] + below[:, self._at + 1] - own_below[:, :-1] - own_below[:, 1:]
        base = 2 * (below[:, self._bounds[:-1]] - own_below[:, self._own_bounds[:-1]])
        rest -= np.repeat(base, np.diff(self._own_bounds), axis=-1)
        won = np.diff(_running(own * rest)[:, self._own_bounds], axis=-1)
        count, total = np.diff(own_below[:, self._own_bounds]), np.diff(below[:, self._bounds])
        return divide(won, 2 * count * (total - count))


class Losses(Statistic):
    """The mean of one loss per slide."""

    def __init__(self, slides: Slides, bins: int | None = None, *, loss: Callable[[Slides], npt.NDArray[Any]]) -> None:
        n = len(slides)
        one = np.concatenate([loss(slides), np.ones(n)])
        self.sums = Sums(np.tile(np.arange(n), 2), np.repeat([0, 1], n), 2, one)

    def view(self, sums: Array) -> Array:
        """Means [B]."""
        return divide(sums[:, 0], sums[:, 1])


def _places(values: Array) -> Ints:
    """The place of every value in their order, from 0; equal ones share the last.

    One sort instead of a search per value, which misses the cache at every step: 7 times faster for millions.
    """
    order = np.argsort(values)
    ordered, places = values[order], np.empty(len(values), dtype=np.int64)
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(values) - 1)
    places[order] = np.repeat(last, np.diff(last, prepend=-1))
    return places


def _left(events: Array) -> Array:
    """What is left after each bin, [..., K + 1], from everything to exactly 0."""
    return _running(events[..., ::-1])[..., ::-1]


def _running(events: Array) -> Array:
    sums = np.zeros((*events.shape[:-1], events.shape[-1] + 1))
    np.cumsum(events, axis=-1, out=sums[..., 1:])
    return sums


def _interpolated(heights: Array, places: Array, wanted: npt.ArrayLike) -> Array:
    """Height where each curve [B, K] is at its wanted place [] or [B]; on a vertical drop, at the bottom."""
    at = np.broadcast_to(np.asarray(wanted, dtype=np.float64), places.shape[:-1])
    # Shares are summed in different orders: a place is reached if it is, up to rounding.
    place = (places <= at[..., None] + 1e-12).sum(axis=-1, keepdims=True) - 1
    here, there = np.maximum(place, 0), np.minimum(place + 1, heights.shape[-1] - 1)
    pairs = np.concatenate([here, there], axis=-1)
    height, spot = np.take_along_axis(heights, pairs, -1), np.take_along_axis(places, pairs, -1)
    step = np.clip(divide(at - spot[..., 0], spot[..., 1] - spot[..., 0], empty=0.0), 0.0, 1.0)
    result: Array = height[..., 0] + step * (height[..., 1] - height[..., 0])
    return result
