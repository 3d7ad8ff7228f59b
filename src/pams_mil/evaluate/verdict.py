"""One sentence about two models: which one is safer, if the slides show it, or what else is true.

A model that misses less urgency and raises more false alarms may only sit at another operating point. It is called
safer only on one of two grounds:

1. it misses significantly less when both raise the same false alarms (`matched`), or
2. as decided it misses significantly less and raises no more false alarms.

0.05 is shared between the two. Models whose calls carry no information are not compared at all; too few patients are
said first, and then nothing is called settled.
"""

from __future__ import annotations

import math

import numpy as np

from pams_mil.evaluate.compare import Comparison, Matched
from pams_mil.evaluate.contrast import Contrast

Judgment = tuple[str | None, str]
SIGNIFICANT = 0.05
FEWEST_PATIENTS = 10
"""Below this nothing is called settled; with fewer than six no swap of patients could reach 0.05."""


def verdict(comparison: Comparison) -> str:
    """The sentence, about the finest level."""
    if comparison.void:
        return (
            f"{comparison.reference} and {comparison.candidate} are not compared: the calls of "
            f"{' and '.join(comparison.void)} carry no information."
        )
    sentence = f"{_judged(comparison)[1]} {comparison.subject}"
    if not _few(comparison):
        return sentence
    many = "patient" if comparison.patients == 1 else "patients"
    return f"Only {comparison.patients} {many}: too few to call either model safer. {sentence}"


def safer_model(comparison: Comparison) -> str | None:
    """The model that the sentence calls safer at the finest level; None where it calls neither so."""
    return None if comparison.void else _judged(comparison)[0]


def settles(comparison: Comparison, contrast: Contrast) -> bool:
    """Whether one contrast, named beforehand, tells the models apart: by p and by interval, with enough patients."""
    return not comparison.void and not _few(comparison) and _separate(contrast)


def _misses_less(comparison: Comparison, differences: dict[str, Contrast], candidate: bool) -> bool:
    """Whether a model that is no worse in both rates misses significantly less, with mistakes that are not graver."""
    mild = differences["asmc"]
    graver = _significant(mild) and not _is_milder(mild, candidate)
    return not _few(comparison) and _significant(differences["missed_rate"]) and not graver


def _is_milder(mild: Contrast, candidate: bool) -> bool:
    return (mild.difference > 0) == candidate and mild.difference != 0


def _few(comparison: Comparison) -> bool:
    return comparison.patients < FEWEST_PATIENTS


def _judged(comparison: Comparison) -> Judgment:
    """The safer model at the finest level, if either is, and the sentence."""
    level = list(comparison.levels)[-1]
    differences, match = comparison.levels[level], comparison.matched.get(level)
    missed, alarms = differences["missed_rate"], differences["false_alarm_rate"]
    # Equal false alarms come first: only they tell a better model from another operating point.
    if match is not None and not _few(comparison) and _settled(match.missed):
        return _safer_at_equal_alarms(comparison, differences, match)
    if missed.difference == 0 and alarms.difference == 0:
        return None, _equal(comparison, differences)
    # Opposite signs: one misses less, the other raises fewer false alarms.
    if missed.difference * alarms.difference < 0:
        return None, _other_point(comparison, missed, alarms, match)
    return _no_worse_in_both(comparison, differences, match)


def _safer_at_equal_alarms(comparison: Comparison, differences: dict[str, Contrast], match: Matched) -> Judgment:
    gap, candidate = match.missed, match.missed.difference < 0
    safer, other = _names(comparison, candidate)
    mine, theirs = _mine_and_theirs(gap, candidate)
    missed, raised = differences["missed_rate"], differences["false_alarm_rate"]
    return safer, (
        f"{safer} is safer than {other}: at {100 * match.at_false_alarms:.1f} % false alarms of both it misses urgency "
        f"in {100 * mine:.1f} % of the slides against {100 * theirs:.1f} % ({_evidence(comparison, gap)}). "
        f"As decided it misses {_shares(missed, candidate)} and over-calls {_shares(raised, candidate)}"
        f"{_accuracy(differences['acc'], candidate, other)}."
    )


def _other_point(comparison: Comparison, missed: Contrast, alarms: Contrast, match: Matched | None) -> str:
    candidate = missed.difference < 0
    careful, other = _names(comparison, candidate)
    opening = (
        f"{careful} operates at a different point from {other}: it misses {100 * abs(missed.difference):.1f} points "
        f"less ({_shares(missed, candidate)}) and over-calls {100 * abs(alarms.difference):.1f} points more "
        f"({_shares(alarms, candidate)})"
    )
    if match is None:
        return (
            f"{opening}. Without the probabilities of both, they cannot be compared at equal false alarms, so neither "
            "can be called safer."
        )
    return f"{opening}; {_at_equal_alarms(comparison, match.missed)}."


def _at_equal_alarms(comparison: Comparison, gap: Contrast) -> str:
    settled = not _few(comparison) and _separate(gap)
    words = "the difference in misses is not settled" if settled else "their misses cannot be told apart"
    return f"at equal false alarms {words} ({_evidence(comparison, gap)})"


def _no_worse_in_both(comparison: Comparison, differences: dict[str, Contrast], match: Matched | None) -> Judgment:
    missed, alarms, mild = differences["missed_rate"], differences["false_alarm_rate"], differences["asmc"]
    candidate = missed.difference < 0 or (missed.difference == 0 and alarms.difference < 0)
    safer, other = _names(comparison, candidate)
    if missed.difference == 0:
        return None, (
            f"{comparison.reference} and {comparison.candidate} miss urgency equally often, in "
            f"{100 * missed.reference:.1f} % of the slides; {safer} over-calls less ({_shares(alarms, candidate)}"
            f"{alarms.p_words})."
        )
    milder, settled = _is_milder(mild, candidate), _misses_less(comparison, differences, candidate)
    unsettled = f"{safer} looks safer than {other}, but these slides do not settle it"
    opening = f"{safer} is safer than {other}" if settled else unsettled
    tail = "as many false alarms" if alarms.difference == 0 else f"fewer false alarms ({_shares(alarms, candidate)})"
    equal = "" if settled or match is None else f"; {_at_equal_alarms(comparison, match.missed)}"
    return safer if settled else None, (
        f"{opening}: it misses urgency in {_shares(missed, candidate, ' of the slides')} "
        f"({_evidence(comparison, missed)}) with {tail}{equal}"
        f"{_mildness(mild, candidate, milder)}{_accuracy(differences['acc'], candidate, other)}."
    )


def _equal(comparison: Comparison, differences: dict[str, Contrast]) -> str:
    missed, alarms = differences["missed_rate"], differences["false_alarm_rate"]
    pair = f"{comparison.reference} and {comparison.candidate}"
    rates = f"both miss {100 * missed.reference:.1f} % and over-call {100 * alarms.reference:.1f} %"
    return f"{pair} are equally safe on these {comparison.n} slides: {rates}."


def _names(comparison: Comparison, candidate: bool) -> tuple[str, str]:
    pair = (comparison.candidate, comparison.reference)
    return pair if candidate else pair[::-1]


def _mine_and_theirs(contrast: Contrast, candidate: bool) -> tuple[float, float]:
    return (contrast.candidate, contrast.reference) if candidate else (contrast.reference, contrast.candidate)


def _shares(difference: Contrast, candidate: bool, of: str = "") -> str:
    mine, theirs = _mine_and_theirs(difference, candidate)
    return f"{100 * mine:.1f} %{of} against {100 * theirs:.1f} %"


def _evidence(comparison: Comparison, missed: Contrast) -> str:
    short = missed.p is not None and SIGNIFICANT / 2 < missed.p <= SIGNIFICANT
    bar = f"; a verdict asks two questions and takes {SIGNIFICANT / 2:g}" if short else ""
    return f"{comparison.candidate} − {comparison.reference}: {missed.evidence}{bar}"


def _mildness(mild: Contrast, candidate: bool, milder: bool) -> str:
    mine, theirs = _mine_and_theirs(mild, candidate)
    if not np.isfinite([mine, theirs]).all() or mild.difference == 0:
        return ""
    verb = "are" if _significant(mild) else "look"
    claim = f", and its mistakes {verb} milder" if milder else f", but its mistakes {verb} graver"
    return f"{claim} (AsMC {100 * mine:.1f} % against {100 * theirs:.1f} %{mild.p_words})"


def _accuracy(right: Contrast, candidate: bool, other: str) -> str:
    mine, theirs = _mine_and_theirs(right, candidate)
    if theirs <= mine:
        return ""
    return f", although {other} is more accurate ({100 * theirs:.1f} % against {100 * mine:.1f} %)"


def _separate(gap: Contrast) -> bool:
    """Whether the interval leaves out 0 and p is at most 0.05; without resamples the test alone decides."""
    low, high = gap.shown_interval
    return gap.p is not None and gap.p <= SIGNIFICANT and (math.isnan(low) or low > 0 or high < 0)


def _settled(gap: Contrast) -> bool:
    return _separate(gap) and gap.p is not None and gap.p <= SIGNIFICANT / 2


def _significant(difference: Contrast) -> bool:
    # without an interval (none was asked for) the test decides, unless one model makes no mistakes at all
    no_interval = np.isnan(difference.shown_interval[0]) and np.isfinite(difference.difference)
    small = difference.p is not None and difference.p <= SIGNIFICANT / 2
    return small and (difference.better is not None or bool(no_interval))
