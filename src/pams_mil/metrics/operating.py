"""Missed urgency against false alarms at every operating point, and what one number can say about the whole curve.

With d_κ of `kappa_path`, for true classes t:

    missed U(κ) = share of cases that d_κ calls too low,      false alarms O(κ) = share that it calls too high

The curve runs from "call everything the least urgent class" (no false alarms) over κ = 0 ... ∞ to "call everything the
most urgent class" (nothing missed). A case changes at most twice on the way: it stops being missed at one κ and becomes
a false alarm at another. Sorted once, these give the curve of any weighting of the cases by two cumulative sums.

Whether it was worth deciding by the model, expected cost and net benefit say as functions of κ. Expected cost compares
the model with the best constant call; net benefit, of decision curve analysis, compares "act when at least this urgent"
with acting always and never.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import Labels
from pams_mil.metrics.kappa_path import DecisionPath, decision_path
from pams_mil.metrics.probability import Names, Scores, labels_and_probabilities
from pams_mil.metrics.proper import boundary_names, boundary_probabilities
from pams_mil.metrics.reduce import divide


@dataclass(frozen=True)
class OperatingCurve:
    """Points [K] in the order of κ; the first is the constant least urgent call (κ = −inf), the last κ = inf."""

    kappa: Array
    missed: Array
    false_alarms: Array

    def missed_at(self, false_alarms: npt.ArrayLike) -> Array:
        """The share missed at the operating point with these false alarms (between two points: a mix of both)."""
        return missed_at(self.missed, self.false_alarms, false_alarms)

    def false_alarms_at(self, missed: npt.ArrayLike) -> Array:
        """The fewest false alarms with which no more than this share is missed."""
        # Seen from the other end, misses grow and false alarms fall.
        return missed_at(self.false_alarms[::-1], self.missed[::-1], missed)

    def kappa_at(self, false_alarms: float) -> float:
        """The largest κ on this curve that raises no more than this share of false alarms, to be used on other slides.

        Choose it on validation slides and decide the test slides with it; 0 if even the first point raises more.
        """
        place = int(np.searchsorted(self.false_alarms, false_alarms, side="right")) - 1
        return max(0.0, float(self.kappa[place])) if place >= 0 else 0.0

    def at(self, kappa: float) -> tuple[float, float]:
        """(missed, false alarms) when a miss costs κ false alarms."""
        # Right-continuous: at a κ of the curve the calls have already changed.
        place = int(np.searchsorted(self.kappa, kappa, side="right")) - 1
        return float(self.missed[place]), float(self.false_alarms[place])


def exact_curve(path: DecisionPath, target: Ints, weights: Array | None = None) -> OperatingCurve:
    """The curve of cases, of which each counts once or by its weight."""
    ranks, weight = path.ranks[target], np.ones(len(target)) if weights is None else weights
    # The least urgent cannot be missed, and nothing is more urgent than the most urgent.
    missable, alarming = np.flatnonzero(ranks > path.ranks[0]), np.flatnonzero(ranks < path.ranks[-1])
    reached, raised = path.kappa_to_reach(target)[missable], path.kappa_to_exceed(target)[alarming]
    kappa = np.unique(np.concatenate([reached, raised, [1.0, np.inf]]))  # the most probable class is always marked

    def changed(events: Array, of: Array) -> Array:
        """The share of the weight that has changed at each κ; the first 0 is the constant call at κ = −∞."""
        order = np.argsort(events, kind="stable")
        place = np.searchsorted(events[order], kappa, side="right")
        return np.asarray(np.append(0.0, np.cumsum(of[order]))[np.append(0, place)] / weight.sum())

    caught = changed(reached, weight[missable])
    # Missed is what could be missed less what has been caught by then.
    return OperatingCurve(np.append(-np.inf, kappa), caught[-1] - caught, changed(raised, weight[alarming]))


def operating_curve(
    y_true: Labels,
    probabilities: Scores,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    cost: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
    labels: Names = None,
) -> OperatingCurve:
    """Missed urgency and false alarms at every κ, as shares of all cases.

    Args:
        y_true: Class names, or positions in the order of urgency (0: least urgent), of `level`.
        probabilities: [n, C] of the classes at `level`.
        hierarchy: Order and ties of the classes.
        level: The level that labels and probabilities are of.
        cost: What mistakes cost in the decision at κ = 1, see `decision_path`; the curve counts cases all the same.
        weights: How often each case counts; default once.
        labels: The classes of the columns, e.g. `classifier.classes_`; a frame's columns name themselves.

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> curve = operating_curve([0, 1, 1], [[0.75, 0.25], [0.5, 0.5], [0.875, 0.125]], tree)
    >>> curve.kappa.tolist(), curve.missed.round(2).tolist(), curve.false_alarms.round(2).tolist()
    ([-inf, 1.0, 3.0, 7.0, inf], [0.67, 0.33, 0.33, 0.0, 0.0], [0.0, 0.0, 0.33, 0.33, 0.33])
    """
    target, p = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    path = decision_path(p, hierarchy, level=level, cost=cost)
    return exact_curve(path, target, _weights(weights, len(target)))


def urgency_auc(
    y_true: Labels,
    probabilities: Scores,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    max_false_alarms: float | None = None,
    weights: npt.ArrayLike | None = None,
    labels: Names = None,
) -> float:
    """How well probabilities trade missed urgency against false alarms at all operating points; higher is better.

        urgency AUC = 1 − A / (2 A₀),   A = ∫ U dO along the curve,   A₀ = the same for calls that ignore the case

    A₀ is the area under the lower hull of the constant calls (P[t < r], P[t > r]). With two classes this is the AUC. It
    is 1 when the classes are told apart completely, ½ for the class shares as probabilities of every case (with more
    than two classes other constants may do worse), and NaN when all cases are equally urgent.

    Args:
        y_true: Class names, or positions in the order of urgency (0: least urgent), of `level`.
        probabilities: [n, C] of the classes at `level`.
        hierarchy: Order and ties of the classes.
        level: The level that labels and probabilities are of.
        max_false_alarms: Only that part of the curve, as a share of all cases; both areas are cut there.
        weights: How often each case counts; default once.
        labels: The classes of the columns, e.g. `classifier.classes_`; a frame's columns name themselves.

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> urgency_auc([0, 1, 1], [[0.75, 0.25], [0.5, 0.5], [0.875, 0.125]], tree)
    0.5
    """
    if max_false_alarms is not None and not max_false_alarms > 0:
        raise ParameterError(f"max_false_alarms must be a share above 0, found {max_false_alarms!r}.")
    target, p = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    weight = _weights(weights, len(target))
    curve = exact_curve(decision_path(p, hierarchy, level=level), target, weight)
    chance = constant_hull(class_shares(target, weight, hierarchy.ranks(level)))
    return float(curve_auc(curve.missed, curve.false_alarms, chance, max_false_alarms))


def curve_auc(missed: Array, false_alarms: Array, chance: tuple[Array, Array], most: float | None = None) -> Array:
    """1 − A / (2 A₀) of curves [..., K] up to `most` false alarms; `chance` is the curve under which A₀ lies."""
    return 1.0 - divide(area(missed, false_alarms, most), 2.0 * area(*chance, most))


def class_shares(target: Ints, weights: npt.NDArray[np.generic], ranks: Ints) -> Array:
    """The weight of each rank as a share, [..., R], least urgent first, for weights [..., n]."""
    # [R, n], so that one product sums the weights of every rank for all weightings at once
    of_rank = np.unique(ranks)[:, None] == ranks[target]
    sums: Array = np.asarray(weights, dtype=np.float64) @ of_rank.T.astype(np.float64)
    shares: Array = sums / sums.sum(axis=-1, keepdims=True)
    return shares


def constant_calls(shares: Array) -> tuple[Array, Array]:
    """(missed, false alarms) when every case is called the same, for each rank: P[t > r] and P[t < r]."""
    # Summed from either end, not as 1 − the other: a constant call without a mistake must come out as exactly 0.
    below, above = np.zeros_like(shares), np.zeros_like(shares)
    below[..., 1:] = np.cumsum(shares[..., :-1], axis=-1)
    above[..., :-1] = np.cumsum(shares[..., :0:-1], axis=-1)[..., ::-1]
    return above, below


def constant_hull(shares: Array) -> tuple[Array, Array]:
    """The lower hull of the constant calls, at their false alarms: the best constant call or mix of two."""
    missed, alarms = constant_calls(shares)
    return lower_hull(missed, alarms), alarms


def lower_hull(missed: Array, alarms: Array) -> Array:
    """Points [..., R] in the order of their false alarms, lowered to where a mix of two others lies below them."""
    x, y = alarms.reshape(-1, alarms.shape[-1]), missed.reshape(-1, missed.shape[-1])
    every, size = np.arange(len(x)), x.shape[-1]
    # A monotone chain of all curves at once: each corner knows the one before it, and is dropped when a later point
    # turns it into a bulge.
    before, corner = np.zeros((len(x), size), dtype=np.int64), np.zeros(len(x), dtype=np.int64)
    on = np.ones((len(x), size), dtype=bool)
    for point in range(1, size):
        rows = every
        while len(rows):
            last, first = corner[rows], before[rows, corner[rows]]
            run, rise = x[rows, last] - x[rows, first], y[rows, last] - y[rows, first]
            bulge = rise * (x[rows, point] - x[rows, first]) >= (y[rows, point] - y[rows, first]) * run
            drop = (last > 0) & bulge
            on[rows[drop], last[drop]] = False
            rows = rows[drop]
            corner[rows] = before[rows, corner[rows]]
        before[:, point] = corner
        corner[:] = point
    places = np.arange(size)
    left = np.maximum.accumulate(np.where(on, places, 0), axis=1)
    right = np.minimum.accumulate(np.where(on, places, size - 1)[:, ::-1], axis=1)[:, ::-1]
    (x0, x1), (y0, y1) = ([np.take_along_axis(values, end, 1) for end in (left, right)] for values in (x, y))
    hull = y0 + divide(x - x0, x1 - x0, empty=0.0) * (y1 - y0)
    return np.fmin(missed, hull.reshape(missed.shape))


def missed_at(missed: Array, false_alarms: Array, wanted: npt.ArrayLike) -> Array:
    """Missed where one curve [K] has the wanted false alarms [...]; where it falls straight down, at the bottom."""
    # Of several points at one place `interp` takes the last, which on a vertical drop is its lower end.
    return np.asarray(np.interp(np.asarray(wanted, dtype=np.float64), false_alarms, missed))


def area(missed: Array, false_alarms: Array, most: float | None = None) -> Array:
    """∫ U dO of curves [..., K] by trapezoids, up to `most` false alarms."""
    width, height = np.diff(false_alarms, axis=-1), missed[..., 1:] + missed[..., :-1]
    if most is None:
        return np.asarray(0.5 * (width * height).sum(axis=-1))
    inside = np.diff(np.minimum(false_alarms, most), axis=-1)
    fraction = divide(inside, width, empty=0.0)
    # The trapezoid that `most` cuts ends at the height that its sloping side has come to there.
    height = 2.0 * missed[..., :-1] + fraction * np.diff(missed, axis=-1)
    return np.asarray(0.5 * (inside * height).sum(axis=-1))


def _weights(weights: npt.ArrayLike | None, n: int) -> Array:
    if weights is None:
        return np.ones(n)
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (n,) or not np.isfinite(array).all() or (array < 0).any() or not array.sum() > 0:
        raise ParameterError(f"weights must be {n} finite numbers of at least 0, not all 0.")
    return array


def normalized_cost(cost: npt.ArrayLike, shares: Array, kappas: npt.ArrayLike) -> Array:
    """Expected cost O + κ U of deciding with each κ over that of the best constant call; below 1 the model helps.

        NEC(κ) = [O(κ) + κ U(κ)] / min_r [P(t < r) + κ P(t > r)]

    NaN where a constant call makes no mistake. `shares` are those of the ranks, least urgent first.

    >>> normalized_cost([0.25, 1.25], np.array([0.25, 0.75]), [1, 4]).tolist()  # calling all malignant costs 1/4
    [1.0, 5.0]
    """
    missed, alarms = constant_calls(shares)
    # The best constant is chosen for each κ: from calling all least urgent to calling all most urgent.
    return divide(cost, (alarms + check_kappas(kappas)[:, None] * missed).min(axis=1))


@dataclass(frozen=True)
class NetBenefit:
    """Net benefit at each κ, [K], of acting on the model, always, and never (0)."""

    at_least: str
    prevalence: float
    model: Array
    always: Array


def net_benefit(
    y_true: Labels,
    probabilities: Scores,
    hierarchy: ClassHierarchy,
    kappas: npt.ArrayLike,
    level: int = -1,
    *,
    labels: Names = None,
) -> list[NetBenefit]:
    """For every boundary of urgency, acting on cases whose probability of lying above it is at least 1/(1 + κ).

        NB = TP/n − (FP/n) / κ

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> benefit = net_benefit([0, 1], [[0.75, 0.25], [0.25, 0.75]], tree, [1, 4])[0]
    >>> benefit.model.tolist(), benefit.always.tolist()
    ([0.5, 0.375], [0.0, 0.375])
    """
    true, p = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    kappa = check_kappas(kappas)
    reached, at_least = boundary_probabilities(true, p, hierarchy.ranks(level))
    curves = []
    for column, name in enumerate(boundary_names(hierarchy, level)):
        act = at_least[:, column, None] >= 1.0 / (1.0 + kappa)
        event = reached[:, column, None]
        prevalence = float(event.mean())
        # p_t / (1 − p_t) with the threshold p_t = 1/(1 + κ) is 1/κ.
        model = (act & event).mean(axis=0) - (act & ~event).mean(axis=0) / kappa
        curves.append(NetBenefit(name, prevalence, model, prevalence - (1.0 - prevalence) / kappa))
    return curves


def check_kappas(kappas: npt.ArrayLike) -> Array:
    """κ as a list of finite numbers above 0."""
    kappa = np.atleast_1d(np.asarray(kappas, dtype=np.float64))
    if kappa.ndim != 1 or not np.isfinite(kappa).all() or (kappa <= 0).any():
        raise ParameterError(f"kappas must be finite numbers above 0, found {kappas!r}.")
    return kappa
