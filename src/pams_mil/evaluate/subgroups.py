"""Does a model miss more at one site, scanner or sex than at another, beyond chance and beyond the mix of classes?

For a group g with slides s, misses m_s in {0, 1} and class t_s, and r_t the share of misses of class t in all slides:

    observed O_g = Σ m_s,     expected E_g = Σ r_(t_s),     T = Σ_g (O_g − E_g)² / E_g

E_g is what the group would have with the model's overall error rates and its own mix of classes. The p-value of T
permutes the groups among patients with the same most urgent class, so a site with more cancers is no worse for it.
Where patients have slides in several groups, rows of group labels are exchanged between those with as many slides.

The slides of a group are a sample of their own: its shares have intervals over the group's patients and, of several
seeds, networks (`pams_mil.evaluate.inference`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Bools, Ints
from pams_mil.atomic import plain
from pams_mil.errors import listing
from pams_mil.evaluate.cautions import FEW_PATIENTS
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.inference import estimate
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.resampling import RESAMPLES, holm

UNKNOWN = "unknown"
"""The group of slides whose cell is empty."""


@dataclass(frozen=True)
class Rate:
    """Slides of a group that are missed, or false alarms: how many, how many expected (per seed), and their share."""

    count: float
    expected: float
    share: Contrast


@dataclass(frozen=True)
class Subgroup:
    """One group: a site, a scanner."""

    name: str
    slides: int
    patients: int
    missed: Rate
    false_alarms: Rate

    @property
    def too_small(self) -> bool:
        """Whether a mistake made in one patient of ten may well not occur in it at all."""
        return self.patients < FEW_PATIENTS

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {key: plain(value) for key, value in vars(self).items()} | {"too_small": self.too_small}


@dataclass(frozen=True)
class SubgroupAudit:
    """One model by the groups of one column, e.g. `site`; p-values are corrected for the tests of one audit."""

    model: str
    by: str
    groups: list[Subgroup]
    p_missed: float | None
    p_false_alarms: float | None

    @property
    def worst(self) -> Subgroup | None:
        """Of the groups that are large enough, the one that misses the largest share; None where fewer than two are."""
        large = [group for group in self.groups if not group.too_small]
        return max(large, key=lambda group: group.missed.share.value) if len(large) > 1 else None

    @property
    def sentences(self) -> list[str]:
        """The worst group, whether groups differ, and those that are too small to say anything."""
        words = []
        worst = self.worst
        if worst is not None:
            low, high = worst.missed.share.interval
            words.append(
                f"{self.model} misses most at {self.by} {worst.name}: {100 * worst.missed.share.value:.1f} % of "
                f"{worst.slides} slides (95 % interval {100 * low:.1f} to {100 * high:.1f})."
            )
        for what, p in (("misses", self.p_missed), ("false alarms", self.p_false_alarms)):
            if p is not None:
                beyond = "differ beyond chance" if p <= 0.05 else "do not differ beyond chance"
                how = f"(p = {p:.2g}, patients of the same class compared)"
                words.append(f"{self.model} by {self.by}: {what} {beyond} {how}.")
        small = [group.name for group in self.groups if group.too_small]
        if small:
            words.append(
                f"Too few patients to say anything (fewer than {FEW_PATIENTS}): {self.by} {listing(small, most=8)}."
            )
        return words

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        worst = None if self.worst is None else self.worst.name
        return {key: plain(value) for key, value in vars(self).items()} | {"worst": worst}


def subgroups(
    models: Sequence[Predictions], by: Sequence[str], *, seed: int = 0, resamples: int = RESAMPLES
) -> list[SubgroupAudit]:
    """Every model by every column, at the finest level; p-values of a model are corrected by Holm's method.

    `resamples` counts draws of patients for intervals, and deals of the groups for p-values.
    """
    audits: list[SubgroupAudit] = []
    for model in models:
        own = [_by_column(model, column, seed, resamples) for column in by]
        tests = [p for one in own for p in (one.p_missed, one.p_false_alarms) if p is not None]
        corrected = iter(holm(tests).tolist() if tests else [])
        for one in own:
            missed, alarms = (None if p is None else next(corrected) for p in (one.p_missed, one.p_false_alarms))
            audits.append(replace(one, p_missed=missed, p_false_alarms=alarms))
    return audits


def _by_column(model: Predictions, column: str, seed: int, resamples: int) -> SubgroupAudit:
    cells = [cell.strip() or UNKNOWN for cell in model.tag(column)]
    names = sorted(set(cells), key=lambda name: (name == UNKNOWN, name))
    numbers = {name: number for number, name in enumerate(names)}
    group = np.array([numbers[cell] for cell in cells])
    severe = model.hierarchy.outranks()
    events = [severe[model.target, model.predicted], severe[model.predicted, model.target]]
    expected = [expected_events(event, model.target) for event in events]
    metrics = [METRICS[key] for key in ("missed_rate", "false_alarm_rate")]
    groups = []
    for number, name in enumerate(names):
        rows = group == number
        sample = model.where(rows)
        shares = estimate(sample, metrics, seed=seed, resamples=resamples).values()
        rates = [
            Rate(float(event[rows].sum()) / sample.num_seeds, float(wanted[rows].sum()) / sample.num_seeds, share)
            for event, wanted, share in zip(events, expected, shares, strict=True)
        ]
        groups.append(Subgroup(name, len(set(sample.slide_ids)), sample.num_patients, *rates))
    p_values = _p_values(events, expected, group, model, len(names), seed, resamples)
    return SubgroupAudit(model.name, column, groups, *p_values)


def expected_events(event: Bools, target: Ints) -> Array:
    """The share of events in each slide's class, [n]."""
    classes, place = np.unique(target, return_inverse=True)
    shares = np.bincount(place, weights=event, minlength=len(classes)) / np.bincount(place, minlength=len(classes))
    expected: Array = shares[place]
    return expected


def deals_of_groups(group: Ints, patient: Ints, target: Ints, *, seed: int, deals: int) -> Iterator[Ints]:
    """The groups of slides [n], permuted: patients exchange them with patients that are alike.

    Alike are patients with the same most urgent class and, where a patient is in several groups, as many slides.
    """
    order = np.argsort(patient, kind="stable")
    starts = np.flatnonzero(np.diff(patient[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    urgency = np.maximum.reduceat(target[order], starts)
    whole = np.array_equal(group[order], np.repeat(group[order[starts]], counts))
    _, alike = np.unique(urgency if whole else urgency * (counts.max() + 1) + counts, return_inverse=True)
    strata = [np.flatnonzero(alike == stratum) for stratum in range(int(alike.max()) + 1)]
    within = 0 if whole else np.arange(len(order)) - np.repeat(starts, counts)
    rng = np.random.default_rng(seed)
    for _ in range(deals):
        source = np.arange(len(starts))
        for members in strata:
            source[members] = rng.permutation(members)
        dealt = np.empty_like(group)
        # Row k of a patient takes the group of row k of the patient whose groups it was dealt.
        dealt[order] = group[order[np.repeat(starts[source], counts) + within]]
        yield dealt


def chi_squared(event: Bools, expected: Array, group: Ints, groups: int) -> float:
    """T = Σ_g (O_g − E_g)² / E_g over groups in which anything is expected."""
    observed = np.bincount(group, weights=event, minlength=groups)
    wanted = np.bincount(group, weights=expected, minlength=groups)
    some = wanted > 0
    return float(((observed - wanted)[some] ** 2 / wanted[some]).sum())


def _p_values(
    events: Sequence[Bools], expected: Sequence[Array], group: Ints, model: Predictions, groups: int, seed: int,
    deals: int,
) -> list[float | None]:  # fmt: skip
    """Of each kind of event; None where nothing can differ."""
    if groups < 2 or not deals:
        return [None] * len(events)
    observed = [chi_squared(event, wanted, group, groups) for event, wanted in zip(events, expected, strict=True)]
    beyond = [0] * len(events)
    for dealt in deals_of_groups(group, model.patient, model.target, seed=seed, deals=deals):
        for kind, (event, wanted) in enumerate(zip(events, expected, strict=True)):
            beyond[kind] += chi_squared(event, wanted, dealt, groups) >= observed[kind] - 1e-9
    return [
        (count + 1) / (deals + 1) if event.any() and not event.all() else None
        for count, event in zip(beyond, events, strict=True)
    ]
