"""Several slides of one case: the case's label is its most urgent one, and its bags may be merged into one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.errors import ManifestError
from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class BagSource:
    """What one training bag is made of: a slide, or all slides of a case."""

    name: str
    patient_id: str
    target: int
    records: tuple[SlideRecord, ...]


def most_urgent(targets: Iterable[int], hierarchy: ClassHierarchy) -> int:
    """The most urgent of several finest classes; among equally urgent ones the most frequent, then the first.

    >>> hierarchy = ClassHierarchy.load("bracs")
    >>> names = hierarchy.names()
    >>> names[most_urgent([names.index("N"), names.index("DCIS"), names.index("PB")], hierarchy)]
    'DCIS'
    >>> names[most_urgent([names.index("FEA"), names.index("ADH"), names.index("ADH")], hierarchy)]
    'ADH'
    """
    found = list(targets)
    ranks = hierarchy.ranks()
    return max(sorted(set(found)), key=lambda target: (ranks[target], found.count(target), -target))


def slides_as_sources(manifest: Manifest, hierarchy: ClassHierarchy) -> list[BagSource]:
    """One bag per slide."""
    targets = manifest.targets(hierarchy).tolist()
    return [
        BagSource(record.slide_id, record.patient_id, target, (record,))
        for record, target in zip(manifest, targets, strict=True)
    ]


def merge_cases(manifest: Manifest, hierarchy: ClassHierarchy) -> list[BagSource]:
    """One bag per case, in order of first appearance, with the most urgent label of its slides.

    A case whose slides are in different splits or belong to different patients is an error.
    """
    members: dict[str, list[tuple[SlideRecord, int]]] = {}
    for record, target in zip(manifest, manifest.targets(hierarchy).tolist(), strict=True):
        members.setdefault(record.case, []).append((record, target))
    sources = []
    for case, slides in members.items():
        for what in ("split", "patient_id"):
            values = sorted({str(getattr(record, what)) for record, _ in slides})
            if len(values) > 1:
                raise ManifestError(
                    f"Case {case!r} has slides with different {what} {values}; they cannot be merged into one bag."
                )
        target = most_urgent((target for _, target in slides), hierarchy)
        sources.append(BagSource(case, slides[0][0].patient_id, target, tuple(record for record, _ in slides)))
    return sources
