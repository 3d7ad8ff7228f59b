"""Curves and scores of probabilities as plain loops over the definitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def rates(true: Sequence[int], called: Sequence[int], ranks: Sequence[int]) -> tuple[float, float]:
    """(missed, false alarms) as shares of all cases."""
    missed = sum(1 for t, r in zip(true, called, strict=True) if ranks[t] > ranks[r])
    alarms = sum(1 for t, r in zip(true, called, strict=True) if ranks[t] < ranks[r])
    return missed / len(true), alarms / len(true)


def area(points: Sequence[tuple[float, float]]) -> float:
    """∫ missed d(false alarms) over points (missed, false alarms) joined by straight lines."""
    total = 0.0
    for (u, o), (v, q) in itertools.pairwise(points):
        total += (q - o) * (u + v) / 2
    return total


def no_information_area(true: Sequence[int], ranks: Sequence[int]) -> float:
    """∫ of the lowest value that any mix of two constant calls reaches, by its corners."""
    n = len(true)
    constants = sorted({(sum(ranks[t] < r for t in true) / n, sum(ranks[t] > r for t in true) / n) for r in set(ranks)})
    corners = []
    for x, y in constants:  # a corner lies below every line between two other constants
        covered = False
        for x1, y1 in constants:
            for x2, y2 in constants:
                if x1 < x < x2 and y1 + (y2 - y1) * (x - x1) / (x2 - x1) <= y:
                    covered = True
                if x1 == x and y1 < y:
                    covered = True
        if not covered:
            corners.append((y, x))
    return area(sorted(corners, key=lambda corner: corner[1]))


def rps(true: Sequence[int], p: Sequence[Sequence[float]], ranks: Sequence[int]) -> float:
    steps = sorted(set(ranks))[1:]
    total = 0.0
    for t, row in zip(true, p, strict=True):
        for step in steps:
            share = sum(value for value, rank in zip(row, ranks, strict=True) if rank >= step)
            total += (share - (1.0 if ranks[t] >= step else 0.0)) ** 2
    return total / (len(true) * len(steps))


def c_index(true: Sequence[int], p: Sequence[Sequence[float]], ranks: Sequence[int]) -> float | None:
    score = [sum(value * rank for value, rank in zip(row, ranks, strict=True)) for row in p]
    won, pairs = 0.0, 0
    for i, low in enumerate(true):
        for j, high in enumerate(true):
            if ranks[high] > ranks[low]:
                pairs += 1
                won += 1.0 if score[j] > score[i] else 0.5 if score[j] == score[i] else 0.0
    return won / pairs if pairs else None


def lower_hull(missed: list[float], alarms: list[float]) -> list[float]:
    """Every point lowered to the best mix of a point before it and one behind it, by trying all pairs."""
    hull = list(missed)
    for point in range(len(missed)):
        for a in range(point):
            for b in range(point + 1, len(missed)):
                if alarms[b] > alarms[a]:
                    share = (alarms[point] - alarms[a]) / (alarms[b] - alarms[a])
                    hull[point] = min(hull[point], missed[a] + share * (missed[b] - missed[a]))
    return hull
