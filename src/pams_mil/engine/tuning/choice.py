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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.data.manifest.manifest import Manifest
from pams_mil.data.splits.stratify import Split
from pams_mil.engine.run.cv_folder import CrossValidationFolder
from pams_mil.engine.run.folder import RunFolder
from pams_mil.errors import RunError
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.inference import contrasts, estimate
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions, join_predictions
from pams_mil.evaluate.predictions.sidecar import sidecar
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS

RESAMPLES = 1000


@dataclass(frozen=True)
class RecipeScore:
    """A recipe on the validation slides of a rung: its urgency AUC, and by how much it is behind the best."""

    name: str
    score: Contrast
    """A_r and SE_r."""
    behind: Contrast
    """D_r and S_r; 0 for the best."""

    @classmethod
    def of(
        cls, name: str, urgency_auc: float, standard_error: float, behind: float = 0.0, behind_error: float = 0.0
    ) -> RecipeScore:
        """From plain numbers."""
        values = (urgency_auc, standard_error), (behind, behind_error)
        return cls(name, *(Contrast("urgency_auc", value, standard_error=error) for value, error in values))

    @property
    def is_near_best(self) -> bool:
        """Whether it is within one standard error of the best; one that is not known is 0."""
        return self.behind.difference <= float(np.nan_to_num(self.behind.standard_error))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "recipe": self.name,
            "urgency_auc": self.score.value,
            "standard_error": float(np.nan_to_num(self.score.standard_error)),
            "behind_best": self.behind.difference,
            "behind_best_error": float(np.nan_to_num(self.behind.standard_error)),
            "within_one_standard_error": self.is_near_best,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RecipeScore:
        """A score as `to_json` wrote it."""
        keys = ("recipe", "urgency_auc", "standard_error", "behind_best", "behind_best_error")
        return cls.of(*(content[key] for key in keys))


def score_recipes(
    validation: Mapping[str, Predictions], *, seed: int = 0, resamples: int = RESAMPLES
) -> list[RecipeScore]:
    """Scores of recipes by their predictions of the same validation slides, the best first."""
    metric = METRICS["urgency_auc"]
    scores = {
        name: estimate(one, [metric], seed=seed, resamples=resamples)[metric.key] for name, one in validation.items()
    }
    if any(math.isnan(score.estimate) for score in scores.values()):
        raise RunError(
            "All validation slides are equally urgent, so recipes cannot be told apart. Use fewer folds, or look at "
            "the labels."
        )
    best = max(scores, key=lambda name: scores[name].estimate)  # of equal scores the first, in the order of the space
    ranked = [
        RecipeScore(
            name,
            score,
            contrasts(validation[name], validation[best], [metric], seed=seed, resamples=resamples, swaps=0)[
                metric.key
            ],
        )
        for name, score in scores.items()
    ]
    return sorted(ranked, key=lambda one: -one.score.value)


def choose(scores: Sequence[RecipeScore], simplicity: Mapping[str, Any]) -> RecipeScore:
    """The simplest recipe within one standard error of the best.

    >>> best, near = RecipeScore.of("fancy", 0.80, 0.03), RecipeScore.of("plain", 0.79, 0.03, 0.01, 0.02)
    >>> far = RecipeScore.of("plainest", 0.70, 0.03, 0.10, 0.02)
    >>> choose([best, near, far], {"plainest": 0, "plain": 1, "fancy": 2}).name
    'plain'
    """
    return min((score for score in scores if score.is_near_best), key=lambda score: simplicity[score.name])


def survivors(scores: Sequence[RecipeScore], count: int, simplicity: Mapping[str, Any], reference: str) -> list[str]:
    """The `count` recipes that go on: the reference, the one that would be chosen now, then the best of the others.

    >>> scores = [RecipeScore.of(*one) for one in (("a", 0.8, 0.0), ("b", 0.7, 0.0, 0.1), ("plain", 0.5, 0.0, 0.3))]
    >>> survivors(scores, 2, {"a": 1, "b": 2, "plain": 0}, "plain")
    ['plain', 'a']
    """
    ranked = sorted(scores, key=lambda one: (-one.score.value, simplicity[one.name]))
    # The choice of now first: it may be a simple recipe that the score alone would drop.
    first = (reference, choose(scores, simplicity).name)
    return list(dict.fromkeys([*first, *(score.name for score in ranked)]))[:count]


def read_validation(runs: Sequence[Path], hierarchy: ClassHierarchy, name: str) -> Predictions:
    """Every validation slide of some runs, in the order of their ids; with several runs, the mean probabilities."""
    read = [read_predictions(RunFolder(run).predictions_file("val"), hierarchy, name=name) for run in runs]
    joined = join_predictions(name, [replace(one, tags={"run": [str(n)] * len(one)}) for n, one in enumerate(read)])
    if joined.probabilities is None or joined.patient_ids is None:
        raise RunError(f"Validation predictions of {name} have no probabilities or patients; train it again.")
    rows: dict[str, list[int]] = {}
    for row, slide in enumerate(joined.slide_ids):
        rows.setdefault(slide, []).append(row)
    slides = sorted(rows)
    probabilities = np.stack([joined.probabilities[rows[slide]].mean(0) for slide in slides])
    # Slides that the same runs validated are ranked together: those of one fold.
    folds = [" ".join(joined.tags["run"][row] for row in rows[slide]) for slide in slides]
    first = joined.take(np.array([rows[slide][0] for slide in slides]))
    return replace(first, predicted=probabilities.argmax(1), probabilities=probabilities, tags={"fold": folds})


def score_validation(validation: Mapping[str, Predictions]) -> list[RecipeScore]:
    """Scores of recipes that validated the same slides, the best first."""
    first = next(iter(validation.values()))
    for other in validation.values():
        if list(other.slide_ids) != list(first.slide_ids) or (other.target != first.target).any():
            raise RunError(f"{first.name} and {other.name} did not validate the same slides; tune in another folder.")
    return score_recipes(validation)


NAME = "chosen fold by fold"


def choices_by_fold(
    validation: Mapping[str, Predictions], cohort: Manifest, split: Split, simplicity: Mapping[str, Any]
) -> list[str]:
    """Nested choice: the recipe that each fold is tested with, chosen without the patients that the fold tests.

    In a cross-validation every slide tests one fold and validates another, so a choice among recipes has seen the label
    of every slide that it is then tested on. Here the same rule chooses again without fold k's test patients, and fold
    k is tested with that choice. Nothing is trained for it; earlier rungs are not run again, so this is about the
    choice among the last recipes.

    Args:
        validation: What each recipe of the deciding rung said about the validation slides.
        cohort: The slides of the folds.
        split: Their folds.
        simplicity: The order of simplicity.
    """
    choices = []
    for parts in split.folds:
        tested = {record.patient_id for record, subset in zip(cohort, parts, strict=True) if subset == "test"}
        first = next(iter(validation.values()))
        # By patient, not by slide: a slide of a tested patient tells about the others.
        untested = np.array([patient not in tested for patient in first.patient_ids or ()])
        scores = score_validation({name: one.where(untested) for name, one in validation.items()})
        choices.append(choose(scores, simplicity).name)
    return choices


def predictions_by_fold(folders: Sequence[CrossValidationFolder], hierarchy: ClassHierarchy) -> Predictions:
    """The out-of-fold predictions of a slide from the recipe of its fold; of several folds, from the first one's."""
    read = {
        folder.path: read_predictions(folder.predictions_file, hierarchy, Source(tags=("fold",)), name=NAME)
        for folder in folders
    }
    first = next(iter(read.values()))
    # All recipes list the same slides in the same order, that of the folds' table.
    rows = [(read[folders[int(cell.split()[0])].path], row) for row, cell in enumerate(first.tags["fold"])]
    return replace(
        first,
        predicted=np.array([one.predicted[row] for one, row in rows], dtype=np.int64),
        probabilities=np.stack([one.probabilities[row] for one, row in rows if one.probabilities is not None]),
        weights=tuple(
            weights
            for number, folder in enumerate(folders)
            for fold, run in folder.tested()
            if fold == number
            for weights in sidecar(RunFolder(run).predictions_file()).get("weights", ())
        ),
    )
