"""The call at one κ in exact fractions, class by class; floats are taken as the fractions they are."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def objective(
    p: Sequence[float], ranks: Sequence[int], cost: Sequence[Sequence[float]], r: int, kappa: float
) -> Fraction:
    """Σ_t p_t (F[t, r] + κ U[t, r])."""
    total = Fraction(0)
    for t in range(len(p)):
        weight = Fraction(kappa) if ranks[t] > ranks[r] else Fraction(1)
        total += Fraction(p[t]) * weight * Fraction(cost[t][r])
    return total


def call(p: Sequence[float], ranks: Sequence[int], cost: Sequence[Sequence[float]], kappa: float) -> int:
    """The last class with the smallest objective."""
    values = [objective(p, ranks, cost, r, kappa) for r in range(len(p))]
    return max(r for r in range(len(p)) if values[r] == min(values))


def corners(p: Sequence[float], ranks: Sequence[int], cost: Sequence[Sequence[float]]) -> list[tuple[Fraction, int]]:
    """(κ, call from there on) by trying every κ > 0 at which two classes cost the same."""
    size = len(p)
    intercept = [objective(p, ranks, cost, r, 0) for r in range(size)]
    slope = [objective(p, ranks, cost, r, 1) - intercept[r] for r in range(size)]
    crossings = {Fraction(0)}
    for r in range(size):
        for s in range(size):
            if slope[r] > slope[s]:
                crossings.add((intercept[s] - intercept[r]) / (slope[r] - slope[s]))
    found: list[tuple[Fraction, int]] = []
    for kappa in sorted(k for k in crossings if k >= 0):
        values = [intercept[r] + kappa * slope[r] for r in range(size)]
        best = max(r for r in range(size) if values[r] == min(values))
        if not found or best != found[-1][1]:
            found.append((kappa, best))
    return found
