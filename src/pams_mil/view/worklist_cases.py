"""The cases of a worklist: what one or several models say about every slide, with or without labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.data.exposure import Roles
from pams_mil.data.finding_labels import set_label
from pams_mil.digests import slide_key, text_digest
from pams_mil.errors import PredictionsError, listing
from pams_mil.evaluate.certify.apply import CertifiedCalls, apply_certificate
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.decisions import worklist
from pams_mil.evaluate.orders import Orders
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.finding_sets import finding_reach, sets_with_call
from pams_mil.metrics.kappa_path import DecisionPath, decision_path

MOST_MEMBERS = 100_000
"""Cases times models up to which the page can follow the agreement of the models along κ."""


@dataclass(frozen=True, kw_only=True)
class WorklistSlides:
    """The slides of a worklist in the order of the predictions; nothing here tells what a model or a label says.

    `groups` names the case that a slide belongs to; `roles` are those that its patient has had for the models and the
    certificate, None where nothing is known.
    """

    hierarchy: ClassHierarchy
    slide_ids: tuple[str, ...]
    patient_ids: tuple[str, ...]
    groups: tuple[str, ...]
    models: tuple[str, ...]
    roles: tuple[Roles, ...] | None = None

    def __len__(self) -> int:
        return len(self.slide_ids)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """A name for every slide that says nothing about it; the only one that the browser may use in addresses."""
        keys = tuple(map(slide_key, self.slide_ids))
        if len(set(keys)) < len(keys):
            raise PredictionsError("Two slide ids have the same short digest; rename one of them.")
        return keys

    @property
    def orders(self) -> list[dict[str, Any]]:
        """Every other order of urgency: its name, and its classes as numbers of the first order, least urgent first."""
        if not self.hierarchy.other_orders:
            return []
        orders = Orders(self.hierarchy)
        rest = zip(orders.names[1:], orders.places[1:], strict=True)
        return [{"name": name, "classes": np.argsort(place).tolist()} for name, place in rest]

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of every key."""
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of every slide."""
        return {slide: row for row, slide in enumerate(self.slide_ids)}


@dataclass(frozen=True, kw_only=True)
class Cases(Predictions):
    """Predictions of one model, or the mean of several, with what a worklist shows besides.

    `target` is -1 where no label is known; `agreement` [n] is None for a single model.
    """

    groups: tuple[str, ...]
    models: tuple[str, ...]
    agreement: Array | None = None
    certified: CertifiedCalls | None = None
    members: tuple[DecisionPath, ...] = ()
    """The path of each of several models along κ, for their agreement at any."""

    def __post_init__(self) -> None:
        if len(self.slide_ids):  # a blind reader may see none yet
            super().__post_init__()

    @classmethod
    def combine(cls, models: Sequence[Predictions], *, groups: Mapping[str, str] | None = None) -> Cases:
        """One list from the predictions of one or several models, averaged; all must have the same slides."""
        first = models[0]
        aligned = [first, *(_aligned(first, other) for other in models[1:])]
        scored = [model.probabilities for model in aligned if model.probabilities is not None]
        mean = np.mean(scored, axis=0) if len(scored) == len(aligned) else None
        single = [model.finding_probabilities for model in aligned if model.finding_probabilities is not None]
        calls = np.stack([model.predicted for model in aligned])
        call = _call(first, mean, calls)
        patients = first.patient_ids if first.patient_ids is not None else first.slide_ids
        known = groups or {}
        mixed: dict[str, Any] = {
            "predicted": call, "target": _targets(aligned), "patient_ids": patients, "probabilities": mean,
            "finding_probabilities": np.mean(single, axis=0) if len(single) == len(aligned) else None,
            "notes": tuple(dict.fromkeys(note for model in models for note in model.notes)),
            "roles": _joined([model.roles for model in aligned]), "tags": {},
        }  # fmt: skip
        return cls(
            **{one.name: getattr(first, one.name) for one in fields(first)} | mixed,
            groups=tuple(known.get(slide, patient) for slide, patient in zip(first.slide_ids, patients, strict=True)),
            models=tuple(model.name for model in models),
            agreement=worklist.agreement(calls, call) if len(aligned) > 1 else None,
            members=tuple(model.path for model in aligned) if 1 < len(aligned) == len(scored) else (),
        )

    def with_certificate(self, certificate: Certificate, *, incomplete: Collection[str] = ()) -> Cases:
        """The same cases with certified calls, withheld for patients of whom a slide is missing."""
        certificate.refuse_other_classes(self.hierarchy, "the worklist")
        if self.probabilities is None:
            raise PredictionsError("A certificate needs class probabilities; these predictions have calls alone.")
        patients = self.slides.patient_ids
        roles = _joined([self.roles, certificate.exposure.roles(self.slide_ids, patients)])
        certified = apply_certificate(
            certificate, self.probabilities, patients, incomplete=incomplete, findings=self.finding_probabilities
        )
        hierarchy = certificate.hierarchy if certificate.hierarchy.other_orders else self.hierarchy
        return replace(self, hierarchy=hierarchy, roles=roles, certified=certified)

    @cached_property
    def slides(self) -> WorklistSlides:
        """The same slides without calls, labels and certificates."""
        own = {one.name: getattr(self, one.name) for one in fields(WorklistSlides)}
        return WorklistSlides(
            **own | {"slide_ids": tuple(self.slide_ids), "patient_ids": tuple(self.patient_ids or ())}
        )

    def take(self, rows: Ints, *, name: str | None = None) -> Cases:
        """Chosen rows; of a patient who loses a slide by it, the certified call is withheld, for it covers them all."""
        certified, chosen, patients = self.certified, rows.tolist(), self.slides.patient_ids
        if certified is not None:
            counts, left = Counter(patients), Counter(patients[row] for row in chosen)
            incomplete = {patient for patient in left if left[patient] < counts[patient]}
            withheld = (row in certified.withheld or patients[row] in incomplete for row in chosen)
            certified = certified.take(rows, frozenset(place for place, hide in enumerate(withheld) if hide))
        return replace(
            cast("Cases", super().take(rows, name=name)),
            groups=tuple(self.groups[row] for row in chosen),
            agreement=None if self.agreement is None else self.agreement[rows],
            members=tuple(path.take(rows) for path in self.members),
            certified=certified,
        )

    @cached_property
    def cannot_exclude(self) -> tuple[str, ...]:
        """For every slide the classes that the certificate leaves possible, most urgent last; empty without one."""
        if self.certified is None:
            return ("",) * len(self)
        return tuple(self.certified.columns()["cannot_exclude"])

    @cached_property
    def digests(self) -> dict[str, str]:
        """For every slide a digest of the classes, the call and the probabilities that a verdict on it is about."""
        # Rounded: the same predictions, made again, may differ in their last bits.
        shown = [()] * len(self) if self.probabilities is None else np.round(self.probabilities, 9).tolist()
        classes = self.hierarchy.digest
        rows = zip(self.slide_ids, self.predicted.tolist(), shown, strict=True)
        return {slide: text_digest(repr([classes, slide, call, scores])) for slide, call, scores in rows}

    def call_at(self, row: int, kappa: float | None) -> str:
        """What one case is called, at κ or as predicted: a class, or a set of findings."""
        call = int(self.predicted[row])
        if kappa is not None and self.probabilities is not None:
            call = int(self.path.take(np.array([row])).calls(kappa)[0])
        name = self.hierarchy.names()[call]
        findings = self.finding_probabilities
        if findings is None:
            return name
        present = sets_with_call(findings[[row]], [call], 1.0 if kappa is None else kappa, self.hierarchy)[0]
        return set_label(present, self.hierarchy, name)

    @cached_property
    def listed(self) -> dict[str, list[Any]]:
        """What the page shows of every case, by column; None where there is nothing to show."""
        shown: dict[str, list[Any]] = {"call": self.predicted.tolist(), "severity": np.round(self.severity, 5).tolist()}
        if self.probabilities is not None:
            shown["probabilities"] = np.round(self.probabilities, 5).tolist()
            shown["at_least"] = np.round(worklist.at_least(self.probabilities, self.hierarchy.ranks()), 5).tolist()
            shown["uncertainty"] = np.round(worklist.uncertainty(self.probabilities), 5).tolist()
            shown["reach"] = _thresholds(self.path.reach)
            if self.hierarchy.other_orders:
                shown["other_reach"] = self._other_reach(self.probabilities)
        if self.finding_probabilities is not None:
            shown["findings"] = np.round(self.finding_probabilities, 5).tolist()
            shown["finding_reach"] = _thresholds(finding_reach(self.finding_probabilities, self.hierarchy))
        if self.agreement is not None:
            shown["agreement"] = np.round(self.agreement, 5).tolist()
        if self.members and len(self) * len(self.members) <= MOST_MEMBERS:
            paths = [_flat_paths(path) for path in self.members]
            shown["members"] = [list(row) for row in zip(*paths, strict=True)]
        if self.certified is not None:
            shown["certified"] = self._unless_withheld(self.certified.answers)
        if self.certified is not None and self.certified.low is not None:
            shown["lowest"] = self._unless_withheld(self.certified.low.tolist())
        return shown

    def _other_reach(self, probabilities: Array) -> list[list[list[float | None]]]:
        """For every slide, the thresholds of its calls in every other order, whose classes `orders` lists."""
        others = list(zip(self.slides.orders, self.hierarchy.other_orders, strict=True))
        paths = [decision_path(probabilities[:, order["classes"]], tree) for order, tree in others]
        return [list(row) for row in zip(*(_thresholds(path.reach) for path in paths), strict=True)]

    def _unless_withheld(self, values: Sequence[Any]) -> list[Any]:
        withheld = frozenset() if self.certified is None else self.certified.withheld
        return [None if row in withheld else value for row, value in enumerate(values)]

    @cached_property
    def severity(self) -> Array:
        """What the list is ordered by: expected severity, or the rank of the call where there are only calls."""
        ranks = self.hierarchy.ranks()
        if self.probabilities is None:
            return ranks[self.predicted].astype(np.float64)
        return worklist.expected_severity(self.probabilities, ranks)

    @cached_property
    def order(self) -> Ints:
        """Rows from the most to the least urgent: certified call first, then severity; among equals as in the file."""
        certified = np.zeros(len(self), np.int64)
        if self.certified is not None:
            certified = np.array([rank or 0 for rank in self._unless_withheld(self.certified.high.tolist())], np.int64)
        # lexsort: the last key counts first, and equals keep their order.
        by_urgency: Ints = np.lexsort((-self.severity, -certified))
        return by_urgency


def _flat_paths(path: DecisionPath) -> list[list[float | int | None]]:
    """For every case the κ at which its call changes, each followed by the call; what no finite κ reaches is None."""
    count, call, kappa = path.breakpoints()
    pairs = [
        entry
        for k, c in zip(kappa.tolist(), call.tolist(), strict=True)
        for entry in (k if math.isfinite(k) else None, c)
    ]
    ends = (2 * np.cumsum(count)).tolist()
    return [pairs[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _thresholds(reach: Array) -> list[list[float | None]]:
    """Not rounded: the call changes at these very numbers. What no finite κ reaches is null."""
    return [[kappa if math.isfinite(kappa) else None for kappa in row] for row in reach.tolist()]


def _joined(each: Sequence[Sequence[Roles] | None]) -> tuple[Roles, ...] | None:
    known = [roles for roles in each if roles is not None]
    none: Roles = frozenset()
    return tuple(none.union(*row) for row in zip(*known, strict=True)) if known else None


def _call(first: Predictions, mean: Array | None, calls: Ints) -> Ints:
    """One model's own call; the most probable class of the mean of several; else the most frequent call."""
    if len(calls) == 1:
        return np.asarray(first.predicted, dtype=np.int64)
    if mean is not None:
        best: Ints = mean.argmax(1)
        return best
    votes = (calls[:, :, None] == np.arange(first.hierarchy.num_classes())).sum(0)
    urgent_last: Ints = votes.shape[1] - 1 - votes[:, ::-1].argmax(1)  # among equally many votes the most urgent
    return urgent_last


def _targets(models: Iterable[Predictions]) -> Ints:
    known = np.stack([model.target for model in models])
    # -1 is "unknown", so the largest is a label wherever any model knows one.
    best: Ints = known.max(0)
    contradicting = ((known >= 0) & (known != best)).any(0)
    if contradicting.any():
        raise PredictionsError(f"{int(contradicting.sum())} slides have different labels in the given predictions.")
    return best


def _aligned(first: Predictions, other: Predictions) -> Predictions:
    if first.hierarchy.digest != other.hierarchy.digest:
        raise PredictionsError(f"{first.name} and {other.name} know different classes, so they share no worklist.")
    position = {slide: row for row, slide in enumerate(other.slide_ids)}
    missing = [slide for slide in first.slide_ids if slide not in position]
    if missing or len(other) != len(first):
        odd = missing or sorted(set(other.slide_ids) - set(first.slide_ids))
        raise PredictionsError(
            f"{first.name} and {other.name} predict different slides, e.g. {listing(odd, most=3)}; "
            "predict the same table with every run."
        )
    return other.take(np.asarray([position[slide] for slide in first.slide_ids], dtype=np.int64))
