"""Calibration patients by rank: where each slide reaches every rank, which rank its label has, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.class_checks import names_by_rank
from pams_mil.errors import ParameterError, PredictionsError, listing, nearest
from pams_mil.evaluate.certify.miss_losses import Unit, as_cases
from pams_mil.evaluate.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import DecisionPath, decision_path


@dataclass(frozen=True)
class Dial:
    """Slides on the dial κ.

    Attributes:
        reach: [n, R] the smallest κ at which a slide is called rank ρ or higher.
        rank: [n] of the labels.
        patient: [n] whose slide, from 0.
    """

    reach: Array
    rank: Ints
    patient: Ints

    def as_unit(self, unit: Unit) -> Dial:
        """Cases where cases are what counts, else the slides."""
        return Dial(*as_cases(self.reach, self.rank, self.patient)) if unit == "case" else self

    def called(self, kappa: float) -> Ints:
        """The rank called at κ, [n]."""
        called: Ints = (self.reach <= kappa).sum(axis=1) - 1
        return called

    def called_before(self, kappa: float) -> Ints:
        """The rank called just below κ, [n]; the lowest rank at κ = 0."""
        called: Ints = np.maximum((self.reach < kappa).sum(axis=1) - 1, 0)
        return called

    def weight(self, unit: Unit) -> Array:
        """What each row counts, [n]: slides count alike under `rate`, else patients do."""
        return np.ones(len(self.rank)) if unit == "rate" else 1.0 / np.bincount(self.patient)[self.patient]

    def share(self, rows: npt.NDArray[np.bool_], unit: Unit) -> float:
        """How much of all some rows are."""
        weight = self.weight(unit)
        return float(weight[rows].sum() / weight.sum())


def dial_of(predictions: Predictions) -> Dial:
    """The calibration patients of a predictions file; it must bring probabilities."""
    path = path_of(predictions.probabilities, predictions.hierarchy, predictions.name)
    return Dial(rank_reach(path), rank_index(predictions.hierarchy)[predictions.target], predictions.patient)


def path_of(probabilities: npt.NDArray[np.float64] | None, hierarchy: ClassHierarchy, name: str) -> DecisionPath:
    """The decision path, or an error that says that probabilities are missing."""
    if probabilities is None:
        raise PredictionsError(
            f"{name} has no probabilities, so there is no dial to turn and nothing to certify; "
            "export one probability column per class."
        )
    return decision_path(probabilities, hierarchy)


def rank_reach(path: DecisionPath) -> Array:
    """The table `reach` [n, R] by rank instead of by class: a rank is reached with the first of its classes."""
    # The first class of a rank is never NaN: only classes behind the last one called at κ = ∞ are.
    _, first = np.unique(path.ranks, return_index=True)
    found: Array = path.reach[:, first]
    return found


def rank_index(hierarchy: ClassHierarchy) -> Ints:
    """The rank of every finest class, counted from 0 without gaps."""
    found: Ints = np.unique(hierarchy.ranks(), return_inverse=True)[1].astype(np.int64)
    return found


def boundary_rank(hierarchy: ClassHierarchy, name: str) -> int:
    """The finest rank from which on a slide is at or above a class or group, named at any level.

    >>> tree = ClassHierarchy.load("bracs")
    >>> boundary_rank(tree, "Malignant"), boundary_rank(tree, "DCIS"), boundary_rank(tree, "ADH")
    (4, 4, 3)
    """
    ranks = rank_index(hierarchy)
    found = set()
    for level in range(hierarchy.num_levels):
        if name in hierarchy.names(level):
            belongs = hierarchy.groups(level) == hierarchy.index(name, level)
            found.add(int(ranks[belongs].min()))
    known = list(dict.fromkeys(label for level in range(hierarchy.num_levels) for label in hierarchy.names(level)))
    if not found:
        raise ParameterError(
            f"{name!r} is no class or group of {hierarchy.name!r}.{nearest(name, known)} "
            f"Those are {listing(known, most=30)}."
        )
    if len(found) > 1:
        raise ParameterError(f"{name!r} names different boundaries at different levels; use another class or group.")
    if found == {0}:
        raise ParameterError(f"{name!r} is the least urgent there is: nothing can be called below it, or missed.")
    return found.pop()


def boundaries(hierarchy: ClassHierarchy) -> list[tuple[str, int]]:
    """Every boundary with the names of the finest classes just above it, least urgent first."""
    tied = names_by_rank(hierarchy.names(), hierarchy.ranks())
    return [(" or ".join(labels), rank) for rank, labels in enumerate(tied) if rank]
