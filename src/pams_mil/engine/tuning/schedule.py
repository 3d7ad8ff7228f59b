"""The schedule: many recipes on few folds, a third of them on all folds, a third of those with more seeds.

A rung compares its recipes on the same folds and seeds; a recipe that goes on keeps the runs it has. The reference is
in every rung. How many recipes enter is what the budget affords, in the order of the space.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.grid import CellResult, Engine

KEPT = 3
"""One recipe of this many goes on to the next rung."""
LEAST = 3
"""Where there are enough, the reference and at least two others go on: the first rung sees few slides."""
FIRST_FOLDS = 0.4
"""The share of folds on which the first rung compares."""
ENOUGH = 8
"""Rather fewer seeds than fewer recipes than this."""


@dataclass(frozen=True)
class Rung:
    """A number of recipes, the reference among them, on the first folds and seeds."""

    recipes: int
    folds: int
    seeds: int

    @property
    def runs(self) -> int:
        """Runs of each recipe."""
        return self.folds * self.seeds


def stages(folds: int, seeds: int) -> tuple[tuple[int, int], ...]:
    """Folds and seeds of the rungs.

    >>> stages(5, 3), stages(5, 1), stages(3, 2)
    (((2, 1), (5, 1), (5, 3)), ((2, 1), (5, 1)), ((2, 1), (3, 1), (3, 2)))
    """
    first = max(2, math.ceil(FIRST_FOLDS * folds))
    return tuple(dict.fromkeys([(min(first, folds), 1), (folds, 1), (folds, seeds)]))


def halve(recipes: int, ahead: Sequence[tuple[int, int]]) -> tuple[Rung, ...]:
    """The rungs that this number of recipes climbs.

    >>> [rung.recipes for rung in halve(40, stages(5, 3))]
    [40, 14, 5]
    """
    rungs = []
    for folds, seeds in ahead:
        rungs.append(Rung(recipes, folds, seeds))
        recipes = going_on(recipes)
    return tuple(rungs)


def going_on(recipes: int) -> int:
    """How many of a rung's recipes enter the next one: a third, but not fewer than LEAST.

    >>> [going_on(recipes) for recipes in (40, 8, 3, 2)]
    [14, 3, 3, 2]
    """
    return min(recipes, max(LEAST, math.ceil(recipes / KEPT)))


def runs_of(rungs: Sequence[Rung], done: int = 0) -> int:
    """How many runs the rungs need when each recipe that enters has `done` of them.

    >>> runs_of(halve(9, stages(5, 3)))  # 9 x 2, then 3 x 3 more, then 3 x 10 more
    57
    """
    total = 0
    for rung in rungs:
        total += rung.recipes * (rung.runs - done)
        done = rung.runs
    return total


def plan(recipes: int, folds: int, seeds: int, runs: float, *, climbed: int = 0) -> tuple[Rung, ...]:
    """The rungs that fit into a budget of runs; empty when none do.

    As many seeds as fit while at least ENOUGH recipes can enter (or all there are), else fewer seeds; then as many
    recipes as fit, the reference among them. `climbed` rungs are behind the recipes already.

    >>> [(rung.recipes, rung.folds, rung.seeds) for rung in plan(40, 5, 3, 200)]
    [(40, 2, 1), (14, 5, 1), (5, 5, 3)]
    >>> [(rung.recipes, rung.folds, rung.seeds) for rung in plan(40, 5, 3, 60)]
    [(9, 2, 1), (3, 5, 1), (3, 5, 3)]
    >>> plan(40, 5, 3, 9)
    ()
    """
    shapes = [all_stages for count in range(seeds, 0, -1) if len(all_stages := stages(folds, count)) > climbed]
    for all_stages in shapes:
        ahead = all_stages[climbed:]
        # Runs that each recipe has from the rungs behind it: folds x seeds.
        done = all_stages[climbed - 1][0] * all_stages[climbed - 1][1] if climbed else 0
        # From the most recipes down; never the reference alone.
        most = next((n for n in range(recipes, 1, -1) if runs_of(halve(n, ahead), done) <= runs), 0)
        if most >= min(recipes, ENOUGH) or (most and all_stages == shapes[-1]):
            return halve(most, ahead)
    return ()


def fewest_runs(folds: int) -> int:
    """What the least tuning takes: the reference and one other recipe, on all folds.

    >>> fewest_runs(5)
    10
    """
    return runs_of(halve(2, stages(folds, 1)))


@dataclass
class Spent:
    """What trying recipes has taken so far, over all attempts."""

    seconds: float = 0.0
    """Of wall time."""
    runs: int = 0
    """Finished in that time."""
    busy: float = 0.0
    """Seconds that these runs took, added up."""
    parallel: float = 1.0
    """How many runs were under way at a time, at best."""

    @property
    def seconds_per_run(self) -> float:
        """Wall time that a run adds with all processes at work, without the start of processes; 0 before the first."""
        return self.busy / self.runs / self.parallel if self.runs else 0.0


@dataclass
class TimedEngine:
    """Runs cells with another engine, counts time and runs, and stops when the budget is spent.

    Attributes:
        engine: What runs the cells.
        budget: Seconds, over all attempts.
        spent: Is counted on.
        keep: Called after every result, so that a kill loses no count.
        clock: Seconds that only grow.
    """

    engine: Engine
    budget: float
    spent: Spent
    keep: Callable[[], None]
    clock: Callable[[], float] = time.monotonic

    @property
    def left(self) -> float:
        """Seconds of the budget that are not spent."""
        return max(0.0, self.budget - self.spent.seconds)

    def affordable(self, margin: float) -> float:
        """How many runs fit into the time that is left, less a margin for error."""
        per_run = self.spent.seconds_per_run
        return (1 - margin) * self.left / per_run if per_run else math.inf

    def run(self, pending: Sequence[Cell], out: Path, owner: str) -> Generator[CellResult | None, None, None]:
        """Results as they come; none after the time."""
        if not self.left:
            return
        spent, started = self.spent, self.clock()
        before, busy = spent.seconds, spent.busy
        try:
            # Closing tells runs under way to save and stop, also when the caller stops asking.
            with closing(self.engine.run(pending, out, owner)) as results:
                for result in results:
                    spent.seconds = before + self.clock() - started
                    if result is not None:
                        spent.runs += 1
                        spent.busy += result.seconds
                        # At best, since the first results come late: processes start, and at the end some of them have
                        # nothing left.
                        spent.parallel = max(spent.parallel, (spent.busy - busy) / max(1e-9, spent.seconds - before))
                        self.keep()
                    yield result
                    if not self.left:
                        return
        finally:
            spent.seconds = before + self.clock() - started
            self.keep()
