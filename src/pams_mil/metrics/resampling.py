"""The one resampler: patients drawn with replacement, patients swapped between two models, and weighted sums of slides.

Every metric here is a function of sums over slides (cells of a confusion matrix, events along a curve, losses), and a
resample only changes how often a patient counts. With `weights` [B, G] of G groups of patients and the sums of each
group in a matrix [G, F], all B resamples are one matrix product.

Up to GROUPS patients every patient is a group. Beyond, patients are put at random into GROUPS groups of equal size,
which are drawn and swapped as wholes. Swaps of groups are swaps of patients, so the test stays exact; the variance
between random groups is that between patients, with GROUPS − 1 degrees of freedom instead of more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from pams_mil.arrays import Array, Ints

Weights = npt.NDArray[np.floating[Any]]

RESAMPLES = 2000
GROUPS = 2048
_BLOCK_ENTRIES = 1 << 22
_DENSE_ENTRIES = 1 << 26
_DENSE_SPEED = 17  # measured: a dense product does about 17 entries while a sparse one does one


@dataclass(frozen=True)
class Units:
    """What is drawn or swapped as a whole: `of_patient` [P] is a patient's unit, `stratum` [U] the unit's stratum."""

    of_patient: Ints
    stratum: Ints

    def __len__(self) -> int:
        return len(self.stratum)

    @classmethod
    def of(cls, patients: int, stratum: Ints | None = None, *, seed: int = 0, most: int = GROUPS) -> Units:
        """Every patient by itself, or more than `most` patients in groups; strata (folds) never share a group."""
        strata = np.zeros(patients, np.int64) if stratum is None else stratum
        if patients <= most:
            return cls(np.arange(patients), strata)
        rng, of_patient = np.random.default_rng([seed, 1]), np.empty(patients, np.int64)
        of_unit: list[int] = []
        for value in np.unique(strata):
            members = rng.permutation(np.flatnonzero(strata == value))
            count = max(1, round(most * len(members) / patients))
            of_patient[members] = len(of_unit) + np.arange(len(members)) % count
            of_unit += [int(value)] * count
        return cls(of_patient, np.asarray(of_unit, dtype=np.int64))

    def draws(self, seed: int, resamples: int) -> Weights:
        """How often each unit is drawn when every stratum is resampled with replacement, [B, U]."""
        rng = np.random.default_rng(seed)
        weights = np.zeros((resamples, len(self)), dtype=np.float32)
        for value in np.unique(self.stratum):
            members = np.flatnonzero(self.stratum == value)
            drawn = rng.integers(0, len(members), (resamples, len(members)))
            drawn += np.arange(resamples)[:, None] * len(members)
            weights[:, members] = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        return weights

    def coins(self, seed: int, swaps: int) -> Weights:
        """1 where a unit is swapped, else 0, [B, U]; all swaps but the observed one if there are no more than asked."""
        if len(self) <= 20 and 2 ** len(self) - 1 <= swaps:
            every = np.arange(1, 2 ** len(self))[:, None] >> np.arange(len(self))
            return (every & 1).astype(np.float32)
        rng = np.random.default_rng([seed, 2])
        return rng.integers(0, 2, (swaps, len(self)), dtype=np.int8).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Sums:
    """Linear sums over slides: entry m adds `value[m]` (1 by default) of slide `row[m]` to `column[m]` of F columns."""

    row: Ints
    column: Ints
    width: int
    value: Array | None = None

    def once(self) -> Array:
        """The sums with every slide counted once, [1, F]."""
        return np.bincount(self.column, weights=self.value, minlength=self.width)[None].astype(np.float64)

    @property
    def _smallest_exact(self) -> type[np.floating[Any]]:
        """Single precision where all sums are whole numbers that it holds exactly."""
        if self.value is None:
            return np.float32
        whole = bool((self.value == np.rint(self.value)).all()) and float(np.abs(self.value).sum()) < 2**23
        return np.float32 if whole else np.float64

    def by_unit(self, unit: Ints, units: int) -> UnitSums:
        """The sums of every unit, for weights of units; `unit` [n] is the unit of each slide."""
        cell = unit[self.row]
        if units * self.width <= min(_DENSE_ENTRIES, _DENSE_SPEED * max(len(self.row), 1)):
            flat = np.bincount(cell * self.width + self.column, weights=self.value, minlength=units * self.width)
            return UnitSums(flat.astype(self._smallest_exact).reshape(units, self.width))
        value = np.ones(len(self.row)) if self.value is None else self.value
        return UnitSums(csr_matrix((value, (self.column, cell)), shape=(self.width, units)))


@dataclass(frozen=True, eq=False)
class UnitSums:
    """The sums of every unit: dense [U, F], or sparse [F, U]."""

    matrix: Any

    @property
    def width(self) -> int:
        """F."""
        return int(self.matrix.shape[1] if isinstance(self.matrix, np.ndarray) else self.matrix.shape[0])

    def __call__(self, weights: Weights) -> Array:
        """Weighted sums [B, F] for weights [B, U]."""
        if isinstance(self.matrix, np.ndarray):
            return np.asarray(weights.astype(self.matrix.dtype) @ self.matrix, dtype=np.float64)
        return np.ascontiguousarray((self.matrix @ weights.T.astype(np.float64)).T)

    def blocks(self, weights: Weights) -> Iterator[slice]:
        """Pieces of the resamples whose sums fit into memory."""
        step = max(1, _BLOCK_ENTRIES // max(1, self.width))
        for start in range(0, len(weights), step):
            yield slice(start, min(start + step, len(weights)))


def percentile_interval(samples: Array, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the finite resamples; NaN when fewer than half are finite.

    >>> [round(end, 6) for end in percentile_interval(np.arange(101.0))]
    [2.5, 97.5]
    """
    finite = samples[np.isfinite(samples)]
    if 2 * finite.size < samples.size or not finite.size:
        return (float("nan"), float("nan"))
    tail = 50 * (1 - level)
    low, high = np.percentile(finite, [tail, 100 - tail])
    return (float(low), float(high))


def swap_p_value(observed: float, swapped: Array) -> float | None:
    """Two-sided, the observed labelling counted in, so it is never 0; None where the quantity is undefined."""
    valid = swapped[~np.isnan(swapped)]
    if np.isnan(observed) or not valid.size:
        return None
    return float((np.sum(np.abs(valid) >= abs(observed) - 1e-9) + 1) / (valid.size + 1))


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
