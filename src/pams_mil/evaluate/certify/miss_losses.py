"""The losses of patients as functions of the dial κ: steps that only go down.

A case that is called too low at κ is called high enough from some larger κ on, so a patient's loss ℓ(κ) falls in
steps and is 0 at κ = ∞, where every call is the most urgent class. All that a guarantee needs is where the steps are:

    Σ_p ℓ_p(κ) = Σ drops of the steps beyond κ          (right-continuous: at a step the loss has already fallen)

Three estimands, for patients with slides s, labels t_s and calls d_κ(s):

| unit | loss of a patient |
|---|---|
| case | the most urgent call of its slides is below its most urgent label: 0 or 1 |
| slide | the share of its slides that are called below their labels: a random slide of a new patient |
| rate | the number of its slides that are called below their labels: missed slides among all slides |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError
from pams_mil.parameters import require_choice

Unit = Literal["case", "slide", "rate"]
UNITS: tuple[Unit, ...] = ("case", "slide", "rate")


@dataclass(frozen=True)
class LossCurve:
    """The summed loss of patients over κ, and the worst that one more patient could add to it.

    Attributes:
        kappa: [s] where the steps are, ascending.
        drop: [s] how much each takes away, above 0.
        patient: [s] whose step it is, 0 to n - 1.
        n: Patients, those without any step included.
        weight: [n] what each patient counts in the mean: 1, or its slides under the unit `rate`.
        worst_loss: The most that one more patient can lose (B, or M slides).
        worst_weight: What that patient would count.
        zero_one: Every patient loses 1 or nothing, here and wherever the promise is to hold, so misses can be counted.
    """

    kappa: Array
    drop: Array
    patient: Ints
    n: int
    weight: Array
    worst_loss: float = 1.0
    worst_weight: float = 1.0
    zero_one: bool = False

    @classmethod
    def of(
        cls,
        kappa: npt.ArrayLike,
        drop: npt.ArrayLike,
        patient: npt.ArrayLike,
        weight: npt.ArrayLike,
        *,
        worst_loss: float = 1.0,
        worst_weight: float = 1.0,
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
        return cls(k[order], d[order], p[order], len(w), w, worst_loss, worst_weight, zero_one)

    @property
    def mass(self) -> float:
        """Σ of the weights: patients, or slides under the unit `rate`."""
        return float(self.weight.sum())

    def total(self, kappa: npt.ArrayLike) -> Array:
        """Σ_p ℓ_p(κ) for every κ given.

        >>> curve = LossCurve.of([0.5, 2.0, np.inf], [1, 1, 1], [0, 1, 2], [1, 1, 1, 1])
        >>> curve.total([0.0, 0.5, 2.0, 1e9, np.inf]).tolist()
        [3.0, 2.0, 1.0, 1.0, 0.0]
        """
        # Summed from the far end: there the sums are small, so the promise is decided without rounding of large ones.
        beyond = np.append(np.cumsum(self.drop[::-1])[::-1], 0.0)
        found: Array = beyond[np.searchsorted(self.kappa, np.asarray(kappa, dtype=np.float64), side="right")]
        return found

    def candidates(self) -> Array:
        """0, every κ where something changes, and ∞, ascending: between them nothing changes."""
        return np.unique(np.concatenate(([0.0], self.kappa, [np.inf])))

    def mean(self, kappa: float) -> float:
        """The observed loss at κ, per unit of weight; NaN without patients."""
        return float(self.total(kappa)) / self.mass if self.n else float("nan")

    def weighted(self, weight: Array, worst: float) -> LossCurve:
        """The same patients counted `weight` [n] times, one more counting `worst` times."""
        return replace(
            self, drop=self.drop * weight[self.patient], weight=self.weight * weight,
            # a miss now loses v_y, so misses can no longer be counted
            worst_loss=self.worst_loss * worst, worst_weight=self.worst_weight * worst, zero_one=False,
        )  # fmt: skip


def as_cases(reach: Array, rank: Ints, patient: Ints) -> tuple[Array, Ints, Ints]:
    """Patients instead of slides: called as their most urgently called slide, labelled as their most urgent one."""
    patients = int(patient.max()) + 1 if len(patient) else 0
    soonest, top = np.full((patients, reach.shape[1]), np.inf), np.zeros(patients, dtype=np.int64)
    # A case is called as urgent as its most urgent slide, so it reaches a rank with the first slide that does.
    np.minimum.at(soonest, patient, reach)
    np.maximum.at(top, patient, rank)
    return soonest, top, np.arange(patients)


def miss_losses(
    reach: Array,
    rank: Ints,
    patient: Ints,
    *,
    unit: Unit = "case",
    boundary: int | None = None,
    most_slides: int | None = None,
) -> LossCurve:
    """How patients' missed urgency falls with κ.

    Args:
        reach: [n, R] the smallest κ at which a slide is called rank ρ or higher; ∞ where only κ = ∞ does it.
        rank: [n] the rank of each slide's label.
        patient: [n] whose slide it is, numbered from 0.
        unit: "case", "slide" or "rate".
        boundary: Only patients (under `slide` and `rate`, slides) at or above this rank count, and a miss is a call
            below it; None: all count, and a miss is a call below the label.
        most_slides: M of the unit `rate`, the most slides that a patient can have; None: the most seen.

    >>> reach = np.array([[0.0, 3.0], [0.0, 0.5], [0.0, 9.0]])  # two slides of patient 0, one of patient 1
    >>> curve = miss_losses(reach, np.array([1, 1, 1]), np.array([0, 0, 1]))
    >>> curve.kappa.tolist()  # patient 0 is found as soon as one of its slides is
    [0.5, 9.0]
    """
    require_choice("unit", unit, UNITS)
    if unit == "case":
        reach, rank, patient = as_cases(reach, rank, patient)
    # After the slides became cases: a patient is above a boundary by its most urgent slide.
    counted = rank >= (0 if boundary is None else boundary)
    needed = rank if boundary is None else np.full_like(rank, boundary)
    rows = np.flatnonzero(counted)
    return unit_losses(reach[rows, needed[rows]], patient[rows], unit=unit, most_slides=most_slides)


def unit_losses(kappa: Array, patient: Ints, *, unit: Unit, most_slides: int | None = None) -> LossCurve:
    """The curve of slides (cases) that lose 1 up to their `kappa` [n] and nothing from there on."""
    # Numbered anew without gaps: at a boundary, patients without a slide above it are left out.
    who, patient = np.unique(patient, return_inverse=True)
    slides = np.bincount(patient, minlength=len(who)).astype(np.float64)
    if unit == "rate":
        most = float(most_slides if most_slides is not None else slides.max(initial=1.0))
        if slides.max(initial=0.0) > most:
            raise ParameterError(f"A patient has {slides.max():.0f} slides, more than the stated {most:.0f}.")
        return LossCurve.of(kappa, np.ones(len(kappa)), patient, slides, worst_loss=most, worst_weight=most)
    return LossCurve.of(kappa, 1.0 / slides[patient], patient, np.ones(len(who)), zero_one=unit == "case")
