"""Cohort tables for prediction: labels are welcome, but not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pams_mil.data import tables
from pams_mil.data.finding_labels import has_class_columns
from pams_mil.data.manifest.manifest import BagSource, Manifest, bag_sources
from pams_mil.data.manifest.manifest_reader import ROLES
from pams_mil.errors import ManifestError, listing
from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class PredictionManifest:
    """The slides to predict; targets are -1 where unknown.

    Without `patients_known` the table names no patients, and every slide stands for one.
    """

    manifest: Manifest
    sources: tuple[BagSource, ...]
    patients_known: bool


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
) -> PredictionManifest:
    """A table of slides, read unless it was already; one that names neither labels nor patients will do."""
    known = True
    if isinstance(table, Manifest):
        manifest = table if labels else replace(table, records=tuple(replace(one, label="") for one in table))
    else:
        named, head = dict(columns or {}), list(next(iter(tables.read_chunks(table, rows=1))))
        there = {*named, *(["patient_id", "label"] if reading.get("clini") is not None else [])}
        lower = {name.casefold() for name in head}
        by_table = any(name in lower for role in ("patient_id", "case_id") for name in ROLES[role])
        known = patients_are_slides or "patient_id" in there or by_table
        labeled = "label" in {*there, *lower} or has_class_columns(head, hierarchy)
        manifest = Manifest.read(
            table, columns=named, labels=labels and labeled, patients_are_slides=patients_are_slides or not known,
            classes=hierarchy, **reading,
        )  # fmt: skip
    if split is not None:
        manifest = manifest.select(split)
    if not manifest.records:
        raise ManifestError(f"{manifest.where} has no slides to predict.")
    sources = bag_sources(manifest, hierarchy, merge_cases=merge_cases, labels_needed=False)
    _refuse_repeated(sources, manifest.where)
    return PredictionManifest(manifest, sources, known)


def split_of(table: Path | str, hierarchy: ClassHierarchy, split: str) -> str | None:
    """The split, where slides of the table are in it; else None, for all of them."""
    records = read_for_prediction(table, hierarchy, labels=False).manifest.records
    return split if any(record.split == split for record in records) else None


def _refuse_repeated(sources: Sequence[BagSource], path: Path | str) -> None:
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ManifestError(f"{path} has {len(twice)} slides more than once: {listing(twice)}.")


def table_tags(sources: Sequence[BagSource]) -> dict[str, list[str]]:
    """The column `tags` and all columns PAMS does not know, for subsets in reports."""
    first = [source.records[0] for source in sources]
    tags = {"tags": [";".join(record.tags) for record in first]} if any(record.tags for record in first) else {}
    for name in dict.fromkeys(name for record in first for name in record.extra):
        tags[name] = [record.extra.get(name, "") for record in first]
    return tags
