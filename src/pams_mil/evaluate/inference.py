"""What a number is about and how sure it is: the one place where scores are resampled, compared and tested.

A sample is `Predictions` that know patient, slide, fold and seed; rows of one seed and fold are one network. A metric
is an entry of `METRICS` (`pams_mil.metrics.metric`). A result is a `Contrast`: a method's score, or a difference.

    score      per network, then averaged: calls are scored seed by seed (the folds of a seed pooled, as a call
               needs no threshold); what ranks slides is computed within each network and averaged by slides, as
               networks lean differently, and pooled at one threshold they would look worse than each is
    chance     patients, drawn with replacement within folds; networks, where a method has several seeds

With A* the scores of the S_A seeds in resamples of patients (networks fixed), s² the sample variance between seeds and
τ² the part of s² that patients alone explain (the mean over resamples of their variance between seeds),

    V  = V_shared + s²_A / S_A + s²_B / S_B,     V_shared = V_patients − τ²_A / S_A − τ²_B / S_B  (at least 0)
    df = V² / (V_shared² / (P − 1) + (s²_A / S_A)² / (S_A − 1) + (s²_B / S_B)² / (S_B − 1))           (Satterthwaite)

Interval and p come from t with df degrees of freedom. V_patients + s²/S would count the chance of one network with
single patients twice, once in each term. Seeds that are made from the same networks (probabilities calibrated, decided
or restored otherwise) are paired: see `NetworkVariance`. Where one side has one seed, nothing is known about its
networks, and its terms are left out. Where both have, V is V_patients, the interval is that of the resamples, and two
files are tested by swapping them in patients.

Used as:

    scores = estimate(predictions, metrics, level=-1)                 # {key: Contrast}
    differences = contrasts(reference, candidate, metrics, level=-1)  # the same, of the difference
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.evaluate.contrast import Contrast, contrast_of, subtract
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.metric import Metric
from pams_mil.metrics.resampling import RESAMPLES, Units, Weights
from pams_mil.metrics.slides import Curve, Ranking, Slides, Statistic
from pams_mil.severity import PENALTY

SWAPS = 2000
"""Random swaps for a p-value; the smallest possible is about one over this."""


def estimate(
    predictions: Predictions,
    metrics: Iterable[Metric],
    *,
    level: int = -1,
    penalty: float = PENALTY,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Contrast]:
    """Scores of one method with 95 % intervals over patients and, with several seeds, networks."""
    readings = [Reading.of(metric) for metric in metrics]
    networks = Networks(predictions, level, penalty)
    return networks.estimates(readings, draw(predictions, seed, resamples) if resamples else None)[0]


@dataclass(frozen=True, eq=False)
class Drawn:
    """Resamples of a method's patients: the unit of every row, how often each unit is drawn [B, U], and U."""

    unit: Ints
    weights: Weights
    units: int


def draw(predictions: Predictions, seed: int, resamples: int) -> Drawn:
    """Draw patients with replacement, within folds."""
    units, unit = units_of(predictions, seed=seed)
    return Drawn(unit, units.draws(seed, resamples), len(units))


@dataclass(frozen=True, eq=False)
class MethodPair:
    """Two methods on the same slides: what is resampled and swapped, and how both are read."""

    reference: Networks
    candidate: Networks
    unit: tuple[Ints, Ints]
    units: int
    weights: Weights | None
    coins: Weights | None
    """Swaps of patients; None where networks are several, or are split into other folds."""
    common: Array
    """How many networks each seed of the candidate has in common with each of the reference."""

    @classmethod
    def of(
        cls, reference: Predictions, candidate: Predictions, *, level: int = -1, penalty: float = PENALTY,
        seed: int = 0, resamples: int = RESAMPLES, swaps: int = SWAPS,
    ) -> MethodPair:  # fmt: skip
        """A pair of samples of the same slides and patients, e.g. from `paired`."""
        patients = dict(zip(reference.slide_ids, reference.patient.tolist(), strict=True))
        same = list(reference.slide_ids) == list(candidate.slide_ids)
        other = reference.patient if same else np.array([patients[slide] for slide in candidate.slide_ids])
        both = Networks(reference, level, penalty), Networks(candidate, level, penalty)
        units, unit = units_of(reference, seed=seed)
        swappable = all(one.single for one in both) and _same_folds(reference, candidate)
        return cls(
            *both, (unit, units.of_patient[other]), len(units), units.draws(seed, resamples) if resamples else None,
            units.coins(seed, swaps) if swappable and swaps else None, common_networks(candidate, reference),
        )  # fmt: skip

    def drawn(self, readings: Sequence[Reading]) -> tuple[dict[str, Array], dict[str, Array]] | None:
        """Values of the reference and the candidate in the same resamples of patients."""
        if self.weights is None:
            return None
        return (
            self.reference.read(readings, self.unit[0], self.weights),
            self.candidate.read(readings, self.unit[1], self.weights),
        )

    def contrasts(self, readings: Sequence[Reading], resampled: Sequence[Reading] | None = None) -> dict[str, Contrast]:
        """Candidate − reference of every reading; `resampled` is read from the resamples where that differs."""
        reference, candidate = self.reference.read(readings), self.candidate.read(readings)
        drawn, swapped = self.drawn(resampled or readings), self.swapped(readings)
        return {
            key: contrast_of(
                key,
                candidate[key][:, 0],
                reference[key][:, 0],
                drawn=None if drawn is None else drawn[1][key],
                drawn_reference=None if drawn is None else drawn[0][key],
                swapped=swapped.get(key),
                units=self.units,
                common=self.common,
            )
            for key in reference
        }

    def swapped(self, readings: Sequence[Reading]) -> dict[str, Array]:
        """Differences [B] after swapping the two in random patients.

        Sums are linear, so what a swap moves from one model to the other is the sums of the swapped patients. Events
        of curves are exchanged by their rank on each model's own curve, so the scale of probabilities plays no part.
        """
        if self.coins is None:
            return {}
        result: dict[str, Array] = {}
        for (make, within), group in grouped(readings).items():
            parts: dict[str, list[tuple[Array, Array]]] = {reading.key: [] for reading in group}
            pieces = zip(self.reference.pieces(0, within), self.candidate.pieces(0, within), strict=True)
            sizes = []
            for (rows, slides), (other_rows, other) in pieces:
                sizes.append(len(rows))
                values = _swap_piece(make, (slides, other), (rows, other_rows), self.unit, self.coins, group)
                for key, pair in values.items():
                    parts[key].append(pair)
            for key, pairs in parts.items():
                first, second = (average([pair[side] for pair in pairs], sizes) for side in (0, 1))
                result[key] = subtract(second, first)
        return result


def _swap_piece(
    make: Callable[..., Statistic], slides: tuple[Slides, Slides], rows: tuple[Ints, Ints], unit: tuple[Ints, Ints],
    coins: Weights, group: Sequence[Reading],
) -> dict[str, tuple[Array, Array]]:  # fmt: skip
    first, second = (make(one) for one in slides)
    first, second = first.including(second), second.including(first)
    used = np.unique(unit[0][rows[0]])
    tables = [
        statistic.sums.by_unit(np.searchsorted(used, unit[side][rows[side]]), len(used))
        for side, statistic in enumerate((first, second))
    ]
    own = coins if len(used) == coins.shape[1] else coins[:, used]
    whole = [table(np.ones((1, len(used)), dtype=np.float32)) for table in tables]
    pieces: dict[str, list[tuple[Array, Array]]] = {reading.key: [] for reading in group}
    with np.errstate(invalid="ignore", divide="ignore"):
        for block in tables[0].blocks(own):
            moved = tables[1](own[block]) - tables[0](own[block])
            views = first.view(whole[0] + moved), second.view(whole[1] - moved)
            for reading in group:
                pieces[reading.key].append((reading.value(views[0], block), reading.value(views[1], block)))
    return {key: (np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs]))
            for key, pairs in pieces.items()}  # fmt: skip


def contrasts(
    reference: Predictions,
    candidate: Predictions,
    metrics: Iterable[Metric],
    *,
    level: int = -1,
    penalty: float = PENALTY,
    seed: int = 0,
    resamples: int = RESAMPLES,
    swaps: int = SWAPS,
) -> dict[str, Contrast]:
    """Candidate − reference of every metric on the same slides; see the top of this module."""
    pair = MethodPair.of(
        reference, candidate, level=level, penalty=penalty, seed=seed, resamples=resamples, swaps=swaps
    )
    return pair.contrasts([Reading.of(metric) for metric in metrics])


def common_networks(first: Predictions, second: Predictions) -> Array:
    """How many networks each seed of the first has in common with each of the second."""
    sides = first.networks_of_seeds, second.networks_of_seeds
    return np.array([[len(one & other) for other in sides[1]] for one in sides[0]], dtype=np.float64)


def _same_folds(first: Predictions, second: Predictions) -> bool:
    """Whether the networks of two samples of one seed tested the same slides, so that slides can be exchanged."""
    if first.folds is None or second.folds is None:
        return first.folds is second.folds or len(np.unique((first if second.folds is None else second).network)) == 1
    fold = dict(zip(second.slide_ids, second.folds, strict=True))
    return all(fold.get(slide) == own for slide, own in zip(first.slide_ids, first.folds, strict=True))


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

    def estimates(
        self, readings: Sequence[Reading], drawn: Drawn | None, also: Sequence[Reading] = ()
    ) -> tuple[dict[str, Contrast], dict[str, Array]]:
        """The score of every reading with its interval, and what `also` reads from the same resamples."""
        samples = {} if drawn is None else self.read([*readings, *also], drawn.unit, drawn.weights)
        units = 0 if drawn is None else drawn.units
        scores = {
            key: contrast_of(key, values[:, 0], drawn=samples.pop(key, None), units=units)
            for key, values in self.read(readings).items()
        }
        return scores, samples


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
