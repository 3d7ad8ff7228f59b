"""Confidence intervals by resampling patients, not slides, and without a loop over resamples.

Label metrics depend on the confusion matrix alone. Patients whose slides fall into the same cells are
interchangeable, so a resample of patients is one multinomial draw over the distinct *patterns* of cells,
and two thousand resamples are one matrix product: patterns [K, C²] weighted by draws [B, K].

AUC depends on every score. Each class's scores are sorted once; a resample only changes how often each row
counts, so its AUC follows from one cumulative sum of those weights a class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.metrics.metric import LabelMetrics

RESAMPLES = 2000
_BLOCK_ENTRIES = 1 << 21
_MULTINOMIAL_COST = 12  # measured: one category of a multinomial draw takes as long as drawing about 12 patients


@dataclass(frozen=True)
class Patterns:
    """Patients grouped by the confusion cells of their slides.

    `cells` [K, F] counts per pattern, `patients` [K] how many patients share it. For paired models F holds the
    cells of both models one after the other.
    """

    cells: npt.NDArray[np.int32]
    patients: Ints

    @classmethod
    def of(cls, patient: Ints, *codes: Ints, size: int) -> Patterns:
        """Patterns of rows of `patient` (0 to P-1) that fall into cell `code` (0 to size-1) of each model."""
        order = np.argsort(patient, kind="stable")
        # One number per slide for the cells of all models, which thus stay paired when a patient's slides are sorted.
        joint = np.zeros(len(order), dtype=np.int64)
        for code in codes:
            joint = joint * size + code[order]
        starts = np.flatnonzero(np.diff(patient[order], prepend=-1))
        lengths = np.diff(starts, append=len(order))
        found = [cls._of_length(joint, starts[lengths == n], int(n), len(codes), size) for n in np.unique(lengths)]
        return cls(np.concatenate([cells for cells, _ in found]), np.concatenate([counts for _, counts in found]))

    @staticmethod
    def _of_length(
        joint: Ints, starts: Ints, length: int, models: int, size: int
    ) -> tuple[npt.NDArray[np.int32], Ints]:
        """Patterns among the patients with `length` rows: their sorted cells are compared."""
        rows = np.sort(joint[starts[:, None] + np.arange(length)], axis=1)
        # A flat array is spared the slow comparison of whole rows that `axis` otherwise means.
        flat, counts = np.unique(rows if length > 1 else rows[:, 0], axis=0, return_counts=True)
        rest = flat.reshape(len(counts), length)
        cells = np.zeros((len(counts), models * size), dtype=np.int32)
        pattern = np.repeat(np.arange(len(counts)), length)
        # Digits to base `size`, the last model in the last one.
        for model in range(models - 1, -1, -1):
            np.add.at(cells, (pattern, model * size + (rest % size).ravel()), 1)
            rest = rest // size
        return cells, counts

    def draws(self, rng: np.random.Generator, resamples: int) -> Ints:
        """How often each pattern occurs when as many patients are drawn with replacement, [B, K]."""
        total = int(self.patients.sum())
        if len(self.patients) * _MULTINOMIAL_COST < total:
            return rng.multinomial(total, self.patients / total, size=resamples)
        pattern = np.repeat(np.arange(len(self.patients)), self.patients)  # nearly all patients differ: draw patients
        drawn = (pattern[rng.integers(0, total, total)] for _ in range(resamples))
        return np.stack([np.bincount(chosen, minlength=len(self.patients)) for chosen in drawn])

    def resample(self, rng: np.random.Generator, resamples: int) -> Array:
        """Cell counts of `resamples` draws of as many patients with replacement, [B, F]."""
        # Counts are exact as floats, and only floats are multiplied by BLAS.
        cells = self.cells.astype(np.float64)
        counts, start = np.empty((resamples, cells.shape[1])), 0
        for block in _blocks(resamples, len(cells)):
            counts[start : start + block] = self.draws(rng, block).astype(np.float64) @ cells
            start += block
        return counts

    def swap(self, rng: np.random.Generator, resamples: int) -> tuple[Array, Array]:
        """For two models: cell counts of both after swapping them in a random half of the patients, [B, C²] each."""
        first, second = np.split(self.cells.astype(np.float64), 2, axis=1)
        differ = (first != second).any(1)  # where the models agree, a swap changes nothing
        change, patients = (second - first)[differ], self.patients[differ]
        blocks = _blocks(resamples, len(patients))
        # How many patients of a pattern are swapped, times what one swap moves from one matrix to the other.
        moved = np.concatenate([rng.binomial(patients, 0.5, size=(b, len(patients))) @ change for b in blocks])
        return self.patients @ first + moved, self.patients @ second - moved


def _blocks(resamples: int, patterns: int) -> list[int]:
    """Sizes of the pieces in which resamples are drawn, so that memory does not grow with their number."""
    step = max(1, _BLOCK_ENTRIES // max(1, patterns))
    return [min(step, resamples - start) for start in range(0, resamples, step)]


def label_samples(
    scorer: LabelMetrics, patterns: Patterns, *, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Array]:
    """Every label metric on every resample of patients: {metric: [B]}."""
    size = round(patterns.cells.shape[1] ** 0.5)
    counts = patterns.resample(np.random.default_rng(seed), resamples)
    return scorer(counts.reshape(-1, size, size))


def interval(samples: Array) -> tuple[float, float]:
    """95 % percentile interval of the finite resamples; NaN when fewer than half are finite.

    >>> interval(np.arange(101.0))
    (2.5, 97.5)
    """
    finite = samples[np.isfinite(samples)]
    if 2 * finite.size < samples.size or not finite.size:
        return (float("nan"), float("nan"))
    low, high = np.percentile(finite, [2.5, 97.5])
    return (float(low), float(high))


def multiplicities(rng: np.random.Generator, patients: int) -> Ints:
    """How often each patient is drawn in one resample, [patients]; sums to `patients`."""
    return np.bincount(rng.integers(0, patients, patients), minlength=patients)


class AucResampler:
    """Macro one-vs-rest AUC of weighted rows; the sorting is done once for all weightings.

    With rows sorted by score and w the weights, Σ_pos w_i · (weight below i + half the weight tied with i)
    counts the won comparisons; the positives' share of it is (Σ_pos w)² / 2 and is subtracted.
    """

    def __init__(self, y_true: Ints, probabilities: Array) -> None:
        self._classes = [
            self._prepare(np.flatnonzero(y_true == c), probabilities[:, c]) for c in range(probabilities.shape[1])
        ]
        self._sorted = np.empty(len(y_true), dtype=np.int32)
        self._running = np.zeros(len(y_true) + 1, dtype=np.int64)

    @staticmethod
    def _prepare(positive: Ints, scores: Array) -> tuple[Ints, Ints, Ints, Ints]:
        order = np.argsort(scores, kind="stable")
        ordered = scores[order]
        positive = positive[np.argsort(scores[positive], kind="stable")]  # in score order, so that gathers run forward
        below = np.searchsorted(ordered, scores[positive], side="left")
        upto = np.searchsorted(ordered, scores[positive], side="right")
        return positive, order, below, upto

    def __call__(self, weights: npt.NDArray[np.integer[Any]]) -> float:
        """Macro AUC with row i counted `weights[i]` times; classes without positives or negatives are left out."""
        total = float(weights.sum())
        weights = weights.astype(np.int32)
        aucs = []
        for positive, order, below, upto in self._classes:
            w = weights[positive].astype(np.float64)
            m = float(w.sum())
            # A resample may lose a class; the others still have an AUC.
            if not 0 < m < total:
                continue
            np.take(weights, order, out=self._sorted, mode="clip")
            np.cumsum(self._sorted, out=self._running[1:])
            # below + upto = twice (the weight below + half the tied); among themselves the positives win m²/2.
            won = 0.5 * float(w @ (self._running[below] + self._running[upto])) - 0.5 * m**2
            aucs.append(won / (m * (total - m)))
        return float(np.mean(aucs)) if aucs else float("nan")


def auc_samples(
    resamplers: Sequence[AucResampler],
    patient: Ints,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    progress: Callable[[float], None] | None = None,
) -> Array:
    """AUC of every resampler on the same resamples of patients, [R, B].

    Several resamplers (levels of one model, or two models to compare) share the draws, so they stay paired.
    """
    rng = np.random.default_rng(seed)
    patients = int(patient.max()) + 1
    samples = np.empty((len(resamplers), resamples))
    for draw in range(resamples):
        # [n]: all slides of a patient are drawn together, as often as the patient is
        weights = multiplicities(rng, patients)[patient]
        samples[:, draw] = [resampler(weights) for resampler in resamplers]
        if progress is not None:
            progress((draw + 1) / resamples)
    return samples


def holm(p_values: npt.ArrayLike) -> Array:
    """Holm's correction of several p-values.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    # The smallest p counts as often as there are tests, the next once less, and none may undercut one before it.
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected
