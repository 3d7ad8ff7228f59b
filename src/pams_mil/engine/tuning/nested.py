"""The nested choice: each fold is tested with recipes that were chosen without the patients that it tests.

In a cross-validation every slide tests one fold and validates another, so a choice among recipes has seen the label of
every slide that it is then tested on, and its score on them is too good: the more recipes, the better. With T_k the
patients that fold k tests, and the validation predictions of rung j without T_k as the only evidence,

    entering rung 1:    all recipes that were scored there
    entering rung j+1:  as many as did, the `survivors` of rung j
    chosen for fold k:  `choose` on the last rung;   averaged for fold k: `best` of all rungs

which is the whole procedure, and not its last step alone: what was dropped early was dropped by labels, too. How many
recipes a rung takes depends on time, never on labels. The evidence is of one seed throughout: further seeds of recipes
that were dropped would have to be trained in all folds. Fold k is predicted by its own networks of its own choice, with
all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from pams_mil.engine.grid.folds import Folds
from pams_mil.engine.tuning.choice import EquallyUrgentError, RecipeScore, best, choose, score_recipes, survivors
from pams_mil.engine.tuning.recipes import REFERENCE
from pams_mil.engine.tuning.tuning_folder import RungRecord
from pams_mil.evaluate.predictions.predictions import Predictions

Validate = Callable[[Sequence[str], int], Mapping[str, Predictions]]
"""What recipes said about the validation slides of the first folds; one that cannot be trained is missing."""


@dataclass(frozen=True)
class FoldChoice:
    """What a fold is tested with: one recipe, and those whose mean stands beside it."""

    recipe: str
    mean_of: tuple[str, ...]


def choices_by_fold(
    rungs: Sequence[RungRecord], validate: Validate, folds: Folds, simplicity: Mapping[str, Any]
) -> list[FoldChoice]:
    """The whole choice for each fold without the patients that it tests.

    Of `rungs`, which all have scores, only the sizes and who was in the first one count. `validate` gives what recipes
    said about the validation slides of the first folds, and trains what is missing.
    """
    tested = [
        {record.patient_id for record, subset in zip(folds.cohort, parts, strict=True) if subset == "test"}
        for parts in folds.split.folds
    ]
    scored = {score.name for score in rungs[0].scores}
    # In the order of the space: that of the scores has seen all labels.
    first = [name for name in rungs[0].recipes if name in scored]
    ranked: list[list[list[RecipeScore]]] = [[] for _ in tested]
    for rung in rungs:
        entering = [
            survivors(before[-1], len(rung.recipes), simplicity, REFERENCE) if before else first for before in ranked
        ]
        validation = validate(list(dict.fromkeys(chain.from_iterable(entering))), rung.folds)
        patients = set(next(iter(validation.values())).patient_ids or ())
        known: dict[tuple[frozenset[str], tuple[str, ...]], list[RecipeScore]] = {}
        for names, before, out in zip(entering, ranked, tested, strict=True):
            # In the first rung many folds test nobody that was validated.
            key = frozenset(patients & out), tuple(name for name in names if name in validation)
            if key not in known:
                known[key] = scores_without(out, {name: validation[name] for name in key[1]})
            before.append(known[key])
    return [FoldChoice(choose(scores[-1], simplicity).name, tuple(best(scores))) for scores in ranked]


def scores_without(patients: Collection[str], validation: Mapping[str, Predictions]) -> list[RecipeScore]:
    """Scores of recipes on the slides of all other patients; where these cannot tell recipes apart, all are equal."""
    one = next(iter(validation.values()))
    # By patient, not by slide: a slide of a tested patient tells about the others.
    rows = np.array([patient not in patients for patient in one.patient_ids or ()])
    try:
        if rows.any():
            return score_recipes({name: predictions.where(rows) for name, predictions in validation.items()})
    except EquallyUrgentError:
        pass
    return [RecipeScore(name, 0.0) for name in validation]
