"""Tuning: rung by rung, recipes are trained, validated and thinned out; then one is chosen, and only then tested.

Runs of a rung predict their validation part and nothing else, so no test part can be looked at before the choice is
written. Everything that is measured is kept: the same command goes on where it was stopped, a larger budget goes on
further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pams_mil.data.exposure import Exposure
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.grid.cross_validation import cells, cross_validate, pool, pooled
from pams_mil.engine.grid.folds import Folds
from pams_mil.engine.grid.grid import DONE, Engine, Progress, run_cells
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.tuning.choice import (
    RecipeScore,
    best,
    choose,
    read_validation,
    score_recipes,
    survivors,
    validation_auc,
    why,
)
from pams_mil.engine.tuning.nested import choices_by_fold
from pams_mil.engine.tuning.recipes import REFERENCE, Simplicity, Space, in_words, simplicity
from pams_mil.engine.tuning.schedule import ENOUGH, TimedEngine, fewest_runs, going_on, plan, runs_of, stages
from pams_mil.engine.tuning.tuning_folder import RungRecord, TuningFolder
from pams_mil.errors import RunError, counted
from pams_mil.evaluate.predictions.predictions import Predictions

PILOTS = 4
"""Recipes, spread over the first ENOUGH of the space, that are run on one fold to see how long a run takes."""
MARGIN = 0.1
"""Share of the time left that a plan does not use: runs differ."""


@dataclass(frozen=True)
class TuningTask:
    """What is tuned: recipes, on slides, with folds and seeds.

    Attributes:
        space: The recipes.
        shared: Settings of a run that all recipes share: data, classes, training, compute.
        changes: Settings that the user changes for all, `key=value`.
        folds: The slides and their folds.
        seeds: Seeds of the last rung; earlier ones use the first.
    """

    space: Space
    shared: Mapping[str, Any]
    changes: tuple[str, ...]
    folds: Folds
    seeds: tuple[int, ...] = (0, 1, 2)

    @cached_property
    def configs(self) -> dict[str, RunConfig]:
        """The settings of every recipe with all options written out, so that a wrong one is refused before any run."""
        return {one.name: complete(one.config(self.shared, self.changes)) for one in self.space.recipes}

    @cached_property
    def simplicity(self) -> dict[str, Simplicity]:
        """The order of simplicity."""
        return {name: simplicity(name, config, self.configs[REFERENCE]) for name, config in self.configs.items()}

    def asked(self) -> dict[str, Any]:
        """What defines the tuning, as it goes into `tune.json`."""
        ignored = ("compute", "classes", "data", "seed")
        return {
            "reference": REFERENCE,
            "space": self.space.name,
            "folds": len(self.folds),
            "seeds": list(self.seeds),
            "slides": len(self.folds.inside),
            "patients": len(self.folds.inside.patients),
            "slides_and_folds": self.folds.digest,
            "classes": self.folds.classes,
            "recipes": {
                name: {key: value for key, value in config.resolved().to_json().items() if key not in ignored}
                for name, config in self.configs.items()
            },
            "in_words": {name: in_words(config) for name, config in self.configs.items()},
        }


class Tuning:
    """One tuning in its folder; one that holds the same tuning is continued.

    `minutes` are the wall time for trying recipes, over all attempts; `say` is told sentences for people, `progress`
    how far a rung is.
    """

    def __init__(
        self,
        task: TuningTask,
        out: Path | str,
        engine: Engine,
        minutes: float,
        *,
        say: Callable[[str], None] = lambda text: None,
        progress: Progress | None = None,
    ) -> None:
        self.task, self.folder, self.minutes = task, TuningFolder(Path(out)), minutes
        self._engine, self._say, self._progress = engine, say, progress

    def run(self) -> RecipeScore:
        """Try recipes until one is left to choose or the budget is spent; the choice is in the folder's record."""
        if len(self.task.space.recipes) < 2:
            raise RunError("The space has no recipe beside the reference, so there is nothing to choose.")
        self.folder.open(self.task.asked())
        self.timed = TimedEngine(self._engine, 60 * self.minutes, self.folder.time, self.folder.save)
        if not self.folder.manifest_file.exists():
            for line in self.task.folds.write(self.folder.path):
                self._say(line)
        return self._choose(self._climb())

    def finish(self) -> dict[str, str]:
        """Make the reference, the chosen recipe and those of the mean cross-validations, and test the nested choice.

        What is missing is trained, test parts are predicted, and weights that nothing needs are deleted. Returns what
        failed, with the reason; then the same command tries again.
        """
        task, (_, rung), choice = self.task, self.folder.decisive, self.folder.choice
        names = list(dict.fromkeys([REFERENCE, choice["recipe"], *choice["mean_of"]]))
        failures: dict[str, str] = {}
        exposure = self._exposure()
        for name in names:
            folder = self.folder.recipe(name)
            for _, run in self._runs(name, range(len(task.folds)), rung.seeds):
                RunFolder(run).expose(exposure)
            # Else `cross_validate` would refuse it as another cross-validation.
            folder.file.unlink(missing_ok=True)  # a larger budget may have added seeds; tune.json says which count
            done, _ = cross_validate(
                task.configs[name], task.folds, folder.path, self._engine,
                seeds=rung.seeds, progress=self._progress,
            )  # fmt: skip
            failures |= {f"{name}, {run}": reason for run, reason in done.failures.items()}
        own = [
            cell
            for fold, one in enumerate(choice["by_fold"])
            for name in dict.fromkeys([one["recipe"], *one["mean_of"]])
            for cell in self._cells(name, [fold], rung.seeds, "test")
        ]
        tested = run_cells(own, self.folder.path, self.folder.recipes, self._engine, progress=self._progress)
        failures |= tested.failures
        if not failures:
            self._average(choice["mean_of"])
            self._test_by_fold(rung)
            self.folder.forget_weights(names)
        return failures

    def _average(self, names: Sequence[str]) -> None:
        """Write the committee of these recipes: nothing is trained for it."""
        task, folder = self.task, self.folder.mean
        same = {key: self.folder.asked[key] for key in ("slides", "slides_and_folds", "classes")}
        members = {self.folder.recipe(name).path.name: self.folder.asked["recipes"][name] for name in names}
        folder.start({**same, "folds": list(range(len(task.folds))), "of_recipes": True, "members": members})
        task.folds.write(folder.path)
        pool(folder, task.folds.hierarchy)

    def _test_by_fold(self, rung: RungRecord) -> None:
        """Write the test part of every fold as its own choice predicts it: one recipe, and the mean of the best."""
        choices = self.folder.choice["by_fold"]
        models = {"chosen": [[one["recipe"]] for one in choices], "mean": [one["mean_of"] for one in choices]}
        for model, recipes in models.items():
            by_fold = ((fold, name) for fold, names in enumerate(recipes) for name in names)
            runs = [run for fold, name in by_fold for run in self._runs(name, [fold], rung.seeds)]
            tested = pooled(runs, self.folder.manifest_file, self.task.folds.hierarchy)
            tested.write(self.folder.out_of_fold, name=model)

    def _exposure(self) -> Exposure:
        """The patients that chose the recipe: those of all validation splits that any rung has compared recipes on."""
        folds = self.folder.rungs[-1].folds  # no rung has more
        return Exposure.of(
            (record.slide_id, record.patient_id, "tune")
            for splits in self.task.folds.split.folds[:folds]
            for record, split in zip(self.task.folds.cohort, splits, strict=True)
            if split == "val"
        )

    def _validate(self, names: Sequence[str], folds: int) -> dict[str, Predictions]:
        """What recipes said about the validation slides of the first folds; what is missing is trained."""
        seed = self.task.seeds[:1]
        runs = [(name, run) for name in names for _, run in self._runs(name, range(folds), seed)]
        dropped = {name for name, run in runs if not (run / DONE["val"]).exists()}
        if dropped:
            self._say(
                f"Without the patients that a fold tests, {counted(len(dropped), 'recipe')} more would have gone on: "
                "trained beyond the budget, for a test of the choice that has not seen their labels."
            )
        done, _ = self._run(names, folds, seed, self._engine)
        return {name: self.validation(name, folds, seed) for name in done}

    def validation(self, name: str, folds: int, seeds: Sequence[int]) -> Predictions:
        """What a recipe said about the validation slides of the first folds, with these seeds."""
        return read_validation(self._runs(name, range(folds), seeds), self.task.folds.hierarchy, name)

    def _runs(self, name: str, folds: Iterable[int], seeds: Sequence[int]) -> list[tuple[int, Path]]:
        """The run folders of a recipe, each with its fold."""
        first, folder = self.task.seeds[0], self.folder.recipe(name)
        return [(fold, folder.run(fold, None if seed == first else seed)) for seed in seeds for fold in folds]

    def _climb(self) -> str:
        """Run all rungs that the budget affords; returns why it ended early, if it did."""
        all_rungs = len(stages(len(self.task.folds), len(self.task.seeds)))
        for number in range(all_rungs):
            if number == len(self.folder.rungs) and not self._begin(number):
                return f"The budget of {self.minutes:g} minutes does not reach for rung {number + 1}"
            rung = self.folder.rungs[number]
            # The first rung alone may grow: the recipes of a later one were chosen by the scores of all before it.
            while not rung.complete or (number == 0 and self._widen(rung)):
                if not self._measure(number, rung):
                    return f"The budget of {self.minutes:g} minutes ended within rung {number + 1}"
        return ""

    def _widen(self, rung: RungRecord) -> bool:
        """Take more recipes into the first rung where runs were faster than planned, unless the next one began."""
        names, done = self._entering(0), len(rung.recipes)
        runs = self.timed.affordable(MARGIN) + done * rung.folds
        fits = plan(len(names), len(self.task.folds), len(self.task.seeds), runs)
        if len(self.folder.rungs) > 1 or not fits or fits[0].recipes <= done:
            return False
        self._say(f"Runs are faster than planned: {counted(fits[0].recipes - done, 'recipe')} more in rung 1.")
        rung.recipes, rung.complete = names[: fits[0].recipes], False
        self.folder.save()
        return True

    def _begin(self, number: int) -> bool:
        """Plan the rungs ahead as far as the time left affords them, say so, and note the next; False: none fits."""
        if number == 0:
            self._pilot()
        names, runs = self._entering(number), self.timed.affordable(MARGIN)
        planned = plan(len(names), len(self.task.folds), len(self.task.seeds), runs, climbed=number)
        seconds = self.timed.spent.seconds_per_run
        if not planned and number == 0:
            fewest = fewest_runs(len(self.task.folds))
            raise RunError(
                f"A budget of {self.minutes:g} minutes is too short: a run takes {seconds:.1f} s here, and the least "
                f"is {fewest} runs (the reference and one other recipe on {len(self.task.folds)} folds). Give at least "
                f"--budget {math.ceil((self.timed.spent.seconds + fewest * seconds / (1 - MARGIN)) / 60)}; what was "
                "measured is kept."
            )
        if not planned:
            return False
        steps = ", then ".join(
            f"{counted(rung.recipes, 'recipe')} on {rung.folds} of {len(self.task.folds)} folds x "
            f"{counted(rung.seeds, 'seed')}"
            for rung in planned
        )
        done = stages(len(self.task.folds), 1)[number - 1][0] if number else 0
        needed, first = runs_of(planned, done), planned[0]
        self._say(
            f"Plan from rung {number + 1}: {steps}; at most {counted(needed, 'run')} at {seconds:.1f} s, about "
            f"{_minutes(needed * seconds)} of the {_minutes(self.timed.left)} left."
        )
        left_out = len(names) - first.recipes
        if left_out and number == 0:
            self._say(
                f"Not tried, because the budget is too short: the last {counted(left_out, 'recipe')} of the space."
            )
        rung = RungRecord(names[: first.recipes], first.folds, list(self.task.seeds[: first.seeds]))
        self.folder.rungs.append(rung)
        self.folder.save()
        return True

    def _entering(self, number: int) -> list[str]:
        """Recipes that may enter a rung, in the order in which a short budget takes them."""
        if number == 0:
            return [one.name for one in self.task.space.recipes]
        before = self.folder.rungs[number - 1]
        return survivors(before.scores, going_on(len(before.recipes)), self.task.simplicity, REFERENCE)

    def _pilot(self) -> None:
        """Run a few recipes on the first fold, so that the plan knows how long a run takes."""
        names = self._entering(0)[:ENOUGH]
        chosen = list(dict.fromkeys(names[(len(names) - 1) * step // (PILOTS - 1)] for step in range(PILOTS)))
        self._say(f"Measuring how long a run takes: {counted(len(chosen), 'recipe')} on one fold.")
        self._run(chosen, 1, self.task.seeds[:1], self.timed)

    def _measure(self, number: int, rung: RungRecord) -> bool:
        """Run and score a rung; False when time was up before every recipe was measured."""
        done, failed = self._run(rung.recipes, rung.folds, rung.seeds, self.timed)
        if REFERENCE in failed:
            raise RunError(f"The reference {REFERENCE!r} could not be trained: {failed[REFERENCE]}")
        rung.complete = len(done) + len(failed) == len(rung.recipes)
        # Scores of a later rung would compare recipes on different folds and seeds; the rung before it decides instead.
        if not rung.complete and number > 0:
            return False
        if len(done) < 2 or REFERENCE not in done:
            raise RunError(
                f"The budget of {self.minutes:g} minutes ended before the reference and another recipe were measured "
                "on the same slides. What was trained is kept; the same command with a larger --budget goes on."
                if not rung.complete
                else f"No recipe but the reference could be trained. The first: {next(iter(failed.values()))}"
            )
        rung.scores = score_recipes({name: self.validation(name, rung.folds, rung.seeds) for name in done})
        rung.failed = failed
        self.folder.save()
        leading = rung.scores[0]
        self._say(
            f"Rung {number + 1}: {leading.name} leads {counted(len(done), 'recipe')} with an urgency AUC of "
            f"{100 * leading.urgency_auc:.1f} (standard error {100 * leading.standard_error:.1f})."
        )
        return rung.complete

    def _run(
        self, names: Sequence[str], folds: int, seeds: Sequence[int], engine: Engine
    ) -> tuple[list[str], dict[str, str]]:
        """Train and validate recipes as far as the engine gets: those that are done, and why others failed."""
        wanted = [cell for name in names for cell in self._cells(name, range(folds), seeds, "val")]
        # So that recipes can be compared on whole folds if time is up in between.
        wanted.sort(key=lambda cell: (seeds.index(cell.seed), cell.fold))  # all recipes of a fold, then the next fold
        grid = run_cells(wanted, self.folder.path, self.folder.recipes, engine, progress=self._progress)
        owners = {cell.key: cell.method for cell in wanted}
        failed = {owners[key]: reason for key, reason in grid.failures.items()}
        for name, reason in failed.items():
            self._say(f"{name} failed and is out: {reason}")
        unfinished = {owners[key] for key in owners.keys() - {cell.key for cell in grid.finished}}
        return [name for name in names if name not in unfinished], failed

    def _cells(self, name: str, folds: Iterable[int], seeds: Sequence[int], split: str) -> list[Cell]:
        """The runs of a recipe, which predict this part."""
        task, place = self.task, self.folder.recipe(name).path.name
        grid = cells(task.configs[name], task.folds.cohort, self.folder.manifest_file, folds, seeds)
        return [replace(cell, key=f"{place}/{cell.key}", method=name, split=split) for cell in grid]

    def _choose(self, ended: str) -> RecipeScore:
        """Choose on the last rung that has scores, and write down why; then once more for every fold."""
        number, rung = self.folder.decisive
        leading, chosen = rung.scores[0], choose(rung.scores, self.task.simplicity)
        near = [score.name for score in rung.scores if score.is_near_best]
        scored = self.folder.rungs[: number + 1]
        by_fold = choices_by_fold(scored, self._validate, self.task.folds, self.task.simplicity)
        self.folder.choice = {
            "recipe": chosen.name,
            "in_words": in_words(self.task.configs[chosen.name]),
            "best": leading.name,
            "mean_of": best([one.scores for one in scored]),
            "within_one_standard_error": near,
            "simplicity": sorted(near, key=lambda name: self.task.simplicity[name]),
            "each_seed": [validation_auc(self.validation(chosen.name, rung.folds, [seed])) for seed in rung.seeds],
            "by_fold": [asdict(one) for one in by_fold],
            "rung": number + 1,
            "folds": rung.folds,
            "seeds": rung.seeds,
            "ended": ended,
            "why": why(chosen, leading, len(near), len(rung.scores), number + 1, ended),
        }
        self.folder.save()
        return chosen


def _minutes(seconds: float) -> str:
    """Time for people.

    >>> _minutes(42), _minutes(600)
    ('42 s', '10 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
