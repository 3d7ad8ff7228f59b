"""Are the probabilities right? Proper scores, calibration at every boundary of urgency, and the order of a worklist.

A boundary k separates "at least as urgent as k" from the rest. Its probability, Q_k = Σ p_t over the classes t that are
at least as urgent, is what decisions about urgency use, so calibration is judged there. Tied classes share a boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.class_checks import names_by_rank
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import Labels
from pams_mil.metrics.probability import Names, Scores, labels_and_probabilities, pairs_won
from pams_mil.metrics.reduce import divide

_NORMAL_975 = 1.959963984540054
_TINY = 1e-300
"""A probability of 0 for what happened costs ln of this in NLL, not infinity."""


def nll(
    y_true: Labels, probabilities: Scores, hierarchy: ClassHierarchy, level: int = -1, *, labels: Names = None
) -> float:
    """Mean negative log-likelihood, −(1/N) Σ_i ln p_{i, t_i}; lower is better.

    >>> round(nll([0, 1], [[0.5, 0.5], [0.5, 0.5]], ClassHierarchy.flat(["benign", "malignant"])), 4)
    0.6931
    """
    true, p = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    return float(nll_losses(true, p).mean())


def nll_losses(true: Ints, p: Array) -> Array:
    """−ln p_{i, t_i} of every case, [n]."""
    return -np.log(np.maximum(p[np.arange(len(true)), true], _TINY))


def brier(
    y_true: Labels, probabilities: Scores, hierarchy: ClassHierarchy, level: int = -1, *, labels: Names = None
) -> float:
    """Brier score, (1/N) Σ_i Σ_r (p_ir − 1[t_i = r])², from 0 (best) to 2.

    >>> brier([0], [[0.75, 0.25]], ClassHierarchy.flat(["benign", "malignant"]))
    0.125
    """
    true, p = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    return float(brier_losses(true, p).mean())


def brier_losses(true: Ints, p: Array) -> Array:
    """Σ_r (p_ir − 1[t_i = r])² of every case, [n]."""
    losses: Array = ((p - np.eye(p.shape[1])[true]) ** 2).sum(axis=1)
    return losses


def rps(
    y_true: Labels, probabilities: Scores, hierarchy: ClassHierarchy, level: int = -1, *, labels: Names = None
) -> float:
    """Ranked probability score over the boundaries of urgency, from 0 (best) to 1; NaN when there is no boundary.

        RPS = (1/N) Σ_i (1/K) Σ_k (Q_ik − 1[t_i at least k])²,   K boundaries

    >>> rps([2], [[0.5, 0.0, 0.5]], ClassHierarchy.flat(["benign", "atypical", "malignant"]))  # (.25 + .25) / 2
    0.25
    """
    true, p = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    return float(rps_losses(true, p, hierarchy.ranks(level)).mean())


def rps_losses(true: Ints, p: Array, ranks: Ints) -> Array:
    """The ranked probability score of every case, [n]; NaN when there is no boundary."""
    reached, at_least = boundary_probabilities(true, p, ranks)
    return divide(((at_least - reached) ** 2).sum(axis=1), at_least.shape[1])


def worklist_c_index(
    y_true: Labels, probabilities: Scores, hierarchy: ClassHierarchy, level: int = -1, *, labels: Names = None
) -> float:
    """How often a list sorted by expected urgency puts the more urgent of two cases first; ties count half.

        P(s_i < s_j | t_j outranks t_i),   s = Σ_r p_r · rank_r

    NaN when all cases are equally urgent.

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> worklist_c_index([0, 1, 1], [[0.75, 0.25], [0.5, 0.5], [0.875, 0.125]], tree)
    0.5
    """
    true, p = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    ranks = hierarchy.ranks(level)
    score, rank = p @ ranks.astype(np.float64), ranks[true]
    won, pairs = 0.0, 0.0
    for urgent in np.unique(rank)[1:]:
        higher, lower = score[rank == urgent], score[rank < urgent]
        won += pairs_won(higher, lower)
        pairs += float(len(lower) * len(higher))
    return won / pairs if pairs else float("nan")


@dataclass(frozen=True)
class BoundaryCalibration:
    """Predicted against observed share of cases that are at least as urgent as a class.

    The first entry is all cases, the others are groups of rising predicted probability.
    """

    at_least: str
    n: Ints
    predicted: Array
    observed: Array
    low: Array
    high: Array


def boundary_calibration(
    y_true: Labels,
    probabilities: Scores,
    hierarchy: ClassHierarchy,
    level: int = -1,
    *,
    groups: int = 5,
    labels: Names = None,
) -> list[BoundaryCalibration]:
    """For every boundary: all cases, then equally large groups by predicted probability, with Wilson's 95 % interval.

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> calibration = boundary_calibration([0, 1], [[0.75, 0.25], [0.25, 0.75]], tree, groups=1)[0]
    >>> calibration.at_least, float(calibration.predicted[0]), float(calibration.observed[0])
    ('malignant', 0.5, 0.5)
    """
    if groups < 1:
        raise ParameterError(f"groups must be at least 1, found {groups!r}.")
    true, p = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    reached, at_least = boundary_probabilities(true, p, hierarchy.ranks(level))
    boundaries = []
    for column, name in enumerate(boundary_names(hierarchy, level)):
        order = np.argsort(at_least[:, column], kind="stable")
        pieces = [order] if groups == 1 else [order, *(rows for rows in np.array_split(order, groups) if rows.size)]
        n = np.asarray([len(rows) for rows in pieces], dtype=np.int64)
        predicted = np.asarray([at_least[rows, column].mean() for rows in pieces])
        events = np.asarray([reached[rows, column].sum() for rows in pieces], dtype=np.float64)
        low, high = wilson(events, n)
        boundaries.append(BoundaryCalibration(name, n, predicted, events / n, low, high))
    return boundaries


def boundary_names(hierarchy: ClassHierarchy, level: int = -1) -> list[str]:
    """What each boundary asks: at least as urgent as this class; tied classes are named together."""
    return [" / ".join(tied) for tied in names_by_rank(hierarchy.names(level), hierarchy.ranks(level))[1:]]


def boundary_probabilities(true: Ints, p: Array, ranks: Ints) -> tuple[npt.NDArray[np.bool_], Array]:
    """For every boundary: whether a case lies above it and with which probability, [n, K] each."""
    steps, first = np.unique(ranks, return_index=True)  # ranks ascend, so what is at least as urgent stands behind
    at_least: Array = np.cumsum(p[:, ::-1], axis=1)[:, ::-1][:, first[1:]]
    return ranks[true][:, None] >= steps[1:], at_least


def wilson(events: npt.ArrayLike, n: npt.ArrayLike) -> tuple[Array, Array]:
    """Wilson's 95 % interval of a share.

    >>> [round(float(bound), 3) for bound in wilson(8, 10)]
    [0.49, 0.943]
    """
    z2, count = _NORMAL_975**2, np.asarray(n, dtype=np.float64)
    share = divide(events, count)
    center = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _NORMAL_975 / (1 + z2 / count) * np.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return np.maximum(0.0, center - half), np.minimum(1.0, center + half)
