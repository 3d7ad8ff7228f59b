"""Bias of training, calibration and its fit as loops over the equations, slow and obvious."""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = Sequence[float]
Table = Sequence[Sequence[float]]


def msce_gradient(p: Row, eta: Row, M: Table) -> list[float]:
    """d/dz_k of Σ_t η_t (−w_t ln p_t), w_t = Σ_r p_r M[t][r], by the chain rule of the softmax, term by term."""
    classes = range(len(p))
    found = []
    for k in classes:
        total = 0.0
        for t in classes:
            w = sum(p[r] * M[t][r] for r in classes)
            slope_of_w = sum(p[r] * ((r == k) - p[k]) * M[t][r] for r in classes)
            slope_of_log = (t == k) - p[k]
            total += eta[t] * (-slope_of_w * math.log(p[t]) - w * slope_of_log)
        found.append(total)
    return found


def msce_population_loss(p: Row, eta: Row, M: Table) -> float:
    classes = range(len(p))
    return sum(-eta[t] * sum(p[r] * M[t][r] for r in classes) * math.log(p[t]) for t in classes)


def null_vector(p: Row, M: Table) -> list[float]:
    """η with A(p) η = 0, A[k][t] = w_t (p_k − 1[k=t]) − ln p_t p_k (M[t][k] − w_t): Gaussian elimination, Σ η = 1."""
    size = len(p)
    w = [sum(p[r] * M[t][r] for r in range(size)) for t in range(size)]
    rows = [
        [w[t] * (p[k] - (k == t)) - math.log(p[t]) * p[k] * (M[t][k] - w[t]) for t in range(size)] + [0.0]
        for k in range(size - 1)  # the last equation follows: columns sum to 0
    ]
    rows.append([1.0] * size + [1.0])
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(size):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [one - factor * two for one, two in zip(rows[row], rows[column], strict=True)]
    return [rows[k][size] / rows[k][k] for k in range(size)]


def trained_on(targets: Sequence[int], ranks: Sequence[int], probability: float, mode: str) -> list[float]:
    """Expected labels of one epoch per class, by letting every slide meet every partner that it may meet."""
    labels = [0.0] * len(ranks)
    for i, own in enumerate(targets):
        partners = [other for j, other in enumerate(targets) if j != i and ranks[other] != ranks[own]]
        remixed = probability if partners else 0.0
        labels[own] += 1.0 if mode == "add" else 1.0 - remixed
        for other in partners:
            label = own if ranks[own] > ranks[other] else other
            labels[label] += remixed / len(partners)
    return labels


def trained_on_keeping_labels(
    targets: Sequence[int], ranks: Sequence[int], probability: float, own_class: bool
) -> list[float]:
    """Expected labels of one epoch per class when remixed bags are added and the drawn slide keeps its label."""
    labels = [0.0] * len(ranks)
    for i, own in enumerate(targets):
        partners = [
            other
            for j, other in enumerate(targets)
            if j != i and (ranks[other] < ranks[own] or (own_class and other == own))
        ]
        labels[own] += 1.0 + (probability if partners else 0.0)
    return labels


def softmax(z: Row) -> list[float]:
    top = max(z)
    exps = [math.exp(value - top) for value in z]
    return [value / sum(exps) for value in exps]


def nll(p: Table, targets: Sequence[int], temperature: float, bias: Row) -> float:
    """Mean of −ln q_t with q = softmax(ln p / T + b)."""
    total = 0.0
    for row, t in zip(p, targets, strict=True):
        q = softmax([math.log(value) / temperature + b for value, b in zip(row, bias, strict=True)])
        total -= math.log(q[t])
    return total / len(targets)
