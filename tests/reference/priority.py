"""The model of urgency from its equations, instance by instance and boundary by boundary, in float64."""

from __future__ import annotations

import math

import numpy as np
from tests.reference.pooling import attention_scores, relu_project, softmax

Array = np.ndarray


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


def class_probabilities(z: list[float], ranks: list[int]) -> list[float]:
    """P(at least k) = P(at least k - 1) sigmoid(z_k); P(rank k) their difference; ties by a softmax of the rest."""
    steps = sorted(set(ranks))
    at_least = [1.0]
    for k in range(1, len(steps)):
        at_least.append(at_least[-1] * sigmoid(z[k - 1]))
    rest = list(z[len(steps) - 1 :])
    found = []
    for k, rank in enumerate(steps):
        of_rank = at_least[k] - (at_least[k + 1] if k + 1 < len(steps) else 0.0)
        size = ranks.count(rank)
        if size == 1 and len(steps) > 1:
            found.append(of_rank)
            continue
        own, rest = rest[:size], rest[size:]
        total = sum(math.exp(t) for t in own)
        found += [of_rank * math.exp(t) / total for t in own]
    return found


def priority(bag: Array, state: dict[str, Array], ranks: list[int], pooling: str) -> tuple[list[float], Array]:
    """Class probabilities and attention: the weights of an instance in all scores, by how far each score matters."""
    rows = relu_project(bag, state)
    boundaries = len(set(ranks)) - 1
    tied = [ranks.count(rank) for rank in sorted(set(ranks)) if ranks.count(rank) > 1 or boundaries == 0]
    branches = [*range(boundaries), *(boundaries + number for number, size in enumerate(tied) for _ in range(size))]
    z, weights = [], []
    for score, branch in enumerate(branches):
        u, c = state["head.weight"][score], float(state["head.bias"][score])
        said = [float(u @ h) + c for h in rows]
        if pooling == "attention":
            a = softmax(attention_scores(rows, state, "scores", branch=branch))
            z.append(sum(share * s for share, s in zip(a, said, strict=True)))
        elif pooling == "mean":
            a = np.full(len(rows), 1 / len(rows))
            z.append(sum(said) / len(said))
        else:
            r = math.exp(state["smooth_max.log_sharpness"][score])
            a = softmax(np.array([r * s for s in said]))
            z.append(math.log(sum(math.exp(r * s) for s in said) / len(said)) / r)
        weights.append(a)
    return class_probabilities(z, ranks), np.stack(weights, axis=1) @ np.array(asked(z, ranks))


def asked(z: list[float], ranks: list[int]) -> list[float]:
    """How far each score matters: what comes to a boundary, and every tied class's own probability; sums to 1."""
    boundaries = len(set(ranks)) - 1
    found, come = [], 1.0
    for k in range(boundaries):
        found.append(come)
        come *= sigmoid(z[k])
    p = class_probabilities(z, ranks)
    found += [p[c] for c, rank in enumerate(ranks) if ranks.count(rank) > 1 or boundaries == 0]
    return [value / sum(found) for value in found]
