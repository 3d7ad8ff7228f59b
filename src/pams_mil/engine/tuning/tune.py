"""Tuning: rung by rung, recipes are trained, validated and thinned out; then one is chosen, and only then tested.

Runs of a rung predict their validation part and nothing else, so no test part can be looked at before the choice is
written. Everything that is measured is kept: the same command goes on where it was stopped, a larger budget goes on
further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pams_mil.data.exposure import Exposure
from pams_mil.data.manifest.manifest import Manifest
from pams_mil.data.splits.split_writer import write_split
from pams_mil.data.splits.stratify import Split
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.grid.cross_validation import CrossValidation, cells, cross_validate, pool
from pams_mil.engine.grid.folds import Folds, digest_of_folds, in_folds
from pams_mil.engine.grid.grid import Engine, Progress, run_cells
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.tuning.choice import (
    RecipeScore,
    choices_by_fold,
    choose,
    read_validation,
    score_validation,
    survivors,
)
from pams_mil.engine.tuning.recipes import REFERENCE, Simplicity, Space, in_words, simplicity
from pams_mil.engine.tuning.schedule import ENOUGH, Rung, TimedEngine, fewest_runs, going_on, plan, runs_of, stages
from pams_mil.engine.tuning.tuning_folder import TIMES, RungRecord, TuningFolder
from pams_mil.errors import RunError, counted
from pams_mil.evaluate.inference import estimate
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS

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
        cohort: The slides of the folds.
        split: Their folds.
        hierarchy: The class hierarchy.
        seeds: Seeds of the last rung; earlier ones use the first.
    """

    space: Space
    shared: Mapping[str, Any]
    changes: tuple[str, ...]
    cohort: Manifest
    split: Split
    hierarchy: ClassHierarchy
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def folds(self) -> int:
        """How many folds there are."""
        return len(self.split.folds)

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
            "folds": self.folds,
            "seeds": list(self.seeds),
            "slides": len(inside := in_folds(self.cohort, self.split)),
            "patients": len(inside.patients),
            "slides_and_folds": digest_of_folds(self.cohort, self.split),
            "classes": " ".join(order.digest for order in self.hierarchy.orders),
            "recipes": {
                name: {key: value for key, value in config.resolved().to_json().items() if key not in ignored}
                for name, config in self.configs.items()
            },
            "in_words": {name: in_words(config) for name, config in self.configs.items()},
        }


class Tuning:
    """One tuning in its folder.

    Args:
        task: What is tuned.
        out: The folder; one that holds the same tuning is continued.
        engine: What runs the cells.
        minutes: Wall time for trying recipes, over all attempts.
        say: Told sentences for people.
        progress: Told about progress within a rung.
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
        self.timed = TimedEngine(engine, 60 * minutes, keep=self._keep)

    def run(self) -> RecipeScore:
        """Try recipes until one is left to choose or the budget is spent; the choice is in the folder's record."""
        if len(self.task.space.recipes) < 2:
            raise RunError("The space has no recipe beside the reference, so there is nothing to choose.")
        self.folder.open(self.task.asked())
        for key, value in self.folder.time.items():
            setattr(self.timed, key, int(value) if key == "runs" else value)
        if not self.folder.manifest_file.exists():
            for line in write_split(
                self.folder.path, self.task.cohort, self.task.hierarchy, self.task.split, is_folds=True
            ).lines:
                self._say(line)
        return self._choose(self._climb())

    def finish(self, names: Sequence[str]) -> dict[str, CrossValidation]:
        """Make recipes cross-validations: train what is missing of all folds, predict the test parts, pool them."""
        task, (_, rung) = self.task, self.folder.decisive
        folders = {}
        for name in dict.fromkeys(names):
            folder = self.folder.recipe(name)
            for run in (folder.run(fold, None if seed == rung.seeds[0] else seed)
                        for seed in rung.seeds for fold in range(task.folds)):  # fmt: skip
                RunFolder(run).expose(self._exposure())
            # Else `cross_validate` would refuse it as another cross-validation.
            folder.file.unlink(missing_ok=True)  # a larger budget may have added seeds; tune.json says which count
            folders[name] = cross_validate(
                task.configs[name], Folds(task.cohort, task.split, task.hierarchy), folder.path, self._engine,
                seeds=rung.seeds, progress=self._progress,
            )  # fmt: skip
        if not any(one.failures for one in folders.values()):
            self._average(self.folder.choice["mean_of"])
        return folders

    def _average(self, names: Sequence[str]) -> None:
        """Write the committee of these recipes: nothing is trained for it."""
        task, folder = self.task, self.folder.mean
        same = {key: self.folder.asked[key] for key in ("slides", "slides_and_folds", "classes")}
        members = {self.folder.recipe(name).path.name: self.folder.asked["recipes"][name] for name in names}
        folder.start({**same, "folds": list(range(task.folds)), "of_recipes": True, "members": members})
        write_split(folder.path, task.cohort, task.hierarchy, task.split, is_folds=True)
        pool(folder, task.hierarchy)

    def _exposure(self) -> Exposure:
        """The patients that chose the recipe: those of all validation splits that any rung has compared recipes on."""
        folds = max(rung.folds for rung in self.folder.rungs)
        return Exposure.of(
            (record.slide_id, record.patient_id, "tune")
            for splits in self.task.split.folds[:folds]
            for record, split in zip(self.task.cohort, splits, strict=True)
            if split == "val"
        )

    def _by_fold(self, rung: RungRecord) -> list[str]:
        """The recipe chosen again for each fold without its test patients; empty where that cannot be done."""
        task = self.task
        if rung.folds < task.folds or rung is not self.folder.rungs[-1]:  # weights are gone once the next rung began
            return []
        validation = {score.name: self.validation(score.name, rung) for score in rung.scores}
        try:
            return choices_by_fold(validation, task.cohort, task.split, task.simplicity)
        except RunError:  # without its test patients a fold's validation slides may all be equally urgent
            return []

    def validation(self, name: str, rung: RungRecord, *, seed: int | None = None) -> Predictions:
        """What a recipe said about the validation slides of a rung, with all its seeds or with one."""
        folder = self.folder.recipe(name)
        seeds = rung.seeds if seed is None else [seed]
        runs = [folder.run(fold, None if one == rung.seeds[0] else one) for one in seeds for fold in range(rung.folds)]
        return read_validation(runs, self.task.hierarchy, name)

    def _climb(self) -> str:
        """Run all rungs that the budget affords; returns why it ended early, if it did."""
        all_rungs = len(stages(self.task.folds, len(self.task.seeds)))
        for number in range(all_rungs):
            if number == len(self.folder.rungs):
                planned = self._plan(number)
                if not planned:
                    return f"The budget of {self.minutes:g} minutes does not reach for rung {number + 1}"
                self._start(number, planned)
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
        fits = plan(len(names), self.task.folds, len(self.task.seeds), runs)
        if len(self.folder.rungs) > 1 or not fits or fits[0].recipes <= done:
            return False
        self._say(f"Runs are faster than planned: {counted(fits[0].recipes - done, 'recipe')} more in rung 1.")
        rung.recipes, rung.complete = names[: fits[0].recipes], False
        self.folder.save()
        return True

    def _plan(self, number: int) -> tuple[Rung, ...]:
        """The rungs ahead, as far as the time left affords them."""
        pilots = self._pilot() if number == 0 else []
        names, runs = self._entering(number), self.timed.affordable(MARGIN)
        # Pilots are runs of the first rung that are done, if their recipes enter it.
        rungs = plan(len(names), self.task.folds, len(self.task.seeds), runs + len(pilots), climbed=number)
        if pilots and (not rungs or not set(pilots) <= set(names[: rungs[0].recipes])):  # not all are runs of rung 1
            rungs = plan(len(names), self.task.folds, len(self.task.seeds), runs)
        if not rungs and number == 0:
            fewest, seconds = fewest_runs(self.task.folds), self.timed.seconds_per_run
            raise RunError(
                f"A budget of {self.minutes:g} minutes is too short: a run takes {seconds:.1f} s here, and the least "
                f"is {fewest} runs (the reference and one other recipe on {self.task.folds} folds). Give at least "
                f"--budget {math.ceil((self.timed.seconds + fewest * seconds / (1 - MARGIN)) / 60)}; what was "
                "measured is kept."
            )
        return rungs

    def _start(self, number: int, planned: Sequence[Rung]) -> None:
        """Say what is planned, and note the rung that begins."""
        names, first = self._entering(number), planned[0]
        steps = ", then ".join(
            f"{counted(rung.recipes, 'recipe')} on {rung.folds} of {self.task.folds} folds x "
            f"{counted(rung.seeds, 'seed')}"
            for rung in planned
        )
        done = stages(self.task.folds, 1)[number - 1][0] if number else 0
        runs, seconds = runs_of(planned, done), self.timed.seconds_per_run
        self._say(
            f"Plan from rung {number + 1}: {steps}; at most {counted(runs, 'run')} at {seconds:.1f} s, about "
            f"{_minutes(runs * seconds)} of the {_minutes(self.timed.budget - self.timed.seconds)} left."
        )
        left_out = len(names) - first.recipes
        if left_out and number == 0:
            self._say(
                f"Not tried, because the budget is too short: the last {counted(left_out, 'recipe')} of the space."
            )
        rung = RungRecord(names[: first.recipes], first.folds, list(self.task.seeds[: first.seeds]))
        if number:
            kept = {*rung.recipes, *self.folder.best()}
            self.folder.forget_weights([name for name in self.folder.rungs[-1].recipes if name not in kept])
        self.folder.rungs.append(rung)
        self.folder.save()

    def _entering(self, number: int) -> list[str]:
        """Recipes that may enter a rung, in the order in which a short budget takes them."""
        if number == 0:
            return [one.name for one in self.task.space.recipes]
        before = self.folder.rungs[number - 1]
        return survivors(before.scores, going_on(len(before.recipes)), self.task.simplicity, REFERENCE)

    def _pilot(self) -> list[str]:
        """Run a few recipes on the first fold, so that the plan knows how long a run takes; returns those done."""
        names = self._entering(0)[:ENOUGH]
        chosen = list(dict.fromkeys(names[(len(names) - 1) * step // (PILOTS - 1)] for step in range(PILOTS)))
        self._say(f"Measuring how long a run takes: {counted(len(chosen), 'recipe')} on one fold.")
        return self._run(chosen, 1, self.task.seeds[:1])[0]

    def _measure(self, number: int, rung: RungRecord) -> bool:
        """Run and score a rung; False when time was up before every recipe was measured."""
        done, failed = self._run(rung.recipes, rung.folds, rung.seeds)
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
        rung.scores = score_validation({name: self.validation(name, rung) for name in done})
        rung.failed = failed
        self.folder.save()
        best = rung.scores[0]
        self._say(
            f"Rung {number + 1}: {best.name} leads {counted(len(done), 'recipe')} with a urgency AUC of "
            f"{100 * best.score.value:.1f} (standard error {100 * best.score.standard_error:.1f})."
        )
        return rung.complete

    def _run(self, names: Sequence[str], folds: int, seeds: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Train and validate recipes as far as the time reaches: those that are done, and why others failed."""
        wanted = [cell for name in names for cell in self._cells(name, folds, seeds)]
        # So that recipes can be compared on whole folds if time is up in between.
        wanted.sort(key=lambda cell: (seeds.index(cell.seed), cell.fold))  # all recipes of a fold, then the next fold
        grid = run_cells(wanted, self.folder.path, self.folder.recipes, self.timed, progress=self._progress)
        owners = {cell.key: cell.method for cell in wanted}
        failed = {owners[key]: reason for key, reason in grid.failures.items()}
        for name, reason in failed.items():
            self._say(f"{name} failed and is out: {reason}")
        missing = owners.keys() - {cell.key for cell in grid.finished}
        unfinished = {owners[key] for key in missing}
        return [name for name in names if name not in unfinished], failed

    def _cells(self, name: str, folds: int, seeds: Sequence[int]) -> list[Cell]:
        """The runs of a recipe; they predict their validation part."""
        task, place = self.task, self.folder.recipe(name).path.name
        grid = cells(task.configs[name], task.cohort, self.folder.manifest_file, range(folds), seeds)
        return [replace(cell, key=f"{place}/{cell.key}", method=name, split="val") for cell in grid]

    def _choose(self, ended: str) -> RecipeScore:
        """Choose on the last rung that has scores, and write down why."""
        number, rung = self.folder.decisive
        best, chosen = rung.scores[0], choose(rung.scores, self.task.simplicity)
        near = [score.name for score in rung.scores if score.is_near_best]
        self.folder.choice = {
            "recipe": chosen.name,
            "in_words": in_words(self.task.configs[chosen.name]),
            "best": best.name,
            "mean_of": self.folder.best(),
            "within_one_standard_error": near,
            "simplicity": sorted(near, key=lambda name: self.task.simplicity[name]),
            "each_seed": [self._alone(chosen.name, rung, seed) for seed in rung.seeds],
            "by_fold": self._by_fold(rung),
            "rung": number + 1,
            "folds": rung.folds,
            "seeds": rung.seeds,
            "ended": ended,
            "why": why(chosen, best, len(near), len(rung.scores), number + 1, ended),
        }
        self.folder.save()
        return chosen

    def _alone(self, name: str, rung: RungRecord, seed: int) -> float:
        """The score of a recipe with one seed only."""
        metric = METRICS["urgency_auc"]
        return estimate(self.validation(name, rung, seed=seed), [metric], resamples=0)[metric.key].value

    def _keep(self) -> None:
        self.folder.time = {key: round(getattr(self.timed, key), 3) for key in TIMES}
        self.folder.save()


def why(chosen: RecipeScore, best: RecipeScore, near: int, tried: int, rung: int, ended: str) -> str:
    """The choice in a sentence or two.

    >>> one, two = RecipeScore.of("plain", 0.74, 0.02, 0.01, 0.012), RecipeScore.of("fancy", 0.75, 0.02)
    >>> why(one, two, 3, 5, 2, "")[:79]
    'plain is the simplest of 3 recipes within one standard error of the best of the'
    """
    shown = f"urgency AUC {100 * chosen.score.value:.1f}, standard error {100 * chosen.score.standard_error:.1f}"
    early = f" {ended}, so the choice is among the recipes that were all measured alike before." if ended else ""
    if chosen.name == best.name:
        within = "within one standard error"
        alone = f"no other is {within}" if near == 1 else f"and the simplest of {near} {within}"
        best_of = f"{chosen.name} is the best of the {tried} recipes in rung {rung} on validation"
        return f"{best_of} ({shown}), {alone}.{early}"
    return (
        f"{chosen.name} is the simplest of {near} recipes within one standard error of the best of the {tried} in rung "
        f"{rung} on validation: {shown}; {best.name} is ahead by {100 * chosen.behind.difference:.1f}, standard "
        f"error of the difference {100 * chosen.behind.standard_error:.1f}.{early}"
    )


def _minutes(seconds: float) -> str:
    """Time for people.

    >>> _minutes(42), _minutes(600)
    ('42 s', '10 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
