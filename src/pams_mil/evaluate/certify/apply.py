"""A certificate on new slides: the certified call, what cannot be excluded, and the interval of classes that remain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Ints
from pams_mil.class_checks import names_by_rank
from pams_mil.errors import counted, listing
from pams_mil.evaluate.certify.calls import Dial, path_of, rank_index, rank_reach
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.predictions import numbered
from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class CertifiedCalls:
    """What is said about n slides; under the unit `case` a patient's slides all say the same, except `slide`.

    Attributes:
        hierarchy: The classes.
        slide: [n] each slide's own call at κ, a class.
        call: [n] the call that the promise is about: of the case, or of the slide.
        low, high: [n] ranks of the interval; `low` is None without one.
        notes: Whom the promise excludes.
    """

    hierarchy: ClassHierarchy
    slide: Ints
    call: Ints
    low: Ints | None
    high: Ints
    notes: tuple[str, ...] = ()

    def columns(self) -> dict[str, list[str]]:
        """For a predictions file, beside the model's own call."""
        names = self.hierarchy.names()
        tied = names_by_rank(names, self.hierarchy.ranks())
        at = [" or ".join(group) for group in tied]
        possible = ["; ".join(chain.from_iterable(tied[: rank + 1])) for rank in range(len(tied))]
        found = {
            "certified": [names[call] for call in self.call.tolist()],
            "certified_slide": [names[call] for call in self.slide.tolist()],
            "cannot_exclude": [possible[rank] for rank in self.high.tolist()],
        }
        if self.low is not None:
            found["interval_low"] = [at[rank] for rank in self.low.tolist()]
            found["interval_high"] = [at[rank] for rank in self.high.tolist()]
        return found


def apply_certificate(
    certificate: Certificate, probabilities: npt.NDArray[np.float64], patient_ids: Sequence[str]
) -> CertifiedCalls:
    """The certified calls of slides with these probabilities [n, C].

    Under the unit `case` all slides of a patient must be given together: its call is the most urgent of theirs.

    Args:
        certificate: What was certified.
        probabilities: At the finest level.
        patient_ids: Whose slide each row is.
    """
    hierarchy = certificate.hierarchy
    path = path_of(probabilities, hierarchy, "The table")
    patient, ranks = numbered(patient_ids), rank_index(hierarchy)
    slide = path.calls(certificate.kappa)
    # New slides have no labels; calls do not look at these zeros.
    dial = Dial(rank_reach(path), np.zeros(len(patient), dtype=np.int64), patient)
    call = slide
    low = None if certificate.kappa_low is None else dial.called_before(certificate.kappa_low)
    if certificate.unit == "case":
        call = _most_urgent(slide, patient)
        low = None if low is None else _most_urgent(low, patient)
    high = ranks[call]
    low = None if low is None else np.minimum(low, high)
    return CertifiedCalls(hierarchy, slide, call, low, high, _excluded(certificate, patient_ids))


def _excluded(certificate: Certificate, patient_ids: Sequence[str]) -> tuple[str, ...]:
    """A rate is promised for patients with so many slides at most; a heavier one could break it alone."""
    most = certificate.most_slides
    heavy = [] if most is None else [patient for patient, count in Counter(patient_ids).items() if count > most]
    if not heavy:
        return ()
    return (
        f"The promise is not about {counted(len(heavy), 'patient')} with more than {most} slides: "
        f"{listing(heavy, most=5)}.",
    )


def _most_urgent(values: Ints, patient: Ints) -> Ints:
    top = np.zeros(int(patient.max()) + 1, dtype=np.int64)
    np.maximum.at(top, patient, values)
    return top[patient]
