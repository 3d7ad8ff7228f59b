"""What must be said first, as loops over slides."""

from __future__ import annotations

from fractions import Fraction


def call_kinds(levels: list[list[tuple[int, int]]]) -> str | None:
    """The caution about calls; `levels` has (true, called) of every slide, finest level first."""
    for pairs in levels:
        calls = [called for _, called in pairs]
        top = min(set(calls), key=lambda label: (-calls.count(label), label))
        others_called = sum(called != top for _, called in pairs)
        others_true = sum(true != top for true, _ in pairs)
        if len(pairs) > 1 and 4 * others_called < others_true:
            return "constant" if others_called == 0 else "collapsed"
    several = len({true for true, _ in levels[0]}) > 1
    return "no skill" if several and all(without_skill(pairs) for pairs in levels) else None


def without_skill(pairs: list[tuple[int, int]]) -> bool:
    classes = {true for true, _ in pairs}
    recalls = []
    for label in classes:
        calls = [called for true, called in pairs if true == label]
        recalls.append(Fraction(calls.count(label), len(calls)))
    return sum(recalls, Fraction(0)) / len(classes) <= Fraction(1, len(classes))
