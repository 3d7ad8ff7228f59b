"""A certificate on new slides: the certified call, what cannot be excluded, and the interval of classes that remain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Bools, Ints
from pams_mil.class_checks import names_by_rank
from pams_mil.data.finding_labels import set_label
from pams_mil.errors import counted, listing
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.miss_losses import SlideReach, path_of, rank_index
from pams_mil.evaluate.predictions.predictions import numbered
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.finding_sets import sets_with_call


@dataclass(frozen=True)
class CertifiedCalls:
    """The certified calls of n slides; under the unit `case` a patient's slides agree in all but `slide`.

    Attributes:
        hierarchy: The classes.
        slide: [n] each slide's own call at κ, a class.
        call: [n] the call that the guarantee is about: of the case, or of the slide.
        low, high: [n] ranks of the interval; `low` is None without one.
        withheld: Rows of patients with a missing slide: more urgent than the rest it could be, so nothing is certified.
        notes: Patients the guarantee does not cover.
        sets: [n, K] the findings that are called; None where slides have one.
    """

    hierarchy: ClassHierarchy
    slide: Ints
    call: Ints
    low: Ints | None
    high: Ints
    withheld: frozenset[int] = field(default_factory=frozenset)
    notes: tuple[str, ...] = ()
    sets: Bools | None = None

    @property
    def answers(self) -> list[list[int]]:
        """For every slide the classes that are called, most urgent first: one, or a set of findings."""
        if self.sets is None:
            return [[call] for call in self.call.tolist()]
        findings = self.hierarchy.finding_classes
        called = (findings[present][::-1].tolist() for present in self.sets)
        return [classes or [call] for classes, call in zip(called, self.call.tolist(), strict=True)]

    def columns(self) -> dict[str, list[str]]:
        """For a predictions file, beside the model's own call."""
        names = self.hierarchy.names()
        tied = names_by_rank(names, self.hierarchy.ranks())
        at = [" or ".join(group) for group in tied]
        possible = ["; ".join(chain.from_iterable(tied[: rank + 1])) for rank in range(len(tied))]

        def cells(labels: Sequence[str], values: Ints) -> list[str]:
            return ["" if row in self.withheld else labels[value] for row, value in enumerate(values.tolist())]

        columns = {
            "certified": cells(names, self.call),
            "certified_slide": [names[call] for call in self.slide.tolist()],
            "cannot_exclude": cells(possible, self.high),
        }
        if self.sets is not None:
            columns["certified_findings"] = [
                "" if row in self.withheld else set_label(present, self.hierarchy, names[call])
                for row, (present, call) in enumerate(zip(self.sets, self.call.tolist(), strict=True))
            ]
        if self.low is not None:
            columns |= {"interval_low": cells(at, self.low), "interval_high": cells(at, self.high)}
        return columns

    def take(self, rows: Ints, withheld: frozenset[int]) -> CertifiedCalls:
        """The calls of chosen rows, of which some are withheld."""
        return replace(
            self, slide=self.slide[rows], call=self.call[rows], high=self.high[rows],
            low=None if self.low is None else self.low[rows], sets=None if self.sets is None else self.sets[rows],
            withheld=withheld,
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
        probabilities: At the finest level.
        patient_ids: Whose slide each row is.
        incomplete: Patients of whom a slide is missing, e.g. because it could not be read.
        findings: [n, K] probabilities of single findings, where slides have several.
    """
    hierarchy = certificate.hierarchy
    path = path_of(probabilities, hierarchy, "The table")
    patient, ranks = numbered(patient_ids), rank_index(hierarchy)
    slide = path.calls(certificate.kappa)
    call, low, sets = slide, None, None
    if findings is not None:
        sets = sets_with_call(findings, slide, certificate.kappa, hierarchy)
    if certificate.kappa_low is not None:
        low = SlideReach.unlabeled(path, patient).called_before(certificate.kappa_low)
    if certificate.unit == "case":
        call = _most_urgent(slide, patient)
        low = None if low is None else _most_urgent(low, patient)
        sets = None if sets is None else _any_slide(sets, patient)
    high = ranks[call]
    low = None if low is None else np.minimum(low, high)
    lacking = [one for one in dict.fromkeys(incomplete) if certificate.unit == "case"]
    withheld = frozenset(row for row, whose in enumerate(patient_ids) if whose in set(lacking))
    note = (
        f"Nothing is certified for {counted(len(lacking), 'patient')} of whom a slide is missing, as it could be the "
        f"most urgent one: {listing(lacking, most=5)}."
    )
    return CertifiedCalls(hierarchy, slide, call, low, high, withheld, (note,) if lacking else (), sets)


def _any_slide(sets: Bools, patient: Ints) -> Bools:
    united = np.zeros((int(patient.max()) + 1, sets.shape[1]), dtype=bool)
    np.logical_or.at(united, patient, sets)
    joined: Bools = united[patient]
    return joined


def _most_urgent(values: Ints, patient: Ints) -> Ints:
    top = np.zeros(int(patient.max()) + 1, dtype=np.int64)
    np.maximum.at(top, patient, values)
    return top[patient]
