"""Algorithm 1 of the paper as loops over plain lists: bins, refinement by argmax, ranking, selection."""

from __future__ import annotations

import math


def dot(x, y):
    return math.fsum(p * q for p, q in zip(x, y, strict=True))


def cosine(x, y):
    norms = math.sqrt(dot(x, x)) * math.sqrt(dot(y, y))
    return dot(x, y) / norms if norms > 0 else 0.0


def mean(rows):
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def first_bins(rows, init, clusters):
    prototype = mean(rows)
    similarity = [cosine(prototype, row) for row in rows]
    if init == "uniform":
        edges = [-1 + 2 * number / clusters for number in range(1, clusters)]
    else:
        ordered = sorted(similarity)
        edges = [ordered[number * len(rows) // clusters] for number in range(1, clusters)]
    return [sum(edge <= s for edge in edges) for s in similarity]


def refine_once(rows, labels):
    prototypes = {}
    for label in sorted(set(labels)):
        prototypes[label] = mean([row for row, own in zip(rows, labels, strict=True) if own == label])
    result = []
    for row in rows:
        best, best_similarity = None, -math.inf
        for label, prototype in prototypes.items():
            similarity = cosine(prototype, row)
            if similarity > best_similarity:
                best, best_similarity = label, similarity
        result.append(best)
    return result


def cluster(rows, *, clusters, iterations, init):
    labels = first_bins(rows, init, clusters)
    for _ in range(iterations):
        labels = refine_once(rows, labels)
    return labels


def ranking(labels, rows_a):
    """Occupied clusters by the share of a, larger first among equals, then lower number."""
    keys = []
    for label in sorted(set(labels)):
        size = sum(own == label for own in labels)
        from_a = sum(own == label for own in labels[:rows_a])
        keys.append((-from_a / size, -size, label))
    return [label for _, _, label in sorted(keys)]


def sfr(a, b, *, clusters, iterations, top_k, init):
    """(rows of a that are chosen, labels of a's and b's rows)."""
    labels = cluster(a + b, clusters=clusters, iterations=iterations, init=init)
    top = ranking(labels, len(a))[:top_k]
    return [row for row in range(len(a)) if labels[row] in top], labels
