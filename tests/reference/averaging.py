"""Averaged weights as a loop over steps, one number at a time."""

from __future__ import annotations

from collections.abc import Sequence


def averaged(weights: Sequence[float], epochs: float, steps_per_epoch: int) -> float:
    """θ̄ after all steps; the first of `weights` is the start, each further one the weight after a step."""
    average = weights[0]
    for t, weight in enumerate(weights[1:]):
        beta = min(1 - 1 / (epochs * steps_per_epoch), (1 + t) / (10 + t))
        if beta < 0:
            beta = 0.0
        average = beta * average + (1 - beta) * weight
    return average
