"""What a committee is worth: against single networks, against as many plain ones averaged, and what each member adds.

A member's share is the committee minus the committee without it, on the same slides, at the finest level. Members are
fixed beforehand: the table describes them, and leaving one out because of it would be a choice made on test slides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pams_mil.atomic import plain
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.compare import Comparison
from pams_mil.evaluate.contrast import Contrast, adjusted
from pams_mil.evaluate.inference import contrasts, estimate
from pams_mil.evaluate.predictions.join import all_weights
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.metric import METRICS, missed_key, stated_rate
from pams_mil.metrics.resampling import RESAMPLES


@dataclass(frozen=True)
class MemberShare:
    """One member: by itself, the committee without it, and what it adds; urgency AUC and misses at the stated rate."""

    name: str
    recipe: str
    alone: Mapping[str, Contrast]
    without: Mapping[str, Contrast]
    adds: Mapping[str, Contrast]
    """The committee minus the committee without the member, adjusted for the number of members."""

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {key: plain(_public(one) if isinstance(one, Mapping) else one) for key, one in vars(self).items()}


@dataclass(frozen=True)
class CommitteeAudit:
    """A committee beside its members, in the order of the recipe file, and its comparisons at the finest level.

    `scores` are its urgency AUC and its misses at the rate `false_alarms`, at which misses are stated.
    """

    name: str
    false_alarms: float
    scores: Mapping[str, Contrast]
    members: tuple[MemberShare, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def missed_key(self) -> str:
        """The metric of misses at the stated rate of false alarms."""
        return missed_key(self.false_alarms)

    @property
    def sentences(self) -> list[str]:
        """The comparisons in words, then what stands out among the members."""
        return [*(self._against(comparison) for comparison in self.comparisons), self._members()]

    def _against(self, comparison: Comparison) -> str:
        values = list(comparison.levels.values())[-1]
        area, missed = values["urgency_auc"], values[self.missed_key]
        seeds = comparison.seeds[0]
        many = f" ({seeds} networks trained alike, each by itself)" if seeds > 1 else ""
        return (
            f"Against {comparison.reference}{many}: urgency AUC {_pair(area)}; at {100 * self.false_alarms:.0f} % "
            f"false alarms {self.name} misses {_pair(missed)}."
        )

    def _members(self) -> str:
        key = "urgency_auc"
        best = max(self.members, key=lambda one: one.alone[key].value)
        most, least = (choose(self.members, key=lambda one: one.adds[key].difference) for choose in (max, min))
        area = self.scores[key].value
        beats = "more than any member alone" if area > best.alone[key].value else "and not more than its best member"
        return (
            f"{self.name} reaches an urgency AUC of {_percent(area)}, {beats} (the best, "
            f"known only afterward, is {best.name} with {_percent(best.alone[key].value)}). Without {most.name} it "
            f"would be {_percent(most.without[key].value)}, without {least.name} {_percent(least.without[key].value)}."
        )

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "name": self.name,
            "at_false_alarms": self.false_alarms,
            "scores": plain(_public(self.scores)),
            "members": plain(self.members),
            "sentences": self.sentences,
        }


def audit_committee(
    committee: Predictions,
    members: Mapping[str, Predictions],
    *,
    recipes: Mapping[str, str] | None = None,
    reference: Predictions | None = None,
    comparisons: Sequence[Comparison] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> CommitteeAudit:
    """Score every member alone and the committee, the mean of them, without it.

    `members` are out-of-fold predictions of the same slides, `recipes` the members in words. The false-alarm rate of
    the `reference` (None: the committee) decides at which of FALSE_ALARMS misses are stated; `comparisons` are those of
    the committee with its references.
    """
    stated = committee if reference is None else reference
    rate = stated_rate(float(stated.hierarchy.outranks()[stated.predicted, stated.target].mean()))
    metrics = [METRICS["urgency_auc"], METRICS[missed_key(rate)]]
    rest = {
        name: average(f"without {name}", [one for other, one in members.items() if other != name]) for name in members
    }
    adds = adjusted(
        [contrasts(without, committee, metrics, seed=seed, resamples=resamples) for without in rest.values()]
    )
    shares = [
        MemberShare(
            name,
            (recipes or {}).get(name, ""),
            alone=estimate(member, metrics, seed=seed, resamples=resamples),
            without=estimate(rest[name], metrics, seed=seed, resamples=resamples),
            adds=gain,
        )
        for (name, member), gain in zip(members.items(), adds, strict=True)
    ]
    scores = estimate(committee, metrics, seed=seed, resamples=resamples)
    return CommitteeAudit(committee.name, rate, scores, tuple(shares), tuple(comparisons))


def average(name: str, models: Sequence[Predictions]) -> Predictions:
    """The mean of the probabilities of several models, called by the most probable class.

    Raises:
        PredictionsError: the models are not of the same slides in the same order, or one has no probabilities.
    """
    first = models[0]
    probabilities = [model.probabilities for model in models if model.probabilities is not None]
    if len(probabilities) < len(models) or any(list(one.slide_ids) != list(first.slide_ids) for one in models):
        raise PredictionsError(f"{name}: expected the probabilities of the same slides in the same order from all.")
    mean = np.mean(probabilities, axis=0)
    return replace(first, name=name, probabilities=mean, predicted=mean.argmax(1), weights=all_weights(models))


def _public(scores: Mapping[str, Contrast]) -> dict[str, Contrast]:
    """Misses at the stated rate under one name, whatever the rate is."""
    return {"missed_rate" if key.startswith("missed_at_") else key: score for key, score in scores.items()}


def _percent(value: float) -> str:
    return "not defined" if math.isnan(value) else f"{100 * value:.1f} %"


def _pair(contrast: Contrast) -> str:
    """Both values, the difference, its interval and p, e.g. "72.4 % against 69.2 % (+3.2 points, ...)"."""
    return f"{_percent(contrast.candidate)} against {_percent(contrast.reference)} ({contrast.evidence})"
