"""Counts of a confusion matrix's cells to numbers: each equation once, over any leading axes.

Counts are a list of cells (true, predicted), not a matrix: n slides fill at most n cells, however many classes there
are, so one line of code scores one matrix, two thousand resamples of hundreds of classes, or a torchmetrics state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import AnyArray, Array, Bools, Ints


@dataclass(frozen=True, eq=False)
class ConfusionCells:
    """Counts [..., K] of the cells (`true` [K], `predicted` [K]) of a C x C confusion matrix, sorted by true class."""

    counts: Array
    true: Ints
    predicted: Ints
    num_classes: int

    @classmethod
    def of(cls, S: AnyArray) -> ConfusionCells:
        """The cells of matrices [..., C, C] (rows = true) that any of them fills.

        >>> cells = ConfusionCells.of(np.array([[2, 0], [1, 0]]))
        >>> cells.counts.tolist(), cells.true.tolist(), cells.predicted.tolist()
        ([2.0, 1.0], [0, 1], [0, 0])
        """
        size = S.shape[-1]
        flat = np.asarray(S, dtype=np.float64).reshape(*S.shape[:-2], size**2)
        cells = np.flatnonzero(flat.reshape(-1, size**2).any(axis=0))
        return cls(flat[..., cells], cells // size, cells % size, size)

    @cached_property
    def total(self) -> Array:
        """Number of samples."""
        return _floats(self.counts.sum(-1))

    @cached_property
    def correct(self) -> Array:
        """Number of samples on the diagonal."""
        return _floats(self._correct_by_class.sum(-1))

    @property
    def errors(self) -> Array:
        """Number of samples off the diagonal."""
        return self.total - self.correct

    @cached_property
    def by_class(self) -> Array:
        """Number of samples of each true class, [..., C]."""
        sums = np.zeros((*self.counts.shape[:-1], self.num_classes))
        present, first = np.unique(self.true, return_index=True)
        if len(first):
            sums[..., present] = np.add.reduceat(self.counts, first, axis=-1)
        return sums

    @cached_property
    def recalls(self) -> Array:
        """Recall of each class, [..., C]; NaN for a class without samples."""
        return divide(self._correct_by_class, self.by_class)

    @cached_property
    def _correct_by_class(self) -> Array:
        sums = np.zeros((*self.counts.shape[:-1], self.num_classes))
        on = np.flatnonzero(self.true == self.predicted)
        sums[..., self.true[on]] = self.counts[..., on]
        return sums

    def sum(self, weight: AnyArray) -> Array:
        """Σ_tr S[t,r] weight[t,r] for a weight of every cell, [C, C]."""
        return _floats(self.counts @ _floats(weight[self.true, self.predicted]))


def accuracy(S: ConfusionCells) -> Array:
    """Share of samples on the diagonal."""
    return divide(S.correct, S.total)


def balanced_accuracy(S: ConfusionCells) -> Array:
    """Mean recall over the classes that have samples."""
    return mean_of_defined(S.recalls)


def mean_of_defined(values: Array) -> Array:
    """Mean over the last axis of what is not NaN; NaN where nothing is."""
    defined = ~np.isnan(values)
    return divide(np.where(defined, values, 0.0).sum(-1), defined.sum(-1))


def ascc(S: ConfusionCells, W: Array) -> Array:
    """AsCC with the asymmetric wheel W, ECC with the symmetric one: (1/N) Σ_tr S[t,r] / W[t,r]."""
    return divide(S.sum(1.0 / W), S.total)


def asmc(S: ConfusionCells, W: Array) -> Array:
    """AsMC or EMC: (1/#errors) Σ_{t≠r} S[t,r] / (W[t,r] − 1); +inf without errors."""
    off = ~np.eye(W.shape[-1], dtype=bool)
    # W − 1 is 0 on the diagonal, so the mask comes before the division.
    gentleness = np.zeros_like(W)
    gentleness[off] = 1.0 / (W[off] - 1.0)
    return divide(S.sum(gentleness), S.errors, empty=np.inf)


def mean_risk(S: ConfusionCells, W: Array, outranks: Bools) -> Array:
    """E(Risk): (1/#errors) Σ_{t≠r} g S[t,r] W[t,r], g = 1 if t outranks r, else 0.5; 0 without errors."""
    factor = np.where(outranks, 1.0, 0.5) * ~np.eye(W.shape[-1], dtype=bool)
    return divide(S.sum(factor * W), S.errors, empty=0.0)


def mean_where(S: ConfusionCells, values: Array, cells: Bools) -> Array:
    """Mean of `values` over the samples in the chosen cells; NaN when there are none."""
    return divide(S.sum(values * cells), S.sum(cells))


def least_urgent_recall(S: ConfusionCells, outranks: Bools) -> Array:
    """Share of the least urgent samples that are called no more urgent."""
    least: Bools = np.logical_not(outranks.any(axis=1))
    return divide(S.sum(least[:, None] & least), S.sum(np.broadcast_to(least[:, None], outranks.shape)))


def quadratic_kappa(S: ConfusionCells) -> Array:
    """Cohen's kappa with quadratic weights: 1 − Σ w·S / Σ w·E, w = (t − r)², E from the margins."""
    t, r = S.true.astype(np.float64), S.predicted.astype(np.float64)
    # Σ (t − r)² a_t b_r from sums over the margins, without a matrix of expected counts.
    squares = (S.counts @ t**2 + S.counts @ r**2) * S.total
    chance = divide(squares - 2 * (S.counts @ t) * (S.counts @ r), S.total)
    return 1.0 - divide(S.counts @ (t - r) ** 2, chance)


def divide(numerator: npt.ArrayLike, denominator: npt.ArrayLike, *, empty: float = np.nan) -> Array:
    """The quotient, and `empty` where the denominator is 0."""
    top, bottom = np.broadcast_arrays(_floats(numerator), _floats(denominator))
    result = np.full(top.shape, empty)
    np.divide(top, bottom, out=result, where=bottom > 0)
    return result


def _floats(values: npt.ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)
