"""Which recipe wins: pooled validation urgency AUC, and the simplest within one standard error of the best.

All recipes of a rung have predicted the same validation slides, each slide by models that saw none of its patient's.
A slide's probabilities are the mean over the runs that validated it, as they are when the runs predict together. With
A_r the urgency AUC of recipe r over all these slides and * a resample of patients, the same for all recipes:

    standard error of r            SE_r  = sd_* A*_r
    r is behind the best b by      D_r   = A_b − A_r,      with standard error   S_r = sd_* (A*_b − A*_r)
    r is within one standard error of the best:            D_r ≤ S_r
    chosen: the simplest of these, by `simplicity`

S_r and not SE_r is the yardstick: what makes the cohort's slides easy or hard is common to all recipes and cancels in
the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.errors import RunError
from pams_mil.evaluate.operating_points import patient_draws
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.metrics.operating import CurveResampler, class_shares, curve_auc

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
    target: Ints,
    probabilities: Mapping[str, Array],
    patient: Ints,
    hierarchy: ClassHierarchy,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[RecipeScore]:
    """Scores of all recipes on the same slides, the best first.

    Args:
        target: [n] classes of the finest level.
        probabilities: [n, C] by recipe.
        patient: [n] patients, numbered from 0.
        hierarchy: Order and ties of the classes.
        seed: Of the resamples.
        resamples: Of patients.
    """
    names, ranks = list(probabilities), hierarchy.ranks()
    curves = [CurveResampler(decision_path(probabilities[name], hierarchy), target) for name in names]
    observed = _aucs(curves, np.ones((1, len(target))), target, ranks)[:, 0]
    if np.isnan(observed).any():
        raise RunError(
            "All validation slides are equally urgent, so recipes cannot be told apart. Use fewer folds, or look at "
            "the labels."
        )
    # The same draws of patients for all recipes: only so is the spread of a difference that of the paired one.
    drawn = np.concatenate(
        [_aucs(curves, weights, target, ranks) for weights in patient_draws(patient, seed, resamples)], axis=1
    )
    drawn = drawn[:, np.isfinite(drawn).all(axis=0)]  # a resample of slides that are all equally urgent says nothing
    # Of equal scores the first, in the order of the space.
    best = int(observed.argmax())
    found = [
        RecipeScore(
            name,
            float(observed[at]),
            _spread(drawn[at]),
            float(observed[best] - observed[at]),
            _spread(drawn[best] - drawn[at]),
        )
        for at, name in enumerate(names)
    ]
    return sorted(found, key=lambda score: -score.urgency_auc)


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


def _aucs(curves: Sequence[CurveResampler], weights: npt.NDArray[np.generic], target: Ints, ranks: Ints) -> Array:
    """Urgency AUC of every recipe [R, B] with cases weighted [B, n]."""
    shares = class_shares(target, weights, ranks)
    return np.stack([curve_auc(*curve(weights), shares) for curve in curves])


def _spread(samples: Array) -> float:
    return float(samples.std(ddof=1)) if samples.size > 1 else 0.0
