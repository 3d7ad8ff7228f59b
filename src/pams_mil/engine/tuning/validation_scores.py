"""The validation predictions of recipes, pooled slide by slide: all that a choice is allowed to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pams_mil.arrays import Array
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.tuning.choice import RecipeScore, score_recipes
from pams_mil.errors import RunError
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy


def read_validation(runs: Sequence[Path], hierarchy: ClassHierarchy, name: str) -> Predictions:
    """Every validation slide of some runs, in the order of their ids; with several runs, the mean probabilities."""
    sums: dict[str, Array] = {}
    counts: dict[str, int] = {}
    facts: dict[str, tuple[str, int]] = {}
    validated: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        read = read_predictions(RunFolder(run).predictions_file("val"), hierarchy, name=name)
        if read.probabilities is None or read.patient_ids is None:
            raise RunError(f"{run} has validation predictions without probabilities or patients; train it again.")
        for row, slide in enumerate(read.slide_ids):
            sums[slide] = sums.get(slide, 0.0) + read.probabilities[row]
            counts[slide] = counts.get(slide, 0) + 1
            validated.setdefault(slide, []).append(number)
            facts[slide] = (read.patient_ids[row], int(read.target[row]))
    slides = sorted(sums)
    probabilities = np.stack([sums[slide] / counts[slide] for slide in slides])
    return Predictions(
        name=name,
        hierarchy=hierarchy,
        slide_ids=slides,
        target=np.array([facts[slide][1] for slide in slides], dtype=np.int64),
        predicted=probabilities.argmax(1),
        probabilities=probabilities,
        patient_ids=[facts[slide][0] for slide in slides],
        # Slides that the same runs validated are ranked together: those of one fold.
        tags={"fold": [" ".join(map(str, validated[slide])) for slide in slides]},
    )


def score_validation(validation: Mapping[str, Predictions]) -> list[RecipeScore]:
    """Scores of recipes that validated the same slides, the best first."""
    first = next(iter(validation.values()))
    for other in validation.values():
        if list(other.slide_ids) != list(first.slide_ids) or (other.target != first.target).any():
            raise RunError(f"{first.name} and {other.name} did not validate the same slides; tune in another folder.")
    return score_recipes(validation)
