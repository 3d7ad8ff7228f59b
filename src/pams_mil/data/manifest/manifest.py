"""The cohort table: one row per slide, with its patient, label, split and feature file. All ids are opaque text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil import atomic
from pams_mil.arrays import Ints
from pams_mil.class_checks import SEPARATOR
from pams_mil.errors import LabelError, ManifestError, listing, nearest
from pams_mil.hierarchy import ClassHierarchy

SPLITS = ("train", "val", "test")
"""The splits that a cohort needs."""
PARTS = ("train", "val", "calib", "test")
"""The splits that a slide may be in: `calib` neither trains nor chooses an epoch, it is kept for certificates."""
FOLD_COLUMN = re.compile(r"fold_(\d+)")
"""A column that holds the splits of one fold."""


@dataclass(frozen=True)
class SlideRecord:
    """One slide: whose it is, what it shows, which split it is in and where its features are.

    `case_id` groups slides that were diagnosed together; it is the patient where the table has no other.
    `tags` are the words of the column `tags`; `extra` holds all columns PAMS does not know, kept as they are.
    """

    slide_id: str
    patient_id: str
    label: str
    split: str = ""
    path: str = ""
    case_id: str = ""
    tags: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def case(self) -> str:
        """The case, or the patient where the table names no cases."""
        return self.case_id or self.patient_id

    def has_tag(self, tag: str) -> bool:
        """Whether the slide carries a tag: a word of `tags`, a cell of another column, or `column=cell`.

        >>> slide = SlideRecord("s1", "p1", "HSIL", tags=("rescan",), extra={"findings": "mixed"})
        >>> slide.has_tag("mixed"), slide.has_tag("findings=mixed"), slide.has_tag("findings=pure")
        (True, True, False)
        """
        if tag in self.tags or tag in self.extra.values():
            return True
        column, sign, cell = tag.partition("=")
        return bool(sign) and self.extra.get(column) == cell


@dataclass(frozen=True)
class Manifest:
    """The slides of a cohort, in the order of the table.

    `notes` are facts about how the table was read that every report repeats, for example that it names no
    patients and each slide was taken for one.
    """

    records: tuple[SlideRecord, ...]
    source: Path | None = None
    patients_are_slides: bool = False
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[SlideRecord]:
        return iter(self.records)

    @classmethod
    def read(cls, path: Path | str, **options: Any) -> Manifest:
        """A cohort table of any known shape; options as `pams_mil.data.manifest.manifest_reader.read_manifest`."""
        from pams_mil.data.manifest.manifest_reader import read_manifest  # noqa: PLC0415  the reader knows this class

        return read_manifest(path, **options)

    def targets(self, hierarchy: ClassHierarchy) -> Ints:
        """The class index of every slide at the finest level, [n]; an unknown label is an error naming its slide."""
        index: dict[str, int] = {}
        for record in self.records:
            if record.label not in index:
                try:
                    index[record.label] = hierarchy.index(record.label)
                except LabelError as error:
                    raise ManifestError(f"Slide {record.slide_id!r}: {error}") from error
        return np.asarray([index[record.label] for record in self.records], dtype=np.int64)

    def select(self, split: str) -> Manifest:
        """The slides of one split, in order."""
        if split not in PARTS:
            raise ManifestError(f"There is no split {split!r}; splits are {listing(PARTS)}.{nearest(split, PARTS)}")
        chosen = tuple(record for record in self.records if record.split == split)
        if not chosen:
            present = sorted({record.split for record in self.records if record.split})
            available = f"the table has {listing(present)}" if present else "no slide is in any split"
            columns, advice = _extra_columns(self.records[:1]), "Make splits with 'pams split'."
            if folds := [name for name in columns if FOLD_COLUMN.fullmatch(name)]:
                number = folds[0].removeprefix("fold_")
                advice = f"It has the columns {listing(folds)}: choose one, e.g. --fold {number}."
            elif "fold" in columns:
                advice = f"It has the column 'fold': hold one out, e.g. --fold {self.records[0].extra['fold'] or 0}."
            raise ManifestError(f"No slide of {self.where} is in the split {split!r}; {available}. {advice}")
        return replace(self, records=chosen)

    @property
    def where(self) -> str:
        """The table's name for messages."""
        return str(self.source) if self.source is not None else "the manifest"

    @property
    def patients(self) -> tuple[str, ...]:
        """All patients, each once, in order of first appearance."""
        return tuple(dict.fromkeys(record.patient_id for record in self.records))

    def with_splits(self, splits: Mapping[str, str] | Sequence[str]) -> Manifest:
        """The same slides with new splits, given by slide id or in the order of the slides."""
        names = [splits[r.slide_id] for r in self.records] if isinstance(splits, Mapping) else splits
        records = (replace(record, split=split) for record, split in zip(self.records, names, strict=True))
        return replace(self, records=tuple(records))

    def write(self, path: Path | str, *, columns: Mapping[str, Sequence[str]] | None = None) -> None:
        """Write the table as CSV that `read` gives back; `columns` adds cells, one per slide."""
        added = dict(columns or {})
        always = ("slide_id", "patient_id", "label")
        shown = [name for name in _KNOWN if name in always or any(_cell(record, name) for record in self.records)]
        # Such ids are no patients: whoever reads the table again has to state it again.
        if self.patients_are_slides:
            shown.remove("patient_id")
        extra = [name for name in _extra_columns(self.records) if name not in added and name not in _KNOWN]
        rows = (
            [
                *(_cell(record, name) for name in shown),
                *(record.extra.get(name, "") for name in extra),
                *(cells[number] for cells in added.values()),
            ]
            for number, record in enumerate(self.records)
        )
        atomic.write_csv(path, [*shown, *extra, *added], rows)


_KNOWN = ("slide_id", "patient_id", "case_id", "label", "split", "path", "tags")


def _cell(record: SlideRecord, name: str) -> str:
    return ";".join(record.tags) if name == "tags" else str(getattr(record, name))


def _extra_columns(records: Iterable[SlideRecord]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record.extra))


@dataclass(frozen=True)
class BagSource:
    """What one training bag is made of: a slide, or all slides of a case."""

    name: str
    patient_id: str
    target: int
    records: tuple[SlideRecord, ...]
    findings: tuple[int, ...] = ()
    """Of a slide with several findings: their places among the finding classes; empty for "nothing"."""

    @property
    def label(self) -> str:
        """What the table says of its slides: one label, or the findings of all of them."""
        labels = list(dict.fromkeys(record.label for record in self.records if record.label.strip()))
        return f"{SEPARATOR} ".join(labels)


def most_urgent(targets: Iterable[int], hierarchy: ClassHierarchy) -> int:
    """The most urgent of several finest classes; among equally urgent ones the most frequent, then the first.

    >>> hierarchy = ClassHierarchy.load("bracs")
    >>> names = hierarchy.names()
    >>> names[most_urgent([names.index("N"), names.index("DCIS"), names.index("PB")], hierarchy)]
    'DCIS'
    >>> names[most_urgent([names.index("FEA"), names.index("ADH"), names.index("ADH")], hierarchy)]
    'ADH'
    """
    labels = list(targets)
    ranks = hierarchy.ranks()
    return max(sorted(set(labels)), key=lambda target: (ranks[target], labels.count(target), -target))


def bag_sources(
    manifest: Manifest, hierarchy: ClassHierarchy, *, merge_cases: bool = False, labels_needed: bool = True
) -> tuple[BagSource, ...]:
    """One bag per slide; or one per case, in order of first appearance, with the most urgent label of its slides.

    Slides of a case that is merged must be of one split and patient. Without `labels_needed` the target of a bag
    without a label is -1, and slides of a case that have none say nothing about it.
    """
    members: dict[str, list[SlideRecord]] = {}
    for number, record in enumerate(manifest):
        members.setdefault(record.case if merge_cases else str(number), []).append(record)
    sources = []
    for records in members.values():
        first = records[0]
        name = first.case if merge_cases else first.slide_id
        for what in ("split", "patient_id") if labels_needed else ("patient_id",):
            values = sorted({str(getattr(record, what)) for record in records})
            if len(values) > 1:
                raise ManifestError(
                    f"Case {name!r} has slides with different {what} {values}; they cannot be merged into one bag."
                )
        labeled = [record for record in records if labels_needed or record.label.strip()]
        try:
            targets = replace(manifest, records=tuple(labeled)).targets(hierarchy).tolist()
        except ManifestError as error:
            advice = "" if labels_needed else " Correct it, leave it blank, or predict with --no-labels."
            raise ManifestError(f"{error}{advice}") from error
        target = most_urgent(targets, hierarchy) if len(targets) > 1 else [*targets, -1][0]
        findings: list[int] = []
        if labels_needed and hierarchy.findings == "several":  # the union of the slides' findings
            findings = np.flatnonzero(hierarchy.finding_matrix(r.label for r in labeled).any(axis=0)).tolist()
        sources.append(BagSource(name, first.patient_id, target, tuple(records), tuple(findings)))
    return tuple(sources)
