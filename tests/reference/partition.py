"""Pseudo-bags of a remixed bag as a loop: cards of one color after the other, dealt round the table."""

from __future__ import annotations


def dealt(origins, order, count):
    """The group of every row: rows in their shuffled `order`, those of the lowest origin first."""
    groups = [None] * len(origins)
    turn = 0
    for origin in sorted(set(origins)):
        for row in order:
            if origins[row] == origin:
                groups[row] = turn % count
                turn += 1
    return groups
