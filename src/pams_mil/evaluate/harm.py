"""How much do conclusions depend on the assumed harm? Scores under other penalties and other orders of urgency.

The penalty P and the order of the classes are judgements. Before a ranking of models is believed, it should be
seen how it changes when P changes, or when two neighboring classes trade places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.class_checks import DistanceBy, names_by_rank
from pams_mil.evaluate.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.metric import LabelMetrics


@dataclass(frozen=True)
class Assumption:
    """One set of harm assumptions, and every model's score and rank (1 = best) under it."""

    name: str
    scores: Array
    ranks: npt.NDArray[np.int64]


def by_penalty(models: Sequence[Predictions], penalties: Sequence[float]) -> list[Assumption]:
    """Scores and ranks for each penalty P."""
    confusions, hierarchy = _confusions(models), models[0].hierarchy
    return [_assume(f"P = {p:g}", confusions, LabelMetrics(hierarchy, penalty=p)) for p in penalties]


def by_swap(models: Sequence[Predictions]) -> list[Assumption]:
    """Scores and ranks as given, then with each pair of neighboring classes swapped in the order of urgency."""
    confusions, hierarchy = _confusions(models), models[0].hierarchy
    names, ranks = hierarchy.names(), hierarchy.ranks()
    rows = [_assume("as given", confusions, LabelMetrics(hierarchy))]
    for low in range(len(names) - 1):
        order = np.arange(len(names))
        order[[low, low + 1]] = order[[low + 1, low]]
        swapped = LabelMetrics(_flat([names[i] for i in order], ranks, hierarchy.distance_by))
        # The slides stay what they are; only the place of their class in the order changes, in rows and columns.
        rows.append(_assume(f"{names[low]} ↔ {names[low + 1]}", confusions[:, order][:, :, order], swapped))
    return rows


def _flat(names: Sequence[str], ranks: npt.NDArray[np.int64], distance_by: DistanceBy) -> ClassHierarchy:
    """One level whose ties sit at the same places as before."""
    return ClassHierarchy.flat(names, ties=names_by_rank(names, ranks.tolist()), distance_by=distance_by)


def _confusions(models: Sequence[Predictions]) -> npt.NDArray[np.int64]:
    size = models[0].hierarchy.num_classes()
    return np.stack([count_cells(model.target, model.predicted, size) for model in models])


def _assume(name: str, confusions: npt.NDArray[np.int64], score: LabelMetrics) -> Assumption:
    scores = score(confusions)["ascc"]
    ranks = np.asarray([1 + int(np.sum(scores > value)) for value in scores], dtype=np.int64)
    return Assumption(name, scores, ranks)
