"""The choice of a recipe and its schedule by plain loops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics import urgency_auc


def drawn_aucs(
    target: Sequence[int], p: Any, patient: Sequence[int], hierarchy: ClassHierarchy, seed: int, resamples: int
) -> list[float]:
    """Urgency AUC of resamples of patients, every slide written out as often as its patient was drawn."""
    rng, patients, found = np.random.default_rng(seed), max(patient) + 1, []
    for _ in range(resamples):
        rows = []
        for drawn in rng.integers(0, patients, patients):
            rows += [row for row, owner in enumerate(patient) if owner == drawn]
        found.append(urgency_auc(np.asarray(target)[rows], np.asarray(p)[rows], hierarchy, labels=hierarchy.names()))
    return found


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def chosen(names: Sequence[str], behind: Mapping[str, float], error: Mapping[str, float], order: Sequence[str]) -> str:
    """The first name in the order of simplicity that is no further behind the best than its standard error."""
    for name in order:
        if name in names and behind[name] <= error[name]:
            return name
    raise AssertionError("the best is always near itself")


def going_on(scores: Mapping[str, float], choice: str, reference: str, order: Sequence[str], count: int) -> list[str]:
    """The reference, the choice, then whoever is the best among those left, one by one."""
    found = [reference]
    if choice not in found:
        found.append(choice)
    while len(found) < min(count, len(scores)):
        left = [name for name in order if name in scores and name not in found]
        best = left[0]
        for name in left:
            if scores[name] > scores[best]:
                best = name
        found.append(best)
    return found[:count]


def runs_needed(rungs: Sequence[tuple[int, int, int]]) -> int:
    """(recipes, folds, seeds) of each rung -> how many (recipe, fold, seed) are trained, counted one by one."""
    trained = set()
    for recipes, folds, seeds in rungs:
        for recipe in range(recipes):  # those that go on are the first ones, without loss of generality
            for fold in range(folds):
                for seed in range(seeds):
                    trained.add((recipe, fold, seed))
    return len(trained)
