"""The metrics as loops over the printed equations, slow and obvious. `outranks(t, r)` and counts S[t][r] come in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Counts = Sequence[Sequence[int]]
Outranks = Callable[[int, int], bool]


def wheel(t: int, r: int, outranks: Outranks, penalty: float) -> float:
    """W[t, r] = 1 + |t - r| + P when the true class t is more urgent than the predicted class r."""
    return 1.0 + abs(t - r) + (penalty if outranks(t, r) else 0.0)


def cells(S: Counts) -> list[tuple[int, int, int]]:
    return [(t, r, int(count)) for t, row in enumerate(S) for r, count in enumerate(row)]


def classification_confidence(S: Counts, outranks: Outranks, penalty: float) -> float:
    samples = sum(count for _, _, count in cells(S))
    return sum(count / wheel(t, r, outranks, penalty) for t, r, count in cells(S)) / samples


def misclassification_confidence(S: Counts, outranks: Outranks, penalty: float) -> float:
    wrong = [(t, r, count) for t, r, count in cells(S) if t != r and count]
    if not wrong:
        return math.inf
    gentle = sum(count / (wheel(t, r, outranks, penalty) - 1.0) for t, r, count in wrong)
    return gentle / sum(count for _, _, count in wrong)


def risk(S: Counts, outranks: Outranks, penalty: float) -> float:
    wrong = [(t, r, count) for t, r, count in cells(S) if t != r and count]
    if not wrong:
        return 0.0
    total = 0.0
    for t, r, count in wrong:
        total += (1.0 if outranks(t, r) else 0.5) * count * wheel(t, r, outranks, penalty)
    return total / sum(count for _, _, count in wrong)


def severe(S: Counts, outranks: Outranks) -> int:
    return sum(count for t, r, count in cells(S) if outranks(t, r))


def false_alarms(S: Counts, outranks: Outranks) -> int:
    return sum(count for t, r, count in cells(S) if outranks(r, t))


def mean_distance(S: Counts, chosen: Callable[[int, int], bool]) -> float:
    found = [(abs(t - r), count) for t, r, count in cells(S) if chosen(t, r) and count]
    samples = sum(count for _, count in found)
    return sum(step * count for step, count in found) / samples if samples else math.nan


def auc(true: Sequence[int], scores: Sequence[Sequence[float]], c: int) -> float:
    """Share of (positive, negative) pairs in which the positive has the higher score; a tie counts half."""
    won, pairs = 0.0, 0
    for i, own in enumerate(true):
        for j, other in enumerate(true):
            if own == c and other != c:
                pairs += 1
                won += 1.0 if scores[i][c] > scores[j][c] else 0.5 if scores[i][c] == scores[j][c] else 0.0
    return won / pairs if pairs else math.nan


def macro_auc(true: Sequence[int], scores: Sequence[Sequence[float]]) -> float:
    values = [auc(true, scores, c) for c in range(len(scores[0]))]
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


def expected_class_of_errors(
    true: Sequence[int], predicted: Sequence[int], scores: Sequence[Sequence[float]], c: int
) -> float:
    values = []
    for t, r, p in zip(true, predicted, scores, strict=True):
        if t == c and r != t:
            values.append(sum((k + 1) * share for k, share in enumerate(p)))
    return sum(values) / len(values) if values else math.nan


def expected_cost(true: Sequence[int], scores: Sequence[Sequence[float]], cost: Sequence[Sequence[float]]) -> float:
    total = 0.0
    for t, p in zip(true, scores, strict=True):
        total += sum(share * cost[t][r] for r, share in enumerate(p))
    return total / len(true)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p of rank i is the largest (m - j) p_(j) over j <= i, at most 1."""
    m = len(p_values)
    order = sorted(range(m), key=lambda i: p_values[i])
    adjusted = [0.0] * m
    for position, index in enumerate(order):
        adjusted[index] = min(1.0, max((m - j) * p_values[order[j]] for j in range(position + 1)))
    return adjusted
