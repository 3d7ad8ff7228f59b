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
from dataclasses import dataclass
from typing import Any

import numpy as np

from pams_mil.arrays import Array
from pams_mil.errors import RunError
from pams_mil.evaluate.inference import estimate
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.metric import METRICS

RESAMPLES = 1000


@dataclass(frozen=True)
class RecipeScore:
    """How a recipe did on the validation slides of a rung.

    Attributes:
        name: The recipe.
        urgency_auc: A_r.
        standard_error: SE_r over patients.
        behind: D_r, 0 for the best.
        behind_error: S_r.
    """

    name: str
    urgency_auc: float
    standard_error: float
    behind: float = 0.0
    behind_error: float = 0.0

    @property
    def is_near_best(self) -> bool:
        """Whether it is within one standard error of the best."""
        return self.behind <= self.behind_error

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "recipe": self.name,
            "urgency_auc": self.urgency_auc,
            "standard_error": self.standard_error,
            "behind_best": self.behind,
            "behind_best_error": self.behind_error,
            "within_one_standard_error": self.is_near_best,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RecipeScore:
        """A score as `to_json` wrote it."""
        keys = ("recipe", "urgency_auc", "standard_error", "behind_best", "behind_best_error")
        return cls(*(content[key] for key in keys))


def score_recipes(
    validation: Mapping[str, Predictions], *, seed: int = 0, resamples: int = RESAMPLES
) -> list[RecipeScore]:
    """Scores of recipes by their predictions of the same validation slides, the best first."""
    metric = METRICS["urgency_auc"]
    # The same patients are drawn for all recipes: only so is the spread of a difference that of the paired one.
    scores = {
        name: estimate(one, [metric], seed=seed, resamples=resamples)[metric.key] for name, one in validation.items()
    }
    if any(math.isnan(score.estimate) for score in scores.values()):
        raise RunError(
            "All validation slides are equally urgent, so recipes cannot be told apart. Use fewer folds, or look at "
            "the labels."
        )
    drawn = np.stack([np.asarray(score.samples) for score in scores.values()])
    drawn = drawn[:, np.isfinite(drawn).all(axis=0)]  # a resample of slides that are all equally urgent says nothing
    # Of equal scores the first, in the order of the space.
    best = max(scores, key=lambda name: scores[name].estimate)
    leader = drawn[list(scores).index(best)]
    ranked = [
        RecipeScore(
            name,
            score.estimate,
            _spread(samples),
            scores[best].estimate - score.estimate,
            _spread(leader - samples),
        )
        for (name, score), samples in zip(scores.items(), drawn, strict=True)
    ]
    return sorted(ranked, key=lambda score: -score.urgency_auc)


def choose(scores: Sequence[RecipeScore], simplicity: Mapping[str, Any]) -> RecipeScore:
    """The simplest recipe within one standard error of the best.

    >>> best, near = RecipeScore("fancy", 0.80, 0.03, 0.0, 0.0), RecipeScore("plain", 0.79, 0.03, 0.01, 0.02)
    >>> far = RecipeScore("plainest", 0.70, 0.03, 0.10, 0.02)
    >>> choose([best, near, far], {"plainest": 0, "plain": 1, "fancy": 2}).name
    'plain'
    """
    return min((score for score in scores if score.is_near_best), key=lambda score: simplicity[score.name])


def survivors(scores: Sequence[RecipeScore], count: int, simplicity: Mapping[str, Any], reference: str) -> list[str]:
    """The `count` recipes that go on: the reference, the one that would be chosen now, then the best of the others.

    >>> scores = [RecipeScore("a", 0.8, 0.0), RecipeScore("b", 0.7, 0.0, 0.1), RecipeScore("plain", 0.5, 0.0, 0.3)]
    >>> survivors(scores, 2, {"a": 1, "b": 2, "plain": 0}, "plain")
    ['plain', 'a']
    """
    ranked = sorted(scores, key=lambda score: (-score.urgency_auc, simplicity[score.name]))
    # The choice of now first: it may be a simple recipe that the score alone would drop.
    first = (reference, choose(scores, simplicity).name)
    return list(dict.fromkeys([*first, *(score.name for score in ranked)]))[:count]


def _spread(samples: Array) -> float:
    return float(samples.std(ddof=1)) if samples.size > 1 else 0.0
