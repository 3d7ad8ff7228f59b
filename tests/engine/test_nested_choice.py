"""The choice made again for every fold: it has not seen what the fold tests, and so its score is not too good."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.data.splits import Split
from pams_mil.engine.grid.folds import Folds
from pams_mil.engine.tuning import nested
from pams_mil.engine.tuning.choice import RecipeScore, score_recipes
from pams_mil.engine.tuning.nested import FoldChoice, choices_by_fold, scores_without
from pams_mil.engine.tuning.recipes import REFERENCE
from pams_mil.engine.tuning.tuning_folder import RungRecord
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import urgency_auc

TWO = ClassHierarchy.flat(["low", "high"])
FOLDS, PATIENTS, RECIPES = 5, 60, 24
NAMES = [REFERENCE, *(f"r{number}" for number in range(1, RECIPES))]
SIMPLER = {name: place for place, name in enumerate(NAMES)}


class Cohort:
    """Recipes whose answers have nothing to do with the labels; fold k is validated by the test part of fold k + 1."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.target = rng.integers(0, 2, PATIENTS)
        self.fold = np.arange(PATIENTS) % FOLDS
        self.p = {name: rng.dirichlet(np.ones(2), PATIENTS) for name in NAMES}
        self.slides = [f"s{row:02d}" for row in range(PATIENTS)]
        labels = (TWO.names()[label] for label in self.target)
        self.manifest = Manifest(
            tuple(SlideRecord(slide, slide, label) for slide, label in zip(self.slides, labels, strict=True))
        )

    def split(self, *, excluded: int | None = 0) -> Split:
        """The folds; to break the rule, with the test parts of other folds in their place, or with none."""
        tested = [None if excluded is None else (fold + excluded) % FOLDS for fold in range(FOLDS)]
        return Split(tuple(tuple("test" if fold == one else "train" for fold in self.fold) for one in tested))

    def validate(self, names, folds) -> dict[str, Predictions]:
        seen = np.isin((self.fold - 1) % FOLDS, range(folds))
        rows = np.flatnonzero(seen)
        return {
            name: Predictions(
                name, TWO, [self.slides[row] for row in rows], self.target[rows], self.p[name][rows].argmax(1),
                self.p[name][rows], [self.slides[row] for row in rows], {"fold": [str(self.fold[row]) for row in rows]},
            )
            for name in names
        }  # fmt: skip

    def rungs(self) -> list[RungRecord]:
        scored = [RecipeScore(name, 0.5, 0.0) for name in reversed(NAMES)]
        return [RungRecord(NAMES, 2, [0], scored), RungRecord(NAMES[:8], 5, [0]), RungRecord(NAMES[:5], 5, [0])]

    def choices(self, rungs: list[RungRecord] | None = None, *, excluded: int | None = 0) -> list[FoldChoice]:
        folds = Folds(self.manifest, self.split(excluded=excluded), TWO)
        return choices_by_fold(rungs or self.rungs(), self.validate, folds, SIMPLER)

    def tested(self, models: list[list[str]]) -> float:
        """The urgency AUC of the mean of some recipes on the test part of each fold, averaged."""
        areas = []
        for fold, names in enumerate(models):
            rows = self.fold == fold
            mean = np.mean([self.p[name][rows] for name in names], axis=0)
            areas.append(urgency_auc(self.target[rows], mean, TWO, labels=TWO.names()))
        return float(np.nanmean(areas))


@pytest.fixture
def few_resamples(monkeypatch):
    monkeypatch.setattr(nested, "score_recipes", partial(score_recipes, resamples=4))


def simulate(runs: int) -> dict[str, tuple[float, float, float, float]]:
    """Urgency AUC of the mean of five and of the best one, with their standard errors, by how they are chosen."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(runs):
        cohort = Cohort(seed)
        everybody = cohort.choices(excluded=None)
        last = RungRecord(
            list(everybody[0].mean_of), 5, [0], [RecipeScore(name, 0.5, 0.0) for name in everybody[0].mean_of]
        )
        ways = {
            "with all labels": everybody,
            "nested": cohort.choices(),
            "the last rung alone": cohort.choices([last]),
            "without the patients of the next fold": cohort.choices(excluded=1),
        }
        for way, choices in ways.items():
            score = cohort.tested([list(one.mean_of) for one in choices])
            found.setdefault(way, []).append((score, cohort.tested([[one.mean_of[0]] for one in choices])))
    tables = {way: np.array(scores) for way, scores in found.items()}
    return {way: (*t.mean(0), *(t.std(0, ddof=1) / np.sqrt(runs))) for way, t in tables.items()}


def test_five_that_were_chosen_with_the_labels_that_test_them_seem_good_and_nested_ones_do_not(few_resamples):
    found = simulate(12)
    mean, single, mean_error, single_error = found["nested"]
    assert abs(mean - 0.5) < 3 * mean_error
    assert abs(single - 0.5) < 3 * single_error
    # What breaks it: no exclusion, exclusion of others, and a choice made again too late.
    for way in set(found) - {"nested"}:
        assert found[way][0] - 0.5 > 3 * found[way][2], way
        assert found[way][1] - 0.5 > 3 * found[way][3] or way == "the last rung alone", way


def test_no_label_that_a_fold_tests_has_a_say_in_its_choice(few_resamples):
    """Scrambling the labels of fold 0's patients may change any other fold's choice, never its own."""
    cohort, seen = Cohort(3), set()
    plain = cohort.choices()
    for seed in range(3):
        other = Cohort(3)
        own = other.fold == 0
        other.target[own] = np.random.default_rng(seed).permutation(other.target[own])
        found = other.choices()
        assert found[0] == plain[0]
        seen.add(tuple(found[1:]))
    assert len(seen) > 1  # the other folds do look at these labels


def test_a_recipe_that_a_fold_would_have_kept_is_asked_for(few_resamples):
    cohort, asked = Cohort(1), []
    validate = cohort.validate
    cohort.validate = lambda names, folds: asked.append(list(names)) or validate(names, folds)
    cohort.choices()
    assert [len(names) > size for names, size in zip(asked, (24, 8, 5), strict=True)] == [False, True, True]
    assert all(set(later) <= set(earlier) for earlier, later in pairwise(asked))


def test_where_the_other_patients_say_nothing_all_recipes_are_equal():
    cohort = Cohort(0)
    said = cohort.validate(NAMES[:3], 2)
    for patients in (
        cohort.slides,
        [slide for slide, label in zip(cohort.slides, cohort.target, strict=True) if label],
    ):
        assert [(one.name, one.urgency_auc) for one in scores_without(patients, said)] == [
            (name, 0.0) for name in NAMES[:3]
        ]


if __name__ == "__main__":
    nested.score_recipes = partial(score_recipes, resamples=4)
    for way, values in simulate(200).items():
        mean, single, mean_error, single_error = (f"{100 * value:.1f}" for value in values)
        print(f"{way}: mean of five {mean} ± {mean_error}, best one {single} ± {single_error}")  # noqa: T201
