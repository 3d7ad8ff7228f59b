"""What a number is about and how sure it is: the one place where scores are resampled, compared and tested.

A sample is `Predictions` that know patient, slide, fold and seed; rows of one seed and fold are one network. A metric
is an entry of `METRICS` (`pams_mil.metrics.metric`). A result is a `Contrast`: a method's score, or a difference.

    score      per network, then averaged: calls are scored seed by seed (the folds of a seed pooled, as a call
               needs no threshold); what ranks slides is computed within each network and averaged by slides
    chance     patients, drawn with replacement within folds; networks, where a method has several seeds

With A* the scores of the S_A seeds in resamples of patients (networks fixed), s² the sample variance between seeds and
τ² the part of s² that patients alone explain (the mean over resamples of their variance between seeds),

    V  = V_shared + s²_A / S_A + s²_B / S_B,     V_shared = V_patients − τ²_A / S_A − τ²_B / S_B  (at least 0)
    df = V² / (V_shared² / (P − 1) + (s²_A / S_A)² / (S_A − 1) + (s²_B / S_B)² / (S_B − 1))           (Satterthwaite)

Interval and p come from t with df degrees of freedom. V_patients + s²/S would count the chance of one network with
single patients twice, once in each term. With one seed nothing is known about networks: then V is V_patients, the
interval is that of the resamples, and two files are tested by swapping them in patients.

Used as:

    scores = estimate(predictions, metrics, level=-1)                 # {key: Contrast}
    differences = contrasts(reference, candidate, metrics, level=-1)  # the same, of the difference
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr

from pams_mil.arrays import Array, Ints
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.method_networks import Networks, Reading, average, grouped, units_of
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics.metric import METRICS, Metric
from pams_mil.metrics.resampling import RESAMPLES, Weights, percentile_interval, swap_p_value
from pams_mil.metrics.slides import Slides, Statistic
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
    observed = networks.read(readings)
    if not resamples:
        return {key: contrast_of(key, values[:, 0]) for key, values in observed.items()}
    drawn = draw(predictions, seed, resamples)
    samples = networks.read(readings, drawn.unit, drawn.weights)
    return {
        key: contrast_of(key, values[:, 0], drawn=samples[key], units=drawn.units) for key, values in observed.items()
    }


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
            units.coins(seed, swaps) if swappable and swaps else None,
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
                result[key] = _minus(second, first)
        return result


def _swap_piece(
    make: Callable[..., Statistic], slides: tuple[Slides, Slides], rows: tuple[Ints, Ints], unit: tuple[Ints, Ints],
    coins: Weights, group: Sequence[Reading],
) -> dict[str, tuple[Array, Array]]:  # fmt: skip
    first, second = make(slides[0]), make(slides[1])
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


def _same_folds(first: Predictions, second: Predictions) -> bool:
    """Whether the networks of two samples of one seed tested the same slides, so that slides can be exchanged."""
    if first.folds is None or second.folds is None:
        return first.folds is second.folds or len(np.unique((first if second.folds is None else second).network)) == 1
    fold = dict(zip(second.slide_ids, second.folds, strict=True))
    return all(fold.get(slide) == own for slide, own in zip(first.slide_ids, first.folds, strict=True))


def contrast_of(
    key: str,
    candidate: Array,
    reference: Array | None = None,
    *,
    drawn: Array | None = None,
    drawn_reference: Array | None = None,
    swapped: Array | None = None,
    units: int = 0,
) -> Contrast:
    """The contrast from scores by seed [S] and their resamples [S, B]."""
    sides = [(candidate, drawn)] if reference is None else [(candidate, drawn), (reference, drawn_reference)]
    means = [_mean(scores) for scores, _ in sides]
    value = means[0] if reference is None else float(_minus(np.array(means[0]), np.array(means[1])))
    result = Contrast(
        key, value,
        reference=math.nan if reference is None else means[1], candidate=math.nan if reference is None else means[0],
        seeds=tuple(candidate.tolist()), reference_seeds=() if reference is None else tuple(reference.tolist()),
    )  # fmt: skip
    if swapped is not None:
        result = replace(result, p_value=swap_p_value(value, swapped), varied="patients")
    if drawn is None:
        return result
    averaged = [_seed_mean(samples) for _, samples in sides if samples is not None]
    samples = averaged[0] if reference is None else _minus(averaged[0], averaged[1])
    finite = samples[np.isfinite(samples)]
    if 2 * finite.size < samples.size or finite.size < 2 or not math.isfinite(value):
        return replace(result, varied="patients", samples=samples)
    variance = float(finite.var(ddof=1))
    if any(np.isfinite(scores).sum() < 2 for scores, _ in sides):
        contrast = replace(
            result, interval=percentile_interval(samples), varied="patients", samples=samples,
            standard_error=math.sqrt(variance),
        )  # fmt: skip
        # Several networks against one, or other folds: patients alone, and no swaps.
        if reference is not None and swapped is None and variance > 0:
            t = abs(value) / math.sqrt(variance)
            contrast = replace(contrast, p_value=float(2 * stdtr(max(1, units - 1), -t)))
        return contrast
    between, shared = [], variance
    for scores, resampled in sides:
        if resampled is None:
            continue
        ok = np.isfinite(scores)
        count = int(ok.sum())
        between.append((float(scores[ok].var(ddof=1)) / count, count - 1))
        by_patients = resampled[ok][:, np.isfinite(resampled[ok]).all(axis=0)]
        centered = by_patients - scores[ok][:, None]
        shared -= float(centered.var(axis=0, ddof=1).mean()) / count
    shared = max(0.0, shared)
    total = shared + sum(component for component, _ in between)
    if not total > 0:
        return replace(result, interval=(value, value), varied="patients and networks", standard_error=0.0,
                       p_value=1.0 if reference is not None and value == 0 else None, samples=samples)  # fmt: skip
    df = total**2 / (shared**2 / max(1, units - 1) + sum(component**2 / free for component, free in between))
    result = replace(
        result, varied="patients and networks", standard_error=math.sqrt(total), df=df, samples=samples,
        p_value=None if reference is None else float(2 * stdtr(df, -abs(value) / math.sqrt(total))),
    )  # fmt: skip
    low, high = result.interval_at(0.95)
    if reference is None and key in METRICS:
        low, high = max(low, METRICS[key].bounds[0]), min(high, METRICS[key].bounds[1])
    return replace(result, interval=(low, high))


def _mean(scores: Array) -> float:
    if len(scores) == 1:
        return float(scores[0])
    finite = scores[np.isfinite(scores)]
    return float(finite.mean()) if finite.size else float(scores[0])


def _seed_mean(samples: Array) -> Array:
    """The mean over seeds in every resample, of the finite ones."""
    if len(samples) == 1:
        only: Array = samples[0]
        return only
    finite = np.isfinite(samples)
    with np.errstate(invalid="ignore"):
        mean: Array = np.where(finite, samples, 0.0).sum(0) / finite.sum(0)
    return mean


def _minus(candidate: Array, reference: Array) -> Array:
    """The difference; two models without errors (both infinite) do not differ."""
    with np.errstate(invalid="ignore"):
        difference: Array = np.where(candidate == reference, 0.0, candidate - reference)
    return difference
