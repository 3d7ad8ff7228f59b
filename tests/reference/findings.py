"""Missed findings of patients as plain loops over called sets: slow and obvious."""

from __future__ import annotations

import math


def called(own, headline, ranks, kappa):
    """Places of the findings that are called for their own probability, never beyond the most urgent call.

    `own[k]` is the odds against finding k; `headline[r]` the κ from which on the most urgent call has rank r.
    """
    if math.isinf(kappa):
        return set(range(len(own)))
    top = max(rank for rank, reached in enumerate(headline) if reached <= kappa)
    return {k for k in range(len(own)) if own[k] <= kappa and ranks[k] <= top}


def finding_losses(own, headline, ranks, present, patients, kappa, unit, weights):
    """The weighted share of missed findings of every patient at one κ, in order of first appearance."""

    def weight(findings):
        return sum(weights[k] for k in findings)

    losses = []
    for patient in dict.fromkeys(patients):
        rows = [row for row, whose in enumerate(patients) if whose == patient]
        sets = [called(own[row], headline[row], ranks, kappa) for row in rows]
        true = [{k for k, there in enumerate(present[row]) if there} for row in rows]
        if unit == "case":
            sets, true = [set().union(*sets)], [set().union(*true)]
        shares = [weight(y - s) / weight(y) if y else 0.0 for y, s in zip(true, sets, strict=True)]
        losses.append(sum(shares) / len(shares))
    return losses


def smallest_kappa(own, headline, ranks, present, patients, alpha, unit, weights):
    """Conformal risk control over every κ at which anything can change; None when none will do."""
    kappas = {0.0, math.inf, *(x for row in own for x in row), *(x for row in headline for x in row)}
    for kappa in sorted(kappas):
        losses = finding_losses(own, headline, ranks, present, patients, kappa, unit, weights)
        if (sum(losses) + 1) / (len(losses) + 1) <= alpha + 1e-12:
            return kappa
    return None
