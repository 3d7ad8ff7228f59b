"""Which recipe wins: validation urgency AUC, and the simplest within one standard error of the best.

All recipes of a rung have predicted the same validation slides, each slide by models that saw none of its patient's.
A slide's probabilities are the mean over the seeds that validated it, as they are when they predict together. With A_r
the urgency AUC of recipe r, computed within each fold and averaged, and * a resample of patients, the same for all:

    standard error of r            SE_r  = sd_* A*_r
    r is behind the best b by      D_r   = A_b − A_r,      with standard error   S_r = sd_* (A*_b − A*_r)
    r is within one standard error of the best:            D_r ≤ S_r
    chosen: the simplest of these, by `simplicity`

S_r and not SE_r is the yardstick: what makes the cohort's slides easy or hard is common to all recipes and cancels in
the difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.arrays import Array
from pams_mil.engine.prediction.scored_runs import of_folds
from pams_mil.errors import RunError
from pams_mil.evaluate.inference import Networks, draw
from pams_mil.evaluate.predictions.join import mean_by_slide
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS

METRIC = METRICS["urgency_auc"]
RESAMPLES = 1000
BEST = 5
"""Recipes whose mean a tuning ends in."""


class EquallyUrgentError(RunError):
    """Validation slides that cannot tell recipes apart."""


@dataclass(frozen=True)
class RecipeScore:
    """A recipe on the validation slides of a rung: its urgency AUC, and by how much it is behind the best."""

    name: str
    urgency_auc: float
    """A_r."""
    standard_error: float = 0.0
    """SE_r; 0 where it is not known."""
    behind: float = 0.0
    """D_r; 0 for the best."""
    behind_error: float = 0.0
    """S_r."""

    @property
    def is_near_best(self) -> bool:
        """Whether it is within one standard error of the best."""
        return self.behind <= self.behind_error

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**dict(zip(_KEYS, astuple(self), strict=True)), "within_one_standard_error": self.is_near_best}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RecipeScore:
        """A score as `to_json` wrote it."""
        return cls(*(content[key] for key in _KEYS))


_KEYS = ("recipe", "urgency_auc", "standard_error", "behind_best", "behind_best_error")


def score_recipes(
    validation: Mapping[str, Predictions], *, seed: int = 0, resamples: int = RESAMPLES
) -> list[RecipeScore]:
    """Scores of recipes by their predictions of the same validation slides, the best first."""
    first = next(iter(validation.values()))
    for other in validation.values():
        if list(other.slide_ids) != list(first.slide_ids) or (other.target != first.target).any():
            raise RunError(f"{first.name} and {other.name} did not validate the same slides; tune in another folder.")
    drawn = draw(first, seed, resamples)  # the same resamples for all
    models = {name: Networks(one, drawn=drawn) for name, one in validation.items()}
    values = {name: float(model.read([METRIC])[METRIC.key][0, 0]) for name, model in models.items()}
    samples = {name: model.drawn([METRIC])[METRIC.key][0] for name, model in models.items()}
    if any(map(math.isnan, values.values())):
        raise EquallyUrgentError(
            "All validation slides are equally urgent, so recipes cannot be told apart. Use fewer folds, or look at "
            "the labels."
        )
    leader = max(values, key=values.__getitem__)  # of equal ones the first, in the order of the space
    ranked = [
        RecipeScore(
            name, value, _deviation(samples[name]), values[leader] - value, _deviation(samples[leader] - samples[name])
        )
        for name, value in values.items()
    ]
    return sorted(ranked, key=lambda one: -one.urgency_auc)


def _deviation(samples: Array) -> float:
    """The standard deviation of resamples; 0 where the score is undefined in most of them."""
    finite = samples[np.isfinite(samples)]
    return 0.0 if 2 * finite.size < samples.size or finite.size < 2 else float(finite.std(ddof=1))


def validation_auc(validation: Predictions) -> float:
    """The urgency AUC within each fold, averaged by slides."""
    return float(Networks(validation).read([METRIC])[METRIC.key][0, 0])


def choose(scores: Sequence[RecipeScore], simplicity: Mapping[str, Any]) -> RecipeScore:
    """The simplest recipe within one standard error of the best.

    >>> best, near = RecipeScore("fancy", 0.80, 0.03), RecipeScore("plain", 0.79, 0.03, 0.01, 0.02)
    >>> far = RecipeScore("plainest", 0.70, 0.03, 0.10, 0.02)
    >>> choose([best, near, far], {"plainest": 0, "plain": 1, "fancy": 2}).name
    'plain'
    """
    return min((score for score in scores if score.is_near_best), key=lambda score: simplicity[score.name])


def survivors(scores: Sequence[RecipeScore], count: int, simplicity: Mapping[str, Any], reference: str) -> list[str]:
    """The `count` recipes that go on: the reference, the one that would be chosen now, then the best of the others.

    >>> scores = [RecipeScore(*one) for one in (("a", 0.8, 0.0), ("b", 0.7, 0.0, 0.1), ("plain", 0.5, 0.0, 0.3))]
    >>> survivors(scores, 2, {"a": 1, "b": 2, "plain": 0}, "plain")
    ['plain', 'a']
    """
    ranked = sorted(scores, key=lambda one: (-one.urgency_auc, simplicity[one.name]))
    # The choice of now first: it may be a simple recipe that the score alone would drop.
    first = (reference, choose(scores, simplicity).name)
    return list(dict.fromkeys([*first, *(score.name for score in ranked)]))[:count]


def why(chosen: RecipeScore, best: RecipeScore, near: int, tried: int, rung: int, ended: str) -> str:
    """The choice in a sentence or two.

    >>> one, two = RecipeScore("plain", 0.74, 0.02, 0.01, 0.012), RecipeScore("fancy", 0.75, 0.02)
    >>> why(one, two, 3, 5, 2, "")[:79]
    'plain is the simplest of 3 recipes within one standard error of the best of the'
    """
    shown = f"urgency AUC {100 * chosen.urgency_auc:.1f}, standard error {100 * chosen.standard_error:.1f}"
    early = f" {ended}, so the choice is among the recipes that were all measured alike before." if ended else ""
    if chosen.name == best.name:
        within = "within one standard error"
        alone = f"no other is {within}" if near == 1 else f"and the simplest of {near} {within}"
        best_of = f"{chosen.name} is the best of the {tried} recipes in rung {rung} on validation"
        return f"{best_of} ({shown}), {alone}.{early}"
    return (
        f"{chosen.name} is the simplest of {near} recipes within one standard error of the best of the {tried} in rung "
        f"{rung} on validation: {shown}; {best.name} is ahead by {100 * chosen.behind:.1f}, standard "
        f"error of the difference {100 * chosen.behind_error:.1f}.{early}"
    )


def best(rungs: Sequence[Sequence[RecipeScore]]) -> list[str]:
    """The best recipes by validation, at most BEST: those of the last rung, then of the one before, and so on.

    >>> early = [RecipeScore(*one) for one in (("b", 0.8, 0.0), ("c", 0.7, 0.0, 0.1), ("a", 0.6, 0.0, 0.2))]
    >>> best([early, [RecipeScore("a", 0.7, 0.0), RecipeScore("b", 0.6, 0.0, 0.1)]])
    ['a', 'b', 'c']
    """
    return list(dict.fromkeys(score.name for scores in reversed(rungs) for score in scores))[:BEST]


def read_validation(runs: Sequence[tuple[int, Path]], hierarchy: ClassHierarchy, name: str) -> Predictions:
    """Every validation slide of some runs, each with its fold, in the order of ids; of several runs, the mean."""
    joined = of_folds(runs, hierarchy, name, "val")
    if joined.probabilities is None or joined.patient_ids is None:
        raise RunError(f"Validation predictions of {name} have no probabilities or patients; train it again.")
    # Slides of the same folds are ranked together: the same networks predicted them.
    return mean_by_slide(joined, sorted(set(joined.slide_ids)))
