"""Subgroups in plain loops: observed and expected misses of every group, and the statistic that compares them."""

from __future__ import annotations


def observed_and_expected(event, target, group):
    """{group: (observed, expected)}."""
    share = {}
    for label in set(target):
        own = [bool(e) for e, t in zip(event, target, strict=True) if t == label]
        share[label] = sum(own) / len(own)
    found = {}
    for e, t, g in zip(event, target, group, strict=True):
        seen, wanted = found.get(g, (0, 0.0))
        found[g] = (seen + bool(e), wanted + share[t])
    return found


def statistic(event, target, group):
    total = 0.0
    for seen, wanted in observed_and_expected(event, target, group).values():
        if wanted > 0:
            total += (seen - wanted) ** 2 / wanted
    return total
