"""Every class-by-class matrix, always `[true, predicted]`.

Two families, two purposes:
    * M, the loss weight of MSCE: 1 unless the true class outranks the predicted one.
    * W, the metric weight of AsCC and AsMC: 1 on the diagonal, growing with the distance between the
      classes and by a penalty P when the true class outranks the predicted one.

Tied classes differ in index but neither outranks the other, so only the distance counts between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.class_checks import Level
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy

Distance = Literal["auto", "product", "power", "rank"]
Orientation = Literal["intended", "literal"]

PENALTY = 2.0
"""P, the paper's extra distance for a missed urgency."""


MANY_CLASSES = 30
"""Above, α·|t − r| would weigh a miss a hundredfold, and the model that learns it calls everything urgent."""


def resolved_distance(hierarchy: ClassHierarchy, level: int, distance: Distance) -> Distance:
    """The distance that "auto" stands for at a level."""
    if distance not in get_args(Distance):
        raise ParameterError(f"distance must be 'auto', 'product', 'power' or 'rank', found {distance!r}.")
    if distance != "auto":
        return distance
    return "rank" if hierarchy.num_classes(level) > MANY_CLASSES else "product"


def loss_weight(
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    alpha: float = 1.6,
    distance: Distance = "auto",
    orientation: Orientation = "intended",
) -> Array:
    """M, how much more a missed urgency weighs in the loss.

        M[t, r] = α·|t − r|   if t outranks r   (or α^|t − r| with distance="power")
                = 1           otherwise

    With distance="rank" and R ranks ρ, M[t, r] = 1 + α (ρ_t − ρ_r) / (R − 1) if t outranks r: at most 1 + α, however
    many classes there are. "auto" is the product for up to MANY_CLASSES classes of the level, and "rank" for more.

    Of several orders of urgency it is the mean of their matrices: what all of them agree on stays true.

    `orientation="literal"` is the printed index order, which punishes false alarms instead; for ablation only.

    >>> loss_weight(ClassHierarchy.flat(["benign", "atypical", "malignant"])).tolist()
    [[1.0, 1.0, 1.0], [1.6, 1.0, 1.0], [3.2, 1.6, 1.0]]
    """
    if not np.isfinite(alpha) or alpha <= 1:
        raise ParameterError(f"alpha must be a finite number above 1, found {alpha!r}.")
    distance = resolved_distance(hierarchy, level, distance)
    if orientation not in ("intended", "literal"):
        raise ParameterError(f"orientation must be 'intended' or 'literal', found {orientation!r}.")
    if hierarchy.other_orders:
        options: dict[str, Any] = {"alpha": alpha, "distance": distance, "orientation": orientation}
        by_order = [
            loss_weight(one, at, **options)[np.ix_(place, place)] for one, at, place in orders_at(hierarchy, level)
        ]
        return np.asarray(np.mean(by_order, axis=0))
    steps = hierarchy.distance(level).astype(np.float64)
    if distance == "rank":
        place = scaled_ranks(hierarchy, level)
        scaled = 1.0 + alpha * (place[:, None] - place[None, :])
    else:
        scaled = alpha * steps if distance == "product" else alpha**steps
    weight = np.where(hierarchy.outranks(level), scaled, 1.0)
    return weight if orientation == "intended" else weight.T.copy()


def scaled_ranks(hierarchy: ClassHierarchy, level: int = -1) -> Array:
    """The urgency of every class from 0 to 1 in equal steps, [C].

    >>> scaled_ranks(ClassHierarchy.of(["a", ["b", "c"], "d"])).tolist()
    [0.0, 0.5, 0.5, 1.0]
    """
    place = hierarchy.ranks(level).astype(np.float64)
    scaled: Array = place / max(1.0, place.max())
    return scaled


def orders_at(hierarchy: ClassHierarchy, level: int = -1) -> list[tuple[ClassHierarchy, int, Ints]]:
    """Every order that ranks the classes of a level: the order, its level with the same groups, and their places there.

    An order without these groups says nothing about which of them is more urgent.

    >>> tree = ClassHierarchy.of({"low": ["a"], "high": ["b", "c"]}).with_orders(ClassHierarchy.flat("acb"))
    >>> [(at, place.tolist()) for order, at, place in orders_at(tree)], len(orders_at(tree, 0))
    ([(1, [0, 1, 2]), (0, [0, 2, 1])], 1)
    """
    wanted, matching = _members(hierarchy, hierarchy.level(level)), []
    for order in hierarchy.orders:
        for at in reversed(range(order.num_levels)):
            members = _members(order, at)
            if set(members) == set(wanted):
                matching.append((order, at, np.array([members.index(one) for one in wanted], dtype=np.int64)))
                break
    return matching


def ranks_by_order(hierarchy: ClassHierarchy) -> Ints:
    """The urgency of the finest classes in every order, [J, C].

    >>> ranks_by_order(ClassHierarchy.flat("abc").with_orders(ClassHierarchy.flat("acb"))).tolist()
    [[0, 1, 2], [0, 2, 1]]
    """
    return np.stack([order.ranks(at)[place] for order, at, place in orders_at(hierarchy)])


def _members(hierarchy: ClassHierarchy, level: int) -> list[frozenset[str]]:
    """The finest classes below every class of a level."""
    below: list[set[str]] = [set() for _ in hierarchy.names(level)]
    for name, group in zip(hierarchy.classes, hierarchy.groups(level), strict=True):
        below[group].add(name)
    return list(map(frozenset, below))


def boundary_costs(hierarchy: ClassHierarchy, kappas: Mapping[str, float], overall: float) -> list[list[list[float]]]:
    """M of every level, coarsest first, whose implied cost of crossing each boundary of urgency is a given κ.

        M[t, r] = 1 + Σ_{boundaries k between r and t} (m_k − 1) if t outranks r, else 1
        m_k = max(1, 1 + 2 (κ_k − 1) / (1 + ln 2)),   the weight whose `implied_cost` is κ_k

    What the hierarchy says stays true whatever the κ: a miss across more boundaries never weighs less.

    Args:
        hierarchy: The classes.
        kappas: κ of the boundary below a class, by the name of the least urgent class above it.
        overall: κ of boundaries that are not named.

    >>> boundary_costs(ClassHierarchy.flat(["a", "b", "c"]), {"c": 1.0}, 1 + (1 + np.log(2.0)) / 2)
    [[[1.0, 1.0, 1.0], [2.0, 1.0, 1.0], [2.0, 1.0, 1.0]]]
    """
    unknown = [name for name in kappas if name not in hierarchy.classes]
    if unknown:
        raise ParameterError(f"{unknown[0]!r} is not a class of {hierarchy.name!r}.")
    if hierarchy.other_orders:  # the mean of their costs; boundaries are named for the first order alone
        by_order = [boundary_costs(one, {} if at else kappas, overall) for at, one in enumerate(hierarchy.orders)]
        return [_mean_costs(hierarchy, level, by_order) for level in range(hierarchy.num_levels)]
    ranks, names = hierarchy.ranks(), hierarchy.classes
    first = {int(rank): name for rank, name in reversed(list(zip(ranks, names, strict=True)))}
    step = np.zeros(len(names))  # how much a miss gains by crossing the boundary below each rank, at its first class
    for rank in sorted(first)[1:]:
        kappa = kappas.get(first[rank], overall)
        step[names.index(first[rank])] = max(0.0, 2.0 * (kappa - 1.0) / (1.0 + np.log(2.0)))
    height = np.cumsum(step)[np.searchsorted(ranks, ranks)]
    costs = []
    for level in range(hierarchy.num_levels):
        lowest = np.searchsorted(hierarchy.groups(level), np.arange(hierarchy.num_classes(level)))
        gain = height[lowest][:, None] - height[lowest][None, :]
        costs.append(np.where(hierarchy.outranks(level), 1.0 + np.maximum(gain, 0.0), 1.0).tolist())
    return costs


def _mean_costs(hierarchy: ClassHierarchy, level: int, by_order: list[list[list[list[float]]]]) -> list[list[float]]:
    costs_of = {order.digest: costs for order, costs in zip(hierarchy.orders, by_order, strict=True)}
    own = [np.array(costs_of[one.digest][at])[np.ix_(place, place)] for one, at, place in orders_at(hierarchy, level)]
    mean: list[list[float]] = np.mean(own, axis=0).tolist()
    return mean


def metric_weight(hierarchy: ClassHierarchy, level: int = -1, *, penalty: float = PENALTY) -> Array:
    """W, how grave a mistake is in AsCC and AsMC: the asymmetric wheel.

        W[t, r] = 1 + |t − r| + P · 1[t outranks r]

    >>> metric_weight(ClassHierarchy.flat(["benign", "atypical", "malignant"])).tolist()
    [[1.0, 2.0, 3.0], [4.0, 1.0, 2.0], [5.0, 4.0, 1.0]]
    """
    if not np.isfinite(penalty) or penalty < 0:
        raise ParameterError(f"penalty must be a finite number of at least 0, found {penalty!r}.")
    weight: Array = 1.0 + hierarchy.distance(level) + penalty * hierarchy.outranks(level)
    return weight


def with_nothing(hierarchy: ClassHierarchy) -> ClassHierarchy:
    """The classes with "nothing found" as the first of them: as they are where they name it, else one step below all.

    >>> with_nothing(ClassHierarchy.flat(["UDH", "DCIS"], findings="several")).distance()[0].tolist()
    [0, 1, 2]
    """
    if hierarchy.nothing:
        return hierarchy
    names, ranks = hierarchy.classes, hierarchy.levels[-1].ranks
    level = Level((f"no {' or '.join(names)}", *names), (0,) * (len(names) + 1), (0, *(rank + 1 for rank in ranks)))
    return ClassHierarchy(hierarchy.name, (level,), distance_by=hierarchy.distance_by)


def symmetric_weight(hierarchy: ClassHierarchy, level: int = -1) -> Array:
    """W without a penalty, as ECC and EMC use it: 1 + |t − r|."""
    return metric_weight(hierarchy, level, penalty=0.0)


def lca_cost(hierarchy: ClassHierarchy, level: int = -1) -> Array:
    """Height of the lowest common ancestor over the tree's height: 0 for the same class, 1 at the root.

    >>> lca_cost(ClassHierarchy.load("bracs"))[0, [0, 1, 6]].tolist()
    [0.0, 0.5, 1.0]
    """
    height: Array = hierarchy.lca_height(level) / (hierarchy.level(level) + 1)
    return height


def implied_cost(severity: npt.ArrayLike, *, detach_weight: bool = False) -> Array:
    """C, the cost `[true, predicted]` that the most probable class of a model trained by MSCE minimizes in effect.

        C[t, r] = ½ [(1 + ln 2) M[t, r] + (1 − ln 2) M[t, t]],   C[t, t] = 0
        C[t, r] = ½ [M[t, r] + M[t, t]]                          with `detach_weight`

    With two classes this is exact in the population: at p = (½, ½) the gradient of MSCE vanishes where C[1, 0] times
    the probability of class 1 equals C[0, 1] times that of class 0. A missed urgency of weight m = M[t, r] thus counts
    1 + (m − 1)(1 + ln 2)/2 false alarms. With more classes it is an approximation. Give it to `least_risk` to decide
    cross-entropy's probabilities nearly as MSCE would.

    >>> M = loss_weight(ClassHierarchy.flat(["benign", "atypical", "malignant", "invasive"]))
    >>> implied_cost(M)[3].round(2).tolist()
    [4.22, 2.86, 1.51, 0.0]
    """
    M = check_cost(severity, len(np.atleast_1d(np.asarray(severity))), zero_diagonal=False)
    lean = 0.0 if detach_weight else np.log(2.0)
    cost: Array = 0.5 * ((1.0 + lean) * M + (1.0 - lean) * np.diagonal(M)[:, None])
    np.fill_diagonal(cost, 0.0)
    return cost


def check_cost(cost: npt.ArrayLike, num_classes: int, *, zero_diagonal: bool) -> Array:
    """A user's cost matrix `[true, predicted]`, or an error that says what is wrong with it."""
    try:
        matrix = np.asarray(cost, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"cost must be a matrix [true, predicted] of numbers: {error}.") from error
    if matrix.shape != (num_classes, num_classes):
        raise ParameterError(
            f"cost must be a {num_classes} x {num_classes} matrix [true, predicted], found shape {matrix.shape}."
        )
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise ParameterError("cost must hold finite numbers of at least 0.")
    if zero_diagonal and np.diagonal(matrix).any():
        raise ParameterError("cost must be 0 on its diagonal: a correct prediction costs nothing.")
    return matrix
