"""Missed urgency of calibration patients as a function of the operating point κ.

A case that is called too low at κ is called high enough from some larger κ on, so a patient's loss ℓ(κ) falls in
steps and is 0 at κ = ∞, where every call is the most urgent class. All that a guarantee needs is where the steps are:

    Σ_p ℓ_p(κ) = Σ drops of the steps beyond κ          (right-continuous: at a step the loss has already fallen)

| unit | loss of a patient with slides s, labels t_s and calls d_κ(s) |
|---|---|
| case | the most urgent call of its slides is below its most urgent label: 0 or 1 |
| slide | the share of its slides that are called below their labels: a random slide of a new patient |

Where slides have several findings, the weighted share of a patient's findings (under `slide`, the mean share of its
slides') that are not called falls in steps, too: finding k is called on a slide at the latest from

    κ_k = max( own reach (1 − p_k) / (p_k w_k),  κ at which the most urgent call has reached the rank of k )

on, and stays called, since both conditions of a called set keep once they are met. Patients without a finding lose
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import AnyArray, Array, Bools, Ints
from pams_mil.class_checks import names_by_rank
from pams_mil.errors import ParameterError, PredictionsError, listing, nearest
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.finding_sets import finding_reach
from pams_mil.metrics.kappa_path import DecisionPath

Unit = Literal["case", "slide"]
UNITS: tuple[Unit, ...] = ("case", "slide")


@dataclass(frozen=True, kw_only=True)
class MissLoss:
    """What counts as missed, and whom it is about.

    Attributes:
        at: The class or group whose boundary it is about; None: all patients.
        rank: The finest rank of that boundary; None: all patients.
        findings: Whether it is the share of a patient's findings that are missed, not the most urgent one.
        order: The order of urgency that it is by, where there are several.
    """

    at: str | None = None
    rank: int | None = None
    findings: bool = False
    order: str = ""

    @property
    def who(self) -> str:
        """The patients it is about."""
        if self.findings:
            return "findings of all patients"
        return "all patients" if self.at is None else f"patients at or above {self.at}"

    def curve(self, predictions: Predictions, unit: Unit) -> LossCurve:
        """How this loss of patients falls with κ; their classes are in the order that it is by."""
        if self.findings:
            return FindingReach.of(predictions).miss_losses(unit)
        return SlideReach.of(predictions).miss_losses(unit, self.rank)


ALL_PATIENTS = MissLoss()


@dataclass(frozen=True)
class SlideReach:
    """Slides (or cases) with the κ at which each reaches every rank.

    Attributes:
        reach: [n, R] the smallest κ at which a slide is called rank ρ or higher; ∞ where only κ = ∞ does it.
        rank: [n] of the labels; zeros where there are none.
        patient: [n] whose slide, from 0.
    """

    reach: Array
    rank: Ints
    patient: Ints

    @classmethod
    def of(cls, predictions: Predictions) -> SlideReach:
        """The slides of a predictions file, which must have probabilities."""
        rank = predictions.hierarchy.ranks()[np.maximum(predictions.target, 0)]  # no label is -1
        return cls(rank_reach(predictions.path), rank, predictions.patient)

    def as_unit(self, unit: Unit) -> SlideReach:
        """One row per patient where cases are counted, else the slides.

        A case is called as its most urgently called slide and labeled as its most urgent one.
        """
        if unit == "slide":
            return self
        # A case is called as urgent as its most urgent slide, so it reaches a rank with the first slide that does.
        soonest = by_patient(np.minimum, self.reach, self.patient)
        top = by_patient(np.maximum, self.rank, self.patient)
        return SlideReach(soonest, top, np.arange(len(top)))

    def called(self, kappa: float) -> Ints:
        """The rank called at κ, [n]."""
        called: Ints = (self.reach <= kappa).sum(axis=1) - 1
        return called

    def called_before(self, kappa: float) -> Ints:
        """The rank called just below κ, [n]; the lowest rank at κ = 0."""
        called: Ints = np.maximum((self.reach < kappa).sum(axis=1) - 1, 0)
        return called

    @property
    def exceed(self) -> Array:
        """The κ from which on a row is called above its label, [n]; ∞ (never) where it has the highest rank."""
        beyond = np.concatenate([self.reach, np.full((len(self.reach), 1), np.inf)], axis=1)
        kappa: Array = beyond[np.arange(len(beyond)), self.rank + 1]
        return kappa

    @property
    def weight(self) -> Array:
        """The weight of each row, [n]: patients count alike, and their slides share that."""
        return 1.0 / np.bincount(self.patient)[self.patient]

    def share(self, rows: Bools) -> float:
        """The weight of some rows as a share of all."""
        return float(self.weight[rows].sum() / self.weight.sum())

    def miss_losses(self, unit: Unit = "case", boundary: int | None = None) -> LossCurve:
        """How the patients' missed urgency falls with κ.

        Of a `boundary` only patients (under `slide`, slides) at or above this rank count, and a miss is a call below
        it; else all count, and a miss is a call below the label.

        >>> reach = np.array([[0.0, 3.0], [0.0, 0.5], [0.0, 9.0]])  # two slides of patient 0, one of patient 1
        >>> SlideReach(reach, np.array([1, 1, 1]), np.array([0, 0, 1])).miss_losses().kappa.tolist()
        [0.5, 9.0]
        """
        counted = self.as_unit(unit)
        # After the slides became cases: a patient is above a boundary by its most urgent slide.
        rows = np.flatnonzero(counted.rank >= (0 if boundary is None else boundary))
        needed = counted.rank[rows] if boundary is None else boundary
        return LossCurve.of_rows(counted.reach[rows, needed], counted.patient[rows], unit)


@dataclass(frozen=True)
class LossCurve:
    """The summed loss of patients over κ, and the most that one more patient could add to it.

    Attributes:
        kappa: [s] where the steps are, ascending.
        drop: [s] how much each takes away, above 0.
        patient: [s] whose step it is, 0 to n - 1.
        weight: [n] of each patient in the mean, those without any step included.
        worst: The largest loss, and weight, of one more patient.
        zero_one: Every patient loses 1 or nothing, here and wherever the bound is to hold, so misses can be counted.
    """

    kappa: Array
    drop: Array
    patient: Ints
    weight: Array
    worst: float = 1.0
    zero_one: bool = False

    @classmethod
    def of(
        cls,
        kappa: npt.ArrayLike,
        drop: npt.ArrayLike,
        patient: npt.ArrayLike,
        weight: npt.ArrayLike,
        *,
        worst: float = 1.0,
        zero_one: bool = False,
    ) -> LossCurve:
        """Steps in any order; those that take nothing away are left out."""
        k, d = np.asarray(kappa, dtype=np.float64), np.asarray(drop, dtype=np.float64)
        p, w = np.asarray(patient, dtype=np.int64), np.asarray(weight, dtype=np.float64)
        if np.isnan(k).any() or (k < 0).any():
            raise ParameterError("Every step must be at a κ from 0 to ∞; found a number below 0 or none at all.")
        if not (np.isfinite(d).all() and (d >= 0).all()):
            raise ParameterError("A miss loss must not grow with κ: every step must take away a finite amount.")
        used = np.flatnonzero(d > 0)
        # Ascending, so that what is lost at κ is a sum over the end of the list.
        order = used[np.argsort(k[used], kind="stable")]
        return cls(k[order], d[order], p[order], w, worst, zero_one)

    @classmethod
    def of_rows(cls, kappa: Array, patient: Ints, unit: Unit) -> LossCurve:
        """The curve of slides (cases) that lose 1 up to their `kappa` [n] and nothing from there on."""
        # Renumbered without gaps: at a boundary, patients without a slide above it are left out.
        who, patient = np.unique(patient, return_inverse=True)
        slides = np.bincount(patient, minlength=len(who)).astype(np.float64)
        return cls.of(kappa, 1.0 / slides[patient], patient, np.ones(len(who)), zero_one=unit == "case")

    @property
    def n(self) -> int:
        """How many patients."""
        return len(self.weight)

    @property
    def mass(self) -> float:
        """Σ of the weights."""
        return float(self.weight.sum())

    def total(self, kappa: npt.ArrayLike) -> Array:
        """Σ_p ℓ_p(κ) for every κ.

        >>> curve = LossCurve.of([0.5, 2.0, np.inf], [1, 1, 1], [0, 1, 2], [1, 1, 1, 1])
        >>> curve.total([0.0, 0.5, 2.0, 1e9, np.inf]).tolist()
        [3.0, 2.0, 1.0, 1.0, 0.0]
        """
        # Summed from the far end, where sums are small, and rounded: three thirds of a patient are one patient.
        beyond = np.round(np.append(np.cumsum(self.drop[::-1])[::-1], 0.0), 9)
        totals: Array = beyond[np.searchsorted(self.kappa, np.asarray(kappa, dtype=np.float64), side="right")]
        return totals

    def losses(self, kappa: float) -> Array:
        """The loss of every patient at κ, [n]."""
        loss: Array = np.zeros(self.n)
        # Strictly: at its κ a step has already been taken.
        beyond = self.kappa > kappa
        np.add.at(loss, self.patient[beyond], self.drop[beyond])
        # thirds and the like may sum to a rounding above 1
        return np.minimum(loss, self.worst)

    def mean(self, kappa: float) -> float:
        """The observed loss at κ, per unit of weight; NaN without patients."""
        return float(self.total(kappa)) / self.mass if self.n else float("nan")

    def weighted(self, weight: Array, worst: float) -> LossCurve:
        """The same patients counted `weight` [n] times, one more counting `worst` times."""
        # a miss now loses v_y, so misses can no longer be counted
        drop = self.drop * weight[self.patient]
        return replace(self, drop=drop, weight=self.weight * weight, worst=self.worst * worst, zero_one=False)


@dataclass(frozen=True)
class FindingReach:
    """Slides with the κ from which on each finding is called.

    Attributes:
        reach: [n, K] the smallest κ from which on finding k stays called; ∞ where only κ = ∞ calls it.
        present: [n, K] which findings are there.
        patient: [n] whose slide, from 0.
        weights: [K] how much each counts.
    """

    reach: Array
    present: Bools
    patient: Ints
    weights: Array

    @classmethod
    def of(cls, predictions: Predictions) -> FindingReach:
        """The slides of a predictions file, which must have sets as labels and probabilities of findings."""
        tree, p = predictions.hierarchy, predictions.finding_probabilities
        if tree.findings == "one":
            raise ParameterError(
                f"The classes of {tree.name!r} are one per slide, so there are no sets of findings to bound; bound the "
                "most urgent one with alpha, or use a class file with 'findings: several'."
            )
        if p is None or predictions.finding_targets is None:
            raise PredictionsError(
                f"{predictions.name} has no probabilities of single findings; expected a column f_<class> for each."
            )
        headline = rank_reach(predictions.path)
        reach = np.maximum(finding_reach(p, tree), headline[:, tree.ranks()[tree.finding_classes]])
        return cls(reach, predictions.finding_targets, predictions.patient, tree.finding_weights)

    def miss_losses(self, unit: Unit = "case") -> LossCurve:
        """How the share of the patients' findings that are not called falls with κ.

        >>> reach, present = np.array([[1.0, 8.0], [4.0, 2.0]]), np.array([[True, True], [True, False]])
        >>> FindingReach(reach, present, np.zeros(2, int), np.ones(2)).miss_losses().kappa.tolist()  # on either slide
        [1.0, 2.0]
        """
        reach, present, whose = self.reach, self.present, self.patient
        if unit == "case":
            # A case has what any of its slides has, and is called what any of them is.
            reach, present = by_patient(np.minimum, reach, whose), by_patient(np.logical_or, present, whose)
            whose = np.arange(len(reach))
        slides = np.bincount(whose)
        row, finding = np.nonzero(present)
        drop = self.weights[finding] / (present @ self.weights)[row] / slides[whose[row]]
        return LossCurve.of(reach[row, finding], drop, whose[row], np.ones(len(slides)))


def by_patient(reduce: np.ufunc, values: AnyArray, patient: Ints) -> AnyArray:
    """The values of slides [n, ...] reduced over each patient [p, ...]; patients are numbered from 0 without gaps.

    >>> by_patient(np.maximum, np.array([3, 1, 2]), np.array([0, 1, 0])).tolist()
    [3, 1]
    """
    order = np.argsort(patient, kind="stable")
    starts = np.flatnonzero(np.diff(patient[order], prepend=-1))
    reduced: AnyArray = reduce.reduceat(values[order], starts, axis=0)
    return reduced


def rank_reach(path: DecisionPath) -> Array:
    """The table `reach` [n, R] by rank instead of by class: a rank is reached with the first of its classes."""
    # The first class of a rank is never NaN: only classes behind the last one called at κ = ∞ are.
    _, first = np.unique(path.ranks, return_index=True)
    reach: Array = path.reach[:, first]
    return reach


def boundary_rank(hierarchy: ClassHierarchy, name: str) -> int:
    """The finest rank from which on a slide is at or above a class or group, named at any level.

    >>> tree = ClassHierarchy.load("bracs")
    >>> boundary_rank(tree, "Malignant"), boundary_rank(tree, "DCIS"), boundary_rank(tree, "ADH")
    (4, 4, 3)
    """
    ranks = hierarchy.ranks()
    lowest = {
        int(ranks[hierarchy.groups(level) == hierarchy.index(name, level)].min())
        for level in range(hierarchy.num_levels)
        if name in hierarchy.names(level)
    }
    if not lowest:
        known = list(dict.fromkeys(label for level in range(hierarchy.num_levels) for label in hierarchy.names(level)))
        raise ParameterError(
            f"{name!r} is not a class or group in {hierarchy.name!r}.{nearest(name, known)} "
            f"Those are {listing(known, most=30)}."
        )
    if len(lowest) > 1:
        raise ParameterError(f"{name!r} names different boundaries at different levels; use another class or group.")
    if lowest == {0}:
        raise ParameterError(f"{name!r} is the least urgent there is: nothing can be called below it, or missed.")
    return lowest.pop()


def boundaries(hierarchy: ClassHierarchy) -> list[tuple[str, int]]:
    """Every boundary with the names of the finest classes just above it, least urgent first."""
    tied = names_by_rank(hierarchy.names(), hierarchy.ranks())
    return [(" or ".join(labels), rank) for rank, labels in enumerate(tied) if rank]
