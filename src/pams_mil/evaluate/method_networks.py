"""A method's networks: what is scored together, what is resampled, and how statistics are read from them.

Calls are scored seed by seed. What ranks slides is computed within each network (one seed, one fold) and averaged by
slides: networks lean differently, and pooled at one threshold they would look worse than each is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics.metric import Metric
from pams_mil.metrics.resampling import Units, Weights
from pams_mil.metrics.slides import Curve, Ranking, Slides, Statistic
from pams_mil.severity import PENALTY


@dataclass(frozen=True, eq=False)
class Reading:
    """What is read from a statistic's weighted sums: values [b] or [b, k] of the resamples in a slice."""

    key: str
    statistic: Callable[..., Statistic]
    value: Callable[[Any, slice], Array]
    within_network: bool = False

    @classmethod
    def of(cls, metric: Metric) -> Reading:
        """A metric is read from every resample alike."""
        return cls(metric.key, metric.statistic, lambda view, _: metric.value(view), metric.within_network)


class Networks:
    """A method's slides at one level, seed by seed and network by network."""

    def __init__(self, predictions: Predictions, level: int = -1, penalty: float = PENALTY) -> None:
        self.slides = Slides(
            predictions.hierarchy, predictions.target, predictions.predicted, predictions.probabilities, level, penalty
        )
        if predictions.probabilities is not None:
            self.slides = replace(self.slides, finest_path=predictions.path)
        seeds = predictions.seed_number
        self.seeds = [np.flatnonzero(seeds == seed) for seed in np.unique(seeds)]
        network = predictions.network
        self.networks = [[rows[network[rows] == one] for one in np.unique(network[rows])] for rows in self.seeds]
        rank = self.slides.hierarchy.ranks(level)[self.slides.true]
        small = [rows for seed in self.networks for rows in seed if len(np.unique(rank[rows])) < 2]
        self.too_small = tuple(predictions.network_name(int(rows[0])) for rows in small)
        """Networks whose slides are all equally urgent: they have no curve and are left out of its mean."""

    @property
    def single(self) -> bool:
        """Whether there is one seed."""
        return len(self.seeds) == 1

    def pieces(self, seed: int, within_network: bool) -> list[tuple[Ints, Slides]]:
        """The slides that are scored together, of one seed."""
        rows = self.networks[seed] if within_network else [self.seeds[seed]]
        return [(one, self.slides if len(one) == len(self.slides) else self.slides.take(one)) for one in rows]

    def read(
        self, readings: Sequence[Reading], unit: Ints | None = None, weights: Weights | None = None
    ) -> dict[str, Array]:
        """Values [S, B] or [S, B, k] of every reading; without weights as observed (B = 1), on exact curves."""
        result: dict[str, list[Array]] = {reading.key: [] for reading in readings}
        for seed in range(len(self.seeds)):
            for (make, within), group in grouped(readings).items():
                parts: dict[str, list[Array]] = {reading.key: [] for reading in group}
                sizes = []
                for rows, slides in self.pieces(seed, within):
                    sizes.append(len(rows))
                    for key, values in _read_piece(make, slides, group, rows, unit, weights).items():
                        parts[key].append(values)
                for key, of_networks in parts.items():
                    result[key].append(average(of_networks, sizes))
        return {key: np.stack(values) for key, values in result.items()}


def grouped(readings: Sequence[Reading]) -> dict[tuple[Callable[..., Statistic], bool], list[Reading]]:
    """Readings by the statistic that they share."""
    groups: dict[tuple[Callable[..., Statistic], bool], list[Reading]] = {}
    for reading in readings:
        groups.setdefault((reading.statistic, reading.within_network), []).append(reading)
    return groups


def _read_piece(
    make: Callable[..., Statistic], slides: Slides, group: Sequence[Reading], rows: Ints, unit: Ints | None,
    weights: Weights | None,
) -> dict[str, Array]:  # fmt: skip
    if weights is None or unit is None:
        statistic = make(slides, bins=None) if make in (Curve, Ranking) else make(slides)
        view = statistic.view(statistic.sums.once())
        return {reading.key: reading.value(view, slice(0, 1)) for reading in group}
    statistic = make(slides)
    used, of_row = np.unique(unit[rows], return_inverse=True)
    table = statistic.sums.by_unit(of_row, len(used))
    own = weights if len(used) == weights.shape[1] else weights[:, used]
    pieces: dict[str, list[Array]] = {reading.key: [] for reading in group}
    with np.errstate(invalid="ignore", divide="ignore"):
        for block in table.blocks(own):
            view = statistic.view(table(own[block]))
            for reading in group:
                pieces[reading.key].append(reading.value(view, block))
    return {key: np.concatenate(values) for key, values in pieces.items()}


def average(values: Sequence[Array], sizes: Sequence[int]) -> Array:
    """The mean of networks by their slides; a network whose value is undefined is left out."""
    if len(values) == 1:
        return values[0]
    stacked = np.stack(values)
    size = np.asarray(sizes, dtype=np.float64).reshape(-1, *([1] * (stacked.ndim - 1)))
    weight = np.where(np.isnan(stacked), 0.0, size)
    with np.errstate(invalid="ignore"):
        total: Array = np.where(weight > 0, stacked * weight, 0.0).sum(0) / weight.sum(0)
    return total


def units_of(predictions: Predictions, *, seed: int = 0) -> tuple[Units, Ints]:
    """What is resampled, and the unit of every row: patients within their folds, if every patient has one fold."""
    patient = predictions.patient
    count = int(patient.max()) + 1
    stratum = None
    if predictions.folds is not None:
        folds = predictions.fold_number
        stratum = np.zeros(count, dtype=np.int64)
        stratum[patient] = folds
        if not (stratum[patient] == folds).all():
            stratum = None  # another split for every seed, or slides of a patient in several folds
    units = Units.of(count, stratum, seed=seed)
    return units, units.of_patient[patient]
