"""Softmax regression with few coefficients, or McFadden's conditional logit, by Newton's method.

    q_ik ∝ exp(Σ_j θ_j X[i, k, j] + offset_ik),   minimize L(θ) = −Σ_i Σ_k Y_ik ln q_ik / Σ Y

L is convex in θ, so its minimum is the only one. Each step solves the Hessian, damped as much as L needs to fall:
where every q is 0 or 1 there is slope but no curvature, and a plain step would go anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax, softmax

from pams_mil.arrays import Array
from pams_mil.errors import ParameterError

_STEPS = 200
_ENOUGH = 1e-16
"""Stop when a full step would lower L by less than this."""
_PERFECT = 1e-12
_DAMPING = (0.0, *(10.0**power for power in range(-10, 11)))


@dataclass(frozen=True, eq=False)
class SoftmaxFit:
    """The minimum: θ [j], the value of L and its Hessian [j, j] there, and the probabilities q [n, c]."""

    theta: Array
    value: float
    curvature: Array
    probabilities: Array


def fit_softmax(features: Array, truth: Array, start: Array, offset: Array | float = 0.0) -> SoftmaxFit:
    """The coefficients of least L.

    Args:
        features: X, [n, c, j].
        truth: Y, [n, c], at least 0: which class each sample is of, or how much of each.
        start: θ to begin with, [j]; directions that the samples say nothing about stay there.
        offset: What is added to every score, [n, c].

    >>> X = np.log([[[0.8], [0.2]], [[0.8], [0.2]], [[0.8], [0.2]]])  # says 80 % three times, and is right twice
    >>> float(fit_softmax(X, np.array([[1, 0], [1, 0], [0, 1.0]]), np.ones(1)).theta[0]).__round__(6)  # ln 2 / ln 4
    0.5
    """
    share = truth / truth.sum()
    # Rows of Y need not sum to 1, and q is compared with each row's own sum.
    weight = share.sum(axis=1, keepdims=True)

    def loss(theta: Array) -> float:
        with np.errstate(over="ignore", invalid="ignore"):  # a step too far is not finite, and not taken
            return float(-(share * log_softmax(features @ theta + offset, axis=1)).sum())

    theta = np.asarray(start, dtype=np.float64)
    value = loss(theta)
    for number in range(_STEPS):
        q = softmax(features @ theta + offset, axis=1)
        slope = np.einsum("nk,nkj->j", weight * q - share, features)
        # The Hessian is the covariance of a row's features under q, summed over rows.
        centered = features - np.einsum("nk,nkj->nj", q, features)[:, None, :]
        scaled = (centered * np.sqrt(weight * q)[:, :, None]).reshape(-1, len(theta))
        curvature = scaled.T @ scaled
        for damping in _DAMPING:
            # least squares, so that directions without curvature are left alone
            step = -np.linalg.lstsq(curvature + damping * np.eye(len(theta)), slope, rcond=1e-13)[0]
            gain = float(-slope @ step) / 2
            if damping == 0 and not gain > _ENOUGH:
                moved = False
                break
            after = loss(theta + step)
            # Armijo's rule: a small share of the predicted decrease must come true. NaN compares as false, is damped.
            moved = after <= value - 1e-4 * gain
            if moved:
                break
        if moved:
            theta, value = theta + step, after
        elif number and value < _PERFECT:
            break  # L came to 0 by growing θ: it would go on falling for ever, only floats no longer show it
        else:
            return SoftmaxFit(theta, value, curvature, q)
    raise ParameterError(
        "The fit has no finite answer: every sample is told apart without a mistake, so that ever sharper "
        "probabilities score ever better. Give it more samples, or some evidence against."
    )
