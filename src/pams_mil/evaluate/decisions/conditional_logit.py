"""The conditional logit of McFadden: choices among alternatives with features, P(r) ∝ exp(x_r · θ + offset_r)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pams_mil.arrays import Array, Bools, Ints
from pams_mil.errors import PredictionsError

_STEPS, _TOLERANCE, _SINGULAR = 100, 1e-10, 1e8
_SETTLED = 0.95  # a verdict that the fit expects with this probability says next to nothing about κ


@dataclass(frozen=True, eq=False)
class ConditionalLogit:
    """A conditional logit: coefficients [q], H⁻¹ [q, q], scores by cluster [G, q], and which verdicts are open [n]."""

    estimate: Array
    inverse: Array
    scores: Array
    doubtful: Bools

    @property
    def pull(self) -> float:
        """η; 0 where nothing was shown."""
        return float(self.estimate[2]) if len(self.estimate) > 2 else 0.0

    @property
    def pull_by_cluster(self) -> Array:
        """What every cluster moves η by, [G]."""
        return self.scores @ self.inverse[2] if len(self.estimate) > 2 else np.zeros(len(self.scores))


def choice_probabilities(scores: Array) -> Array:
    """The softmax of every row."""
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Array = odds / odds.sum(axis=1, keepdims=True)
    return shares


def fit_logit(features: Array, offset: Array, chosen: Ints, clusters: Ints, count: int, where: str) -> ConditionalLogit:
    """Maximum likelihood of a conditional logit by Newton's method; clusters are numbered below `count`."""
    n, _, q = features.shape
    taken = features[np.arange(n), chosen]
    theta = np.zeros(q)

    def log_likelihood(at: Array) -> tuple[float, Array]:
        """Its value, and the probability of every alternative [n, R]."""
        shares = choice_probabilities(features @ at + offset)
        return float(np.log(np.maximum(shares[np.arange(n), chosen], 1e-300)).sum()), shares

    value, weights = log_likelihood(theta)
    for _ in range(_STEPS):
        mean = np.einsum("nr,nrq->nq", weights, features)
        gradient = taken - mean
        # Centered: where verdicts have hardly any noise, a difference of two moments would be rounding error.
        apart = (features - mean[:, None]) * np.sqrt(weights)[:, :, None]
        spread = np.einsum("nrq,nrs->qs", apart, apart)
        if np.linalg.cond(spread) > _SINGULAR:  # the likelihood rises for ever, or does not depend on a coefficient
            break
        step = np.linalg.solve(spread, gradient.sum(0))
        size, least = 1.0, value - 1e-12 * abs(value)  # at the top, a step may round down
        after, following = log_likelihood(theta + step)
        while size > 1e-8 and after < least:  # concave: a short enough step goes up
            size /= 2
            after, following = log_likelihood(theta + size * step)
        theta, value, weights = theta + size * step, after, following
        if np.abs(size * step).max() < _TOLERANCE * (1 + np.abs(theta).max()):
            scores = np.zeros((count, q))
            np.add.at(scores, clusters, gradient)
            return ConditionalLogit(theta, np.linalg.inv(spread), scores, weights.max(axis=1) < _SETTLED)
    raise PredictionsError(
        f"Verdicts at {where} fit a cost ratio without any noise, or do not vary, so that no single number is the most "
        "likely. More verdicts on doubtful slides are needed."
    )
