"""Confusion matrices to numbers: each equation once, over any leading axes.

Every function here takes counts S of shape [..., C, C] (rows = true) and returns [...], so the same line
of code scores one matrix, two thousand bootstrap resamples, or a torchmetrics state.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import AnyArray, Array


def total(S: AnyArray) -> Array:
    """Number of samples."""
    return _floats(np.asarray(S, dtype=np.float64).sum((-2, -1)))


def correct(S: AnyArray) -> Array:
    """Number of samples on the diagonal."""
    return _floats(np.asarray(S, dtype=np.float64).trace(axis1=-2, axis2=-1))


def errors(S: AnyArray) -> Array:
    """Number of samples off the diagonal."""
    return total(S) - correct(S)


def accuracy(S: AnyArray) -> Array:
    """Share of samples on the diagonal."""
    return divide(correct(S), total(S))


def recalls(S: AnyArray) -> Array:
    """Recall of each class, [..., C]; NaN for a class without samples."""
    diagonal = np.diagonal(np.asarray(S, dtype=np.float64), axis1=-2, axis2=-1)
    return divide(diagonal, np.asarray(S, dtype=np.float64).sum(-1))


def balanced_accuracy(S: AnyArray) -> Array:
    """Mean recall over the classes that have samples."""
    recall = recalls(S)
    present = ~np.isnan(recall)
    return divide(np.where(present, recall, 0.0).sum(-1), present.sum(-1).astype(np.float64))


def ascc(S: AnyArray, W: Array) -> Array:
    """AsCC with the asymmetric wheel W, ECC with the symmetric one: (1/N) Σ_tr S[t,r] / W[t,r]."""
    return divide((S / W).sum((-2, -1)), total(S))


def asmc(S: AnyArray, W: Array) -> Array:
    """AsMC or EMC: (1/#errors) Σ_{t≠r} S[t,r] / (W[t,r] − 1); +inf without errors."""
    off = ~np.eye(W.shape[-1], dtype=bool)
    # W − 1 is 0 on the diagonal, so the mask comes before the division.
    gentleness = np.zeros_like(W)
    gentleness[off] = 1.0 / (W[off] - 1.0)
    return divide((S * gentleness).sum((-2, -1)), errors(S), empty=np.inf)


def mean_risk(S: AnyArray, W: Array, outranks: npt.NDArray[np.bool_]) -> Array:
    """E(Risk): (1/#errors) Σ_{t≠r} g S[t,r] W[t,r], g = 1 if t outranks r, else 0.5; 0 without errors."""
    factor = np.where(outranks, 1.0, 0.5) * ~np.eye(W.shape[-1], dtype=bool)
    return divide((S * (factor * W)).sum((-2, -1)), errors(S), empty=0.0)


def count_where(S: AnyArray, cells: npt.NDArray[np.bool_]) -> Array:
    """How many samples lie in the chosen cells."""
    return _floats((np.asarray(S, dtype=np.float64) * cells).sum((-2, -1)))


def mean_where(S: AnyArray, values: Array, cells: npt.NDArray[np.bool_]) -> Array:
    """Mean of `values` over the samples in the chosen cells; NaN when there are none."""
    return divide((S * (values * cells)).sum((-2, -1)), count_where(S, cells))


def least_urgent_recall(S: AnyArray, outranks: npt.NDArray[np.bool_]) -> Array:
    """Share of the least urgent samples that are called no more urgent."""
    least: npt.NDArray[np.bool_] = np.logical_not(outranks.any(axis=1))
    return divide(
        count_where(S, least[:, None] & least), count_where(S, np.broadcast_to(least[:, None], outranks.shape))
    )


def quadratic_kappa(S: AnyArray) -> Array:
    """Cohen's kappa with quadratic weights: 1 − Σ w·S / Σ w·E, w = (t − r)², E from the margins."""
    S = np.asarray(S, dtype=np.float64)
    index = np.arange(S.shape[-1], dtype=np.float64)
    w = (index[:, None] - index[None, :]) ** 2
    true, called = S.sum(-1), S.sum(-2)
    # Σ (t − r)² a_t b_r from sums over the margins, without a matrix of expected counts.
    squares = (true @ index**2) * called.sum(-1) + true.sum(-1) * (called @ index**2)
    chance = divide(squares - 2 * (true @ index) * (called @ index), total(S))
    return 1.0 - divide((w * S).sum((-2, -1)), chance)


def divide(numerator: npt.ArrayLike, denominator: npt.ArrayLike, *, empty: float = np.nan) -> Array:
    """The quotient, and `empty` where the denominator is 0."""
    top, bottom = np.broadcast_arrays(_floats(numerator), _floats(denominator))
    result = np.full(top.shape, empty)
    np.divide(top, bottom, out=result, where=bottom > 0)
    return result


def _floats(values: npt.ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)
