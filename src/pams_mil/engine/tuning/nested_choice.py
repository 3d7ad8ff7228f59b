"""Nested choice: repeated for every fold without the patients that the fold tests; what choosing itself is worth.

In a cross-validation every slide tests one fold and validates another, so a choice among recipes has seen the label of
every slide that it is then tested on. Here the patients of fold k's test subset are left out of the validation slides,
the same rule chooses again, and fold k is tested with that choice. Nothing is trained for it: recipes of the deciding
rung have runs for all folds. Earlier rungs are not run again, so this is about the choice among the last recipes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pams_mil.data.manifest.manifest import Manifest
from pams_mil.data.splits.stratify import Split
from pams_mil.engine.run.cv_folder import CrossValidationFolder
from pams_mil.engine.tuning.choice import choose
from pams_mil.engine.tuning.validation_scores import score_validation
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy

NAME = "chosen fold by fold"


def choices_by_fold(
    validation: Mapping[str, Predictions], cohort: Manifest, split: Split, simplicity: Mapping[str, Any]
) -> list[str]:
    """The recipe that each fold is tested with.

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
    )
