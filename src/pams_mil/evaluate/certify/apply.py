"""A certificate on new slides: the certified call, what cannot be excluded, and the interval of classes that remain.

Of several orders of urgency the answer is the set of their calls at κ. The losses of each order fall with κ, so its
bounds also hold at the largest κ that any order needs, and an answer that holds its call misses no more than the call
alone. Averaged costs would not do: see `evaluate/orders.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Bools, Ints
from pams_mil.class_checks import names_by_rank
from pams_mil.data.exposure import one_spelling
from pams_mil.data.finding_labels import joined_names, set_label
from pams_mil.errors import counted, listing
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.miss_losses import SlideReach, by_patient, rank_reach
from pams_mil.evaluate.orders import Orders
from pams_mil.evaluate.predictions.predictions import numbered
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.finding_sets import sets_with_call
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.severity import orders_at, ranks_by_order


@dataclass(frozen=True)
class CertifiedCalls:
    """The certified calls of n slides by J orders; under the unit `case` a patient's slides agree in all but `slide`.

    Attributes:
        hierarchy: The classes with their orders; classes are numbered as in the first.
        slide: [J, n] each slide's own call at κ, a class.
        call: [J, n] the call that the guarantee is about: of the case, or of the slide.
        low: [n] ranks of the lower end of the interval; None without one.
        withheld: Rows of patients with a missing slide: more urgent than the rest it could be, so nothing is certified.
        notes: Patients the guarantee does not cover.
        sets: [n, K] the findings that are called; None where slides have one.
    """

    hierarchy: ClassHierarchy
    slide: Ints
    call: Ints
    low: Ints | None = None
    withheld: frozenset[int] = field(default_factory=frozenset)
    notes: tuple[str, ...] = ()
    sets: Bools | None = None

    @property
    def high(self) -> Ints:
        """The rank, in the first order, of the most urgent class that is called, [n]."""
        top: Ints = self.hierarchy.ranks()[self.call].max(axis=0)
        return top

    @property
    def answers(self) -> list[list[int]]:
        """For every slide the classes that are called, most urgent first: of every order, or a set of findings."""
        calls = [sorted(set(by_order), reverse=True) for by_order in self.call.T.tolist()]
        if self.sets is None:
            return calls
        findings = self.hierarchy.finding_classes
        called = (findings[present][::-1].tolist() for present in self.sets)
        return [classes or call for classes, call in zip(called, calls, strict=True)]

    def columns(self) -> dict[str, list[str]]:
        """For a predictions file, beside the model's own call; classes are listed in the first order."""
        names, ranks = self.hierarchy.names(), ranks_by_order(self.hierarchy)
        by_order = list(zip(*self.call.tolist(), strict=True))

        def at_most(calls: tuple[int, ...]) -> str:
            """What is at most as urgent as the call in one of the orders: a set that grows with κ."""
            reached = ranks <= ranks[np.arange(len(ranks)), calls][:, None]
            return joined_names(np.flatnonzero(reached.any(axis=0)), self.hierarchy)

        def named(calls: Iterable[tuple[int, ...]]) -> list[str]:
            return [joined_names(sorted(set(each)), self.hierarchy) for each in calls]

        possible = {calls: at_most(calls) for calls in set(by_order)}
        columns = {
            "certified": self._cells(named(by_order)),
            "certified_slide": named(zip(*self.slide.tolist(), strict=True)),
            "cannot_exclude": self._cells(possible[calls] for calls in by_order),
        }
        if len(self.call) > 1:
            for order, calls in zip(Orders(self.hierarchy).names, self.call.tolist(), strict=True):
                columns[f"certified [{order}]"] = self._cells(names[call] for call in calls)
        if self.sets is not None:
            labels = zip(self.sets, self.call[0].tolist(), strict=True)
            columns["certified_findings"] = self._cells(
                set_label(present, self.hierarchy, names[call]) for present, call in labels
            )
        if self.low is not None:
            at = [" or ".join(tied) for tied in names_by_rank(names, self.hierarchy.ranks())]
            ends = {"interval_low": self.low, "interval_high": self.high}
            columns |= {name: self._cells(at[rank] for rank in end.tolist()) for name, end in ends.items()}
        return columns

    def _cells(self, values: Iterable[str]) -> list[str]:
        return ["" if row in self.withheld else value for row, value in enumerate(values)]

    def take(self, rows: Ints, withheld: frozenset[int]) -> CertifiedCalls:
        """The calls of chosen rows, of which some are withheld."""
        return replace(
            self, slide=self.slide[:, rows], call=self.call[:, rows], low=None if self.low is None else self.low[rows],
            sets=None if self.sets is None else self.sets[rows], withheld=withheld,
        )  # fmt: skip


def apply_certificate(
    certificate: Certificate,
    probabilities: npt.NDArray[np.float64],
    patient_ids: Sequence[str],
    *,
    incomplete: Collection[str] = (),
    findings: Array | None = None,
) -> CertifiedCalls:
    """The certified calls of slides with these probabilities [n, C].

    Under the unit `case` all slides of a patient must be passed together: its call is the most urgent of theirs.

    Args:
        certificate: The certificate.
        probabilities: At the finest level, classes as in the first order.
        patient_ids: Whose slide each row is.
        incomplete: Patients of whom a slide is missing, e.g. because it could not be read.
        findings: [n, K] probabilities of single findings, where slides have several.
    """
    hierarchy, kappa, by_case = certificate.hierarchy, certificate.kappa, certificate.unit == "case"
    # A slide that is missing under one spelling of its patient withholds the call of the others.
    patients = one_spelling([*patient_ids, *incomplete])
    patient = numbered(patients[: len(patient_ids)])
    slide, call = [], []
    for order, _, place in orders_at(hierarchy):
        back = np.argsort(place)  # from the numbers of classes in this order to those in the first
        path = decision_path(probabilities[:, back], order)
        own = path.calls(kappa)
        slide.append(back[own])
        call.append(back[by_patient(np.maximum, own, patient)[patient]] if by_case else slide[-1])
    low = sets = None
    if certificate.kappa_low is not None:  # of one order, whose path it is
        slides = SlideReach(rank_reach(path), np.zeros_like(patient), patient)
        rank = slides.as_unit(certificate.unit).called_before(certificate.kappa_low)
        low = np.minimum(rank[patient] if by_case else rank, hierarchy.ranks()[call[0]])
    if findings is not None:
        sets = sets_with_call(findings, slide[0], kappa, hierarchy)
        sets = by_patient(np.logical_or, sets, patient)[patient] if by_case else sets
    lacking = dict.fromkeys(patients[len(patient_ids) :]) if by_case else {}
    withheld = frozenset(row for row, whose in enumerate(patients[: len(patient_ids)]) if whose in lacking)
    note = (
        f"Nothing is certified for {counted(len(lacking), 'patient')} of whom a slide is missing, as it could be the "
        f"most urgent one: {listing(lacking, most=5)}."
    )
    notes = (note,) if lacking else ()
    return CertifiedCalls(hierarchy, np.stack(slide), np.stack(call), low, withheld, notes, sets)
