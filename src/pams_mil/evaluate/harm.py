"""How much do conclusions depend on the assumed harm? Scores under other penalties and other orders of urgency.

The penalty P and the order of the classes are judgements. Before a ranking of models is believed, it should be
seen how it changes when P changes, or when two neighboring classes trade places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.evaluate.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy, DistanceBy
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.table import FACTS, LabelMetrics
from pams_mil.severity import PENALTY

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Assumption:
    """One set of harm assumptions, and every model's score and rank (1 = best) under it."""

    name: str
    scores: Array
    ranks: npt.NDArray[np.int64]


def by_penalty(
    models: Sequence[Predictions], penalties: Sequence[float], *, metric: str = "ascc", level: int = -1
) -> list[Assumption]:
    """Scores and ranks for each penalty P."""
    confusions = _confusions(models, level)
    hierarchy = models[0].hierarchy
    return [_assume(f"P = {p:g}", confusions, LabelMetrics(hierarchy, level, p), metric) for p in penalties]


def by_swap(
    models: Sequence[Predictions], *, metric: str = "ascc", level: int = -1, penalty: float = PENALTY
) -> list[Assumption]:
    """Scores and ranks as given, then with each pair of neighboring classes swapped in the order of urgency."""
    confusions = _confusions(models, level)
    names = models[0].hierarchy.names(level)
    ranks = models[0].hierarchy.ranks(level)
    found = [_assume("as given", confusions, LabelMetrics(models[0].hierarchy, level, penalty), metric)]
    for low in range(len(names) - 1):
        order = np.arange(len(names))
        order[[low, low + 1]] = order[[low + 1, low]]
        swapped = _flat([names[i] for i in order], ranks, models[0].hierarchy.distance_by)
        score = LabelMetrics(swapped, -1, penalty)
        found.append(_assume(f"{names[low]} ↔ {names[low + 1]}", confusions[:, order][:, :, order], score, metric))
    return found


def _flat(names: Sequence[str], ranks: npt.NDArray[np.int64], distance_by: DistanceBy) -> ClassHierarchy:
    """One level whose ties sit at the same places as before."""
    ties = [[name for name, rank in zip(names, ranks, strict=True) if rank == tied] for tied in np.unique(ranks)]
    return ClassHierarchy.flat(names, ties=[tie for tie in ties if len(tie) > 1], distance_by=distance_by)


def _confusions(models: Sequence[Predictions], level: int) -> npt.NDArray[np.int64]:
    size = models[0].hierarchy.num_classes(level)
    return np.stack([count_cells(*model.at(level)[:2], size) for model in models])


def _assume(name: str, confusions: npt.NDArray[np.int64], score: LabelMetrics, metric: str) -> Assumption:
    scores = score(confusions)[metric]
    sign = -1.0 if FACTS[metric].higher_is_better else 1.0
    ranks = np.asarray([1 + int(np.sum(sign * scores < sign * value)) for value in scores], dtype=np.int64)
    return Assumption(name, scores, ranks)
