"""Guarantees on missed urgency as plain loops, straight from the definitions: slow and obvious."""

from __future__ import annotations

import math


def missed(reach_of_slides, rank, kappa):
    """Whether the most urgent call of some slides is below a rank; at κ = ∞ every call is the most urgent class."""
    if math.isinf(kappa):
        return False
    return not any(reach[rank] <= kappa for reach in reach_of_slides)


def patient_losses(reach, ranks, patients, kappa, *, unit, boundary=None):
    """[(loss, weight)] of the patients that count, at one κ."""
    found = []
    for patient in dict.fromkeys(patients):
        rows = [row for row, whose in enumerate(patients) if whose == patient]
        if unit == "case":
            label = max(ranks[row] for row in rows)
            if boundary is not None and label < boundary:
                continue
            needed = label if boundary is None else boundary
            found.append((float(missed([reach[row] for row in rows], needed, kappa)), 1.0))
            continue
        rows = [row for row in rows if boundary is None or ranks[row] >= boundary]
        if not rows:
            continue
        misses = sum(missed([reach[row]], ranks[row] if boundary is None else boundary, kappa) for row in rows)
        found.append((misses / len(rows), 1.0))
    return found


def smallest_kappa_on_average(reach, ranks, patients, alpha, *, unit="case", boundary=None):
    """Conformal risk control, trying every κ at which anything changes; None when none will do."""
    for kappa in every_kappa(reach):
        losses = patient_losses(reach, ranks, patients, kappa, unit=unit, boundary=boundary)
        n = len(losses)
        mean = sum(loss for loss, _ in losses) / n if n else 0.0
        if n / (n + 1) * mean + 1 / (n + 1) <= alpha + 1e-12:
            return kappa
    return None


def smallest_kappa_by_prevalence(reach, ranks, patients, alpha, weights):
    """The re-weighted version for cases; `weights` by rank, the next patient has the heaviest."""
    worst = max(weights)
    for kappa in every_kappa(reach):
        above, below = worst, worst
        for patient in dict.fromkeys(patients):
            rows = [row for row, whose in enumerate(patients) if whose == patient]
            label = max(ranks[row] for row in rows)
            below += weights[label]
            if missed([reach[row] for row in rows], label, kappa):
                above += weights[label]
        if above / below <= alpha + 1e-12:
            return kappa
    return None


def every_kappa(reach):
    return sorted({0.0, math.inf, *(value for row in reach for value in row)})


def binomial_cdf(k, n, p):
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(int(k) + 1))


def clopper_pearson(k, n, delta):
    """The p at which k misses or fewer of n have probability δ, by halving."""
    if k >= n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_cdf(k, n, middle) > delta else (low, middle)
    return high


def hoeffding_bentkus(mean, n, alpha):
    a = min(mean, alpha)
    h = (a * math.log(a / alpha) if a > 0 else 0.0) + (1 - a) * math.log((1 - a) / (1 - alpha))
    return min(1.0, math.exp(-n * h), math.e * binomial_cdf(math.ceil(round(n * mean, 9)), n, alpha))


def wealth(losses, mean, stakes):
    """The average over stakes of what a bettor owns after every patient."""
    owned, found = [1.0] * len(stakes), []
    for loss in losses:
        owned = [own * (1 - stake + stake * loss / mean) for own, stake in zip(owned, stakes, strict=True)]
        found.append(sum(owned) / len(owned))
    return found


def largest_distance(before, now):
    """max over columns and values of the difference of two empirical distribution functions."""
    largest = 0.0
    for column in range(len(before[0])):
        for value in [row[column] for row in (*before, *now)]:
            shares = [sum(row[column] <= value for row in group) / len(group) for group in (before, now)]
            largest = max(largest, abs(shares[0] - shares[1]))
    return largest
