"""Several slides of one case: the case's label is its most urgent one, and its bags may be merged into one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pams_mil.data.manifest import Manifest, SlideRecord
from pams_mil.errors import ManifestError
from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class BagSource:
    """What one training bag is made of: a slide, or all slides of a case."""

    name: str
    patient_id: str
    target: int
    records: tuple[SlideRecord, ...]


def most_urgent(targets: Iterable[int], tree: ClassHierarchy) -> int:
    """The most urgent of several finest classes; among equally urgent ones the most frequent, then the first.

    >>> tree = ClassHierarchy.load("bracs")
    >>> tree.names()[most_urgent([tree.index("N"), tree.index("DCIS"), tree.index("PB")], tree)]
    'DCIS'
    >>> tree.names()[most_urgent([tree.index("FEA"), tree.index("ADH"), tree.index("ADH")], tree)]
    'ADH'
    """
    found = list(targets)
    ranks = tree.ranks()
    return max(sorted(set(found)), key=lambda target: (ranks[target], found.count(target), -target))


def slides_as_sources(manifest: Manifest, tree: ClassHierarchy) -> list[BagSource]:
    """One bag per slide."""
    targets = manifest.targets(tree).tolist()
    return [
        BagSource(record.slide_id, record.patient_id, target, (record,))
        for record, target in zip(manifest, targets, strict=True)
    ]


def merge_cases(manifest: Manifest, tree: ClassHierarchy) -> list[BagSource]:
    """One bag per case, in order of first appearance, with the most urgent label of its slides.

    A case whose slides are in different splits or belong to different patients is an error.
    """
    members: dict[str, list[tuple[SlideRecord, int]]] = {}
    for record, target in zip(manifest, manifest.targets(tree).tolist(), strict=True):
        members.setdefault(record.case, []).append((record, target))
    sources = []
    for case, slides in members.items():
        for what in ("split", "patient_id"):
            values = sorted({str(getattr(record, what)) for record, _ in slides})
            if len(values) > 1:
                raise ManifestError(
                    f"Case {case!r} has slides with different {what} {values}; they cannot be merged into one bag."
                )
        target = most_urgent((target for _, target in slides), tree)
        sources.append(BagSource(case, slides[0][0].patient_id, target, tuple(record for record, _ in slides)))
    return sources
