"""Cohort tables for prediction: labels are welcome, but not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pams_mil.data import tables
from pams_mil.data.finding_labels import has_class_columns
from pams_mil.data.manifest.manifest import BagSource, Manifest, bag_sources
from pams_mil.errors import ManifestError, listing
from pams_mil.hierarchy import ClassHierarchy


def read_for_prediction(
    table: Path | str | Manifest,
    hierarchy: ClassHierarchy,
    *,
    split: str | None = None,
    labels: bool = True,
    columns: Mapping[str, str] | None = None,
    patients_are_slides: bool = False,
    merge_cases: bool = False,
    **reading: Any,
) -> tuple[Manifest, tuple[BagSource, ...], bool]:
    """A table of slides, read unless it was already, its bags, and whether it is known whose slides they are.

    One that names neither labels nor patients will do: targets are then -1, and every slide stands for a patient.
    """
    known = True
    if isinstance(table, Manifest):
        manifest = table if labels else replace(table, records=tuple(replace(one, label="") for one in table))
    else:
        named, head = dict(columns or {}), list(next(iter(tables.read_chunks(table, rows=1))))
        there = {*named, *(["label"] if reading.get("clini") is not None else []), *(name.casefold() for name in head)}
        manifest = Manifest.read(
            table, columns=named, labels=labels and ("label" in there or has_class_columns(head, hierarchy)),
            patients_are_slides=True, classes=hierarchy, **reading,
        )  # fmt: skip
        known = patients_are_slides or not manifest.patients_are_slides
    if split is not None:
        manifest = manifest.select(split)
    if not manifest.records:
        raise ManifestError(f"{manifest.where} has no slides to predict.")
    sources = bag_sources(manifest, hierarchy, merge_cases=merge_cases, labels_needed=False)
    counts = Counter(source.name for source in sources)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ManifestError(f"{manifest.where} has {len(twice)} slides more than once: {listing(twice)}.")
    return manifest, sources, known


def split_of(table: Path | str, hierarchy: ClassHierarchy, split: str) -> str | None:
    """The split, where slides of the table are in it; else None, for all of them."""
    records, *_ = read_for_prediction(table, hierarchy, labels=False)
    return split if any(record.split == split for record in records) else None


def table_tags(sources: Sequence[BagSource]) -> dict[str, list[str]]:
    """The column `tags` and all columns PAMS does not know, for subsets in reports."""
    first = [source.records[0] for source in sources]
    tags = {"tags": [";".join(record.tags) for record in first]} if any(record.tags for record in first) else {}
    for name in dict.fromkeys(name for record in first for name in record.extra):
        tags[name] = [record.extra.get(name, "") for record in first]
    return tags
