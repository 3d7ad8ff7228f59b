"""What a model sees in every tile: where it looks, what speaks for and against each class, how urgent a tile is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pams_mil.arrays import Array
from pams_mil.engine.learner import Learner
from pams_mil.models.core.batch import BagBatch

_CHUNK = 2048  # tiles scored at once, each as a bag of its own


def each_alone(learner: Learner, features: Tensor, slide_id: str) -> list[Array]:
    """The probabilities [n, c] of bags that hold one tile each, per trained level."""
    parts: list[list[Tensor]] = []
    for start in range(0, len(features), _CHUNK):
        rows = features[start : start + _CHUNK]
        parts.append(learner.predict(BagBatch(rows, (1,) * len(rows), (slide_id,) * len(rows))).probabilities)
    return [torch.cat(level).numpy() for level in zip(*parts, strict=True)]


def evidence(alone: Array, attention: Array) -> Array:
    """What every tile says for and against every class, [n, c].

    With a_i the attention of tile i and p_i the probabilities of a bag that holds this tile alone,

        e_ic = a_i (log p_ic - mean over classes of log p_i)

    For attention pooling with a linear head these add up, over tiles, to the bag's own logits (centered).

    >>> evidence(np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([0.5, 0.5])).round(3).tolist()
    [[0.0, 0.0], [-0.347, 0.347]]
    """
    # Some methods give probabilities of exactly 0, which have no logarithm.
    log_p = np.log(alone.clip(min=1e-300))
    centered: Array = attention[:, None] * (log_p - log_p.mean(1, keepdims=True))
    return centered


def at_least(alone: Array, ranks: Sequence[int]) -> dict[int, Array]:
    """For every boundary of urgency, by the first class above it, the probability [n] of what is as urgent or more.

    >>> at_least(np.array([[0.5, 0.1, 0.1, 0.3]]), [0, 1, 1, 2])
    {1: array([0.5]), 3: array([0.3])}
    """
    firsts = [index for index in range(1, len(ranks)) if ranks[index] > ranks[index - 1]]
    return {first: alone[:, first:].sum(1) for first in firsts}


def measure(learner: Learner, features: Tensor, attention: list[Tensor], slide_id: str) -> dict[str, tuple[str, Array]]:
    """Named values per tile, with the kind that decides how they are drawn: rank, sign or probability.

    Where the model judges instances one by one, each has a probability of its own of being at least so urgent.
    """
    hierarchy, levels = learner.hierarchy, learner.levels[-len(attention) :]
    measured: dict[str, tuple[str, Array]] = {}
    alone = each_alone(learner, features, slide_id)[-len(attention) :]
    for level, weights, probabilities in zip(levels, attention, alone, strict=True):
        name, labels = hierarchy.level_names[level], hierarchy.names(level)
        shares = weights.double().numpy()
        measured[f"attention {name}"] = ("rank", shares)
        if learner.model.judges_instances:
            for first, values in at_least(probabilities, hierarchy.ranks(level).tolist()).items():
                measured[f"urgency {name} {labels[first]}"] = ("probability", values)
        for label, values in zip(labels, evidence(probabilities, shares).T, strict=True):
            measured[f"evidence {name} {label}"] = ("sign", values)
    return measured
