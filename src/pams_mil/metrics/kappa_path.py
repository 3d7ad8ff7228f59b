"""The decision path of every slide: which class is called when a missed urgency costs κ false alarms.

For probabilities p of a slide and a cost C `[true, predicted]`, 0 on its diagonal, split into misses and the rest,

    U[t, r] = C[t, r] where t outranks r, else 0          F = C − U
    d_κ = the last class r that minimizes F̄_r + κ Ū_r,    F̄_r = Σ_t p_t F[t, r],   Ū_r = Σ_t p_t U[t, r],   κ in [0, ∞]

"Last" is the most urgent of several minimizers. d_∞ is the most urgent class, whatever the probabilities. Without a
cost every mistake counts 1 (C = 1 − I); then κ = 1 is the most probable class.

Where missing t costs no more the nearer the call comes to t, Ū_r never grows with r, so the call never falls when κ
grows. A slide's whole path is then one threshold per class: the smallest κ at which the call is at least that class.
The thresholds are the corners of the lower envelope of C lines in κ with intercepts F̄_r and slopes Ū_r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.probability import check_probabilities, class_columns
from pams_mil.severity import check_cost


@dataclass(frozen=True)
class DecisionPath:
    """The calls of n slides at every κ.

    Attributes:
        reach: [n, C], the smallest κ at which a slide's call is class c or a later one: 0 for what is called from the
            start, inf for what only κ = ∞ calls, NaN for what is never called (a class tied with the most urgent one).
            Each row ascends.
        ranks: [C], the classes' urgency.
    """

    reach: Array
    ranks: Ints

    def __len__(self) -> int:
        return len(self.reach)

    def calls(self, kappa: float) -> Ints:
        """Class indices [n] at one κ from 0 to inf."""
        if not kappa >= 0:
            raise ParameterError(f"kappa must be a number from 0 to inf, found {kappa!r}.")
        # Rows ascend and NaN compares as false, so the number of thresholds passed is the place of the call.
        called: Ints = (self.reach <= kappa).sum(axis=1) - 1
        return called

    def rises(self, row: int) -> list[tuple[float, int]]:
        """Where one slide's call changes: (κ, class called from there on), the first at κ = 0."""
        _, called, kappa = self.take(np.array([row])).breakpoints()
        return list(zip(kappa.tolist(), called.tolist(), strict=True))

    def breakpoints(self) -> tuple[Ints, Ints, Array]:
        """`rises` of all slides, one after the other: how many each has, the classes called, and the κ they begin at.

        >>> path = DecisionPath(np.array([[0.0, 1.5, 1.5], [0.0, 0.0, 2.0]]), np.arange(3))
        >>> [column.tolist() for column in path.breakpoints()]
        [[2, 2], [0, 2, 1, 2], [0.0, 1.5, 0.0, 2.0]]
        """
        # A class is called from its threshold on unless the next one begins there too.
        beyond = np.concatenate([self.reach[:, 1:], np.full((len(self), 1), np.nan)], axis=1)
        called = ~np.isnan(self.reach) & (self.reach != beyond)
        row, column = np.nonzero(called)
        return called.sum(axis=1), column, self.reach[row, column]

    def kappa_to_reach(self, target: npt.ArrayLike) -> Array:
        """The smallest κ at which slide i is called at least as urgent as class `target[i]`, [n].

        With the true classes: slide i is missed exactly for κ below this. It is inf where only κ = ∞ helps.
        """
        # Any class of the same rank is urgent enough, so the first of them counts.
        first = np.searchsorted(self.ranks, self.ranks, side="left")  # ranks ascend: tied classes stand side by side
        return self._at(first[self._classes(target)])

    def kappa_to_exceed(self, target: npt.ArrayLike) -> Array:
        """The smallest κ at which slide i is called more urgent than class `target[i]`, [n]; NaN where nothing is.

        With the true classes: slide i is a false alarm exactly for κ from here on.
        """
        beyond = np.searchsorted(self.ranks, self.ranks, side="right")[self._classes(target)]
        most = self.reach.shape[1] - 1
        return np.where(beyond > most, np.nan, self._at(np.minimum(beyond, most)))

    def take(self, rows: npt.NDArray[Any]) -> DecisionPath:
        """The path of chosen slides."""
        return DecisionPath(self.reach[rows], self.ranks)

    def _at(self, classes: Ints) -> Array:
        kappa: Array = self.reach[np.arange(len(self)), classes]
        return kappa

    def _classes(self, target: npt.ArrayLike) -> Ints:
        index = np.asarray(target)
        if index.shape != (len(self),) or not np.issubdtype(index.dtype, np.integer):
            raise ParameterError(
                f"Expected {len(self)} class indices, one per slide, found {index.dtype} of shape {index.shape}."
            )
        if index.size and (index.min() < 0 or index.max() >= len(self.ranks)):
            raise ParameterError(
                f"Class indices must be from 0 to {len(self.ranks) - 1}, found {index.min()} to {index.max()}."
            )
        return index.astype(np.int64)


def decision_path(
    probabilities: npt.ArrayLike, hierarchy: ClassHierarchy, *, level: int = -1, cost: npt.ArrayLike | None = None
) -> DecisionPath:
    """What is called at every κ, exactly and without a grid.

    Args:
        probabilities: [n, C], rows that sum to 1, of the classes at `level`.
        hierarchy: Order and ties of the classes.
        level: The level that the probabilities are of.
        cost: What a mistake costs at κ = 1, `[true, predicted]`, 0 on the diagonal; default 1 for every mistake.
            Missing a class must not cost more when the call is more urgent, else the call could fall while κ grows.

    >>> tree = ClassHierarchy.flat(["benign", "atypical", "malignant"])
    >>> path = decision_path([[0.5, 0.25, 0.25]], tree)
    >>> path.rises(0)  # atypical is never the cheapest call; malignant is from κ = 1 + (.5 − .25) / (.25 + .25) on
    [(0.0, 0), (1.5, 2)]
    >>> [int(path.calls(kappa)[0]) for kappa in (0, 1, 1.5, float("inf"))]
    [0, 0, 2, 2]
    """
    p = check_probabilities(class_columns(probabilities, hierarchy, level)[0], hierarchy.num_classes(level))
    size, outranks = p.shape[1], hierarchy.outranks(level)
    unit = 1.0 - np.eye(size)
    total = unit if cost is None else check_cost(cost, size, zero_diagonal=True)
    # Mistakes between tied classes are no misses: they stay in F and cost the same at every κ.
    misses = np.where(outranks, total, 0.0)
    _check_monotone(misses, outranks, hierarchy.names(level))
    alarm, miss = _weighted(p, total - misses), _weighted(p, misses)
    # At κ = 1 only differences between calls count, so the same may be taken off a whole row of the cost. Taking off
    # its largest entry leaves exactly −p for unit costs: comparisons at κ = 1 are then comparisons of probabilities.
    at_one = _weighted(p, total - total.max(axis=1, keepdims=True))
    ranks = hierarchy.ranks(level)
    return DecisionPath(_thresholds(alarm, miss, at_one, ranks), ranks)


def _weighted(p: Array, cost: Array) -> Array:
    """Σ_t p_t C[t, r], always added in the same order.

    Unlike a matrix product it gives equal rows and equal columns equal sums, and keeps Ū monotone to the last bit.
    """
    sums = np.zeros_like(p)
    # From the most urgent class down: Ū_r is then Ū_(r+1) with one more term, which rounding cannot make smaller.
    for t in range(p.shape[1] - 1, -1, -1):
        sums += p[:, t, None] * cost[t]
    return sums


def _thresholds(alarm: Array, miss: Array, at_one: Array, ranks: Ints) -> Array:
    """Walk along every slide's lower envelope at once, from the cheapest call at κ = 0 to ever more urgent ones."""
    n, size = alarm.shape
    reach = np.full((n, size), np.nan)
    now = _last_smallest(alarm)
    reach[np.arange(n), now] = 0.0
    # `row` holds the slides that are still on their way; one drops out when no later class misses less.
    row, kappa = np.arange(n), np.zeros(n)
    for _ in range(size - 1):
        call = now[row][:, None]
        saved = np.take_along_axis(miss[row], call, 1) - miss[row]  # how much less a later class misses
        later = (np.arange(size) > call) & (saved > 0)
        moving = later.any(axis=1)
        if not moving.any():
            break
        row, call, saved, later = row[moving], call[moving], saved[moving], later[moving]
        # Where a class is not a candidate, 1 keeps the division quiet; its crossing is not looked at.
        crossing = _crossings(alarm[row], at_one[row], call, np.where(later, saved, 1.0))
        nearest = np.where(later, crossing, np.inf).min(axis=1, keepdims=True)
        # Several may cross at once. After the crossing the last of them is cheapest; before κ = 1, where crossings that
        # differ may round to the same number, it is the cheapest at κ = 1 (of equals, the last).
        rival = np.where(nearest <= 1, at_one[row], 0.0)
        now[row] = _last_smallest(np.where(later & (crossing == nearest), rival, np.inf))
        # Rounding may put a crossing just before the one already passed; a path must not turn back.
        kappa[row] = np.maximum(kappa[row], nearest[:, 0])
        reach[row, now[row]] = kappa[row]
    # κ = ∞ is defined, not computed: ∞ times a miss probability of 0 would say nothing.
    most_urgent = ranks == ranks[-1]
    last = _last_smallest(np.where(most_urgent, alarm, np.inf))  # d_∞; of tied classes the likeliest
    # fmin prefers numbers to NaN: a finite threshold stays, what was never reached is reached at ∞.
    reach[np.arange(n), last] = np.fmin(reach[np.arange(n), last], np.inf)
    # a class that the envelope skips is reached together with the next one called
    filled: Array = np.fmin.accumulate(reach[:, ::-1], axis=1)[:, ::-1]
    return filled


def _crossings(alarm: Array, at_one: Array, call: Ints, saved: Array) -> Array:
    """The κ at which each class becomes as cheap as the call, [n, C].

    The same number twice, with D = Ū_r − Ū_s saved: (F̄_s − F̄_r) / D, exact near 0, and 1 + (difference at κ = 1) / D,
    exact about the side of 1 on which it lies, so that rounding cannot change the call at κ = 1.
    """
    small = (alarm - np.take_along_axis(alarm, call, 1)) / saved
    side = (at_one - np.take_along_axis(at_one, call, 1)) / saved
    # 1 + a tiny difference rounds to 1, where the later class would be called although it costs more.
    large = np.where(side > 0, np.maximum(1.0 + side, np.nextafter(1.0, 2.0)), 1.0 + side)
    return np.where(small < 0.5, small, large)


def _last_smallest(values: Array) -> Ints:
    """Index of each row's smallest value, the last of several."""
    index: Ints = values.shape[1] - 1 - values[:, ::-1].argmin(axis=1)
    return index


def _check_monotone(misses: Array, outranks: npt.NDArray[np.bool_], names: tuple[str, ...]) -> None:
    grows = (np.diff(misses, axis=1) > 0) & outranks[:, 1:]
    if grows.any():
        t, r = (int(index) for index in np.argwhere(grows)[0])
        raise ParameterError(
            f"Missing {names[t]!r} costs {misses[t, r]:g} when {names[r]!r} is called, but {misses[t, r + 1]:g} when "
            f"{names[r + 1]!r} is. Then a call could become less urgent although misses weigh more, and no single κ "
            "orders the decisions. Give misses a cost that does not grow towards the true class."
        )
