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

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.evaluate.contrast import Contrast, contrast_of, subtract
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.metric import Metric
from pams_mil.metrics.resampling import RESAMPLES, Units, Weights
from pams_mil.metrics.slides import Slides, Statistic
from pams_mil.severity import PENALTY

SWAPS = 2000
"""Random swaps for a p-value; the smallest possible is about one over this."""

Make = Callable[..., Statistic]


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
    return Networks(predictions, level, penalty, draw(predictions, seed, resamples)).estimates(list(metrics))[0]


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
    return pair.contrasts(list(metrics))


@dataclass(frozen=True, eq=False)
class Drawn:
    """Patients of a method as units: the unit of every row, all units, and how often each is drawn [B, U]."""

    unit: Ints
    units: Units
    weights: Weights | None = None
    """None: nothing is resampled."""


def draw(predictions: Predictions, seed: int, resamples: int) -> Drawn:
    """Draw patients with replacement, within folds."""
    units, unit = units_of(predictions, seed=seed)
    return Drawn(unit, units, units.draws(seed, resamples) if resamples else None)


class Networks:
    """A method's slides at one level, seed by seed and network by network, and resamples of its patients."""

    def __init__(
        self, predictions: Predictions, level: int = -1, penalty: float = PENALTY, drawn: Drawn | None = None
    ) -> None:
        self.slides = Slides(
            predictions.hierarchy, predictions.target, predictions.predicted, predictions.probabilities, level, penalty,
            finding_targets=predictions.finding_targets, finding_probabilities=predictions.finding_probabilities,
            finest_path=None if predictions.probabilities is None else predictions.path,
        )  # fmt: skip
        self.resampled = drawn or draw(predictions, 0, 0)
        seeds = predictions.seed_number
        self.seeds = [np.flatnonzero(seeds == seed) for seed in np.unique(seeds)]
        network = predictions.network
        self.networks = [[rows[network[rows] == one] for one in np.unique(network[rows])] for rows in self.seeds]
        rank = self.slides.hierarchy.ranks(level)[self.slides.true]
        small = [rows for seed in self.networks for rows in seed if len(np.unique(rank[rows])) < 2]
        self.too_small = tuple(predictions.network_name(int(rows[0])) for rows in small)
        """Networks whose slides are all equally urgent: they have no curve and are left out of its mean."""

    def pieces(self, seed: int, within_network: bool) -> list[tuple[Ints, Slides]]:
        """The slides that are scored together, of one seed."""
        rows = self.networks[seed] if within_network else [self.seeds[seed]]
        return [(one, self.slides if len(one) == len(self.slides) else self.slides.take(one)) for one in rows]

    def read(self, metrics: Sequence[Metric]) -> dict[str, Array]:
        """Values [S, 1] of every metric as observed, on exact curves."""

        def observed(make: Make, group: Sequence[Metric], rows: Ints, slides: Slides) -> dict[str, Array]:
            statistic = make(slides, bins=None)
            view = statistic.view(statistic.sums.once())
            return {metric.key: metric.read(view) for metric in group}

        return self._by_seed(metrics, observed)

    def drawn(self, metrics: Sequence[Metric]) -> dict[str, Array]:
        """Values [S, B] or [S, B, k] of every metric in the resamples; empty where there are none."""
        unit, weights = self.resampled.unit, self.resampled.weights
        if weights is None:
            return {}

        def resampled(make: Make, group: Sequence[Metric], rows: Ints, slides: Slides) -> dict[str, Array]:
            statistic = make(slides)
            used, of_row = np.unique(unit[rows], return_inverse=True)
            table, own = statistic.sums.by_unit(of_row, len(used)), _columns(weights, used)
            pieces: dict[str, list[Array]] = {metric.key: [] for metric in group}
            with np.errstate(invalid="ignore", divide="ignore"):
                for block in table.blocks(own):
                    view = statistic.view(table(own[block]))
                    for metric in group:
                        pieces[metric.key].append(metric.read(view, block))
            return {key: np.concatenate(values) for key, values in pieces.items()}

        return self._by_seed(metrics, resampled)

    def _by_seed(
        self, metrics: Sequence[Metric], values: Callable[[Make, Sequence[Metric], Ints, Slides], dict[str, Array]]
    ) -> dict[str, Array]:
        result: dict[str, list[Array]] = {metric.key: [] for metric in metrics}
        for seed in range(len(self.seeds)):
            for (make, within), group in grouped(metrics).items():
                pieces = self.pieces(seed, within)
                scores = [values(make, group, *piece) for piece in pieces]
                for metric in group:
                    of_networks = [score[metric.key] for score in scores]
                    result[metric.key].append(average(of_networks, [len(rows) for rows, _ in pieces]))
        return {key: np.stack(seeds) for key, seeds in result.items()}

    def estimates(
        self, metrics: Sequence[Metric], also: Sequence[Metric] = ()
    ) -> tuple[dict[str, Contrast], dict[str, Array]]:
        """The score of every metric with its interval, and what `also` reads from the same resamples."""
        samples, values = self.drawn([*metrics, *also]), self.read(metrics)
        scores = {
            metric.key: contrast_of(
                metric, values[metric.key][:, 0], drawn=samples.pop(metric.key, None), units=len(self.resampled.units)
            )
            for metric in metrics
        }
        return scores, samples


@dataclass(frozen=True, eq=False)
class MethodPair:
    """Two methods on the same slides, with the same resamples of patients, and what is swapped between them."""

    reference: Networks
    candidate: Networks
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
        drawn = draw(reference, seed, resamples)
        first = Networks(reference, level, penalty, drawn)
        second = Networks(candidate, level, penalty, replace(drawn, unit=drawn.units.of_patient[other]))
        swappable = len(first.seeds) == len(second.seeds) == 1 and _same_folds(reference, candidate)
        coins = drawn.units.coins(seed, swaps) if swappable and swaps else None
        return cls(first, second, coins, common_networks(candidate, reference))

    @property
    def sides(self) -> tuple[Networks, Networks]:
        """Reference and candidate."""
        return self.reference, self.candidate

    def contrasts(self, metrics: Sequence[Metric], of_reference: Sequence[Metric] = ()) -> dict[str, Contrast]:
        """Candidate − reference of every metric; `of_reference` has the same keys where the reference has others."""
        own = of_reference or metrics
        reference, drawn_reference = self.reference.read(own), self.reference.drawn(own)
        candidate, drawn = self.candidate.read(metrics), self.candidate.drawn(metrics)
        swapped = self.swapped(metrics)
        return {
            metric.key: contrast_of(
                metric,
                candidate[metric.key][:, 0],
                reference[metric.key][:, 0],
                drawn=drawn.get(metric.key),
                drawn_reference=drawn_reference.get(metric.key),
                swapped=swapped.get(metric.key),
                units=len(self.reference.resampled.units),
                common=self.common,
            )
            for metric in metrics
        }

    def swapped(self, metrics: Sequence[Metric]) -> dict[str, Array]:
        """Differences [B] after swapping the two in random patients.

        Sums are linear, so what a swap moves from one model to the other is the sums of the swapped patients. Events
        of curves are exchanged by their rank on each model's own curve, so the scale of probabilities plays no part.
        """
        if self.coins is None:
            return {}
        result: dict[str, Array] = {}
        for (make, within), group in grouped(metrics).items():
            pieces = list(zip(self.reference.pieces(0, within), self.candidate.pieces(0, within), strict=True))
            scores = [self._swap_piece(make, group, self.coins, *pair) for pair in pieces]
            sizes = [len(first[0]) for first, _ in pieces]
            for metric in group:
                first, second = (average([score[metric.key][side] for score in scores], sizes) for side in (0, 1))
                result[metric.key] = subtract(second, first)
        return result

    def _swap_piece(
        self, make: Make, group: Sequence[Metric], coins: Weights, one: tuple[Ints, Slides], other: tuple[Ints, Slides]
    ) -> dict[str, list[Array]]:
        """Values of both after every swap."""
        first, second = make(one[1]), make(other[1])
        first, second = first.including(second), second.including(first)
        units = self.reference.resampled.unit[one[0]], self.candidate.resampled.unit[other[0]]
        used = np.unique(units[0])
        tables = [
            statistic.sums.by_unit(np.searchsorted(used, unit), len(used))
            for statistic, unit in zip((first, second), units, strict=True)
        ]
        own = _columns(coins, used)
        whole = [table(np.ones((1, len(used)), dtype=np.float32)) for table in tables]
        pieces: dict[str, list[tuple[Array, Array]]] = {metric.key: [] for metric in group}
        with np.errstate(invalid="ignore", divide="ignore"):
            for block in tables[0].blocks(own):
                moved = tables[1](own[block]) - tables[0](own[block])
                views = first.view(whole[0] + moved), second.view(whole[1] - moved)
                for metric in group:
                    pieces[metric.key].append((metric.read(views[0]), metric.read(views[1])))
        return {key: [np.concatenate(side) for side in zip(*pairs, strict=True)] for key, pairs in pieces.items()}


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


def grouped(metrics: Sequence[Metric]) -> dict[tuple[Make, bool], list[Metric]]:
    """Metrics by the statistic that they share."""
    groups: dict[tuple[Make, bool], list[Metric]] = {}
    for metric in metrics:
        groups.setdefault((metric.statistic, metric.within_network), []).append(metric)
    return groups


def _columns(weights: Weights, used: Ints) -> Weights:
    """The weights of the units in use; a copy only where they are fewer."""
    return weights if len(used) == weights.shape[1] else weights[:, used]


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
