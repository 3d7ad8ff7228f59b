"""The bags a run may see: train and val. The splits test and calib are dropped here and cannot be asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pams_mil.data.bags.dataset import BagDataset
from pams_mil.data.bags.feature_origin import STATED, OriginCheck, complete_origin, feature_origin, stated_by_table
from pams_mil.data.bags.store import BagStore, open_store
from pams_mil.data.examine import examine_manifest, refuse_errors
from pams_mil.data.manifest.manifest import BagSource, Manifest, merge_cases, slides_as_sources
from pams_mil.engine.config.run_config import DataConfig
from pams_mil.engine.run.trained_slides import TrainedSlides
from pams_mil.errors import ManifestError, listing
from pams_mil.hierarchy import ClassHierarchy


@dataclass(frozen=True)
class Features:
    """What the bags of a cohort have in common: width and how they were made, as far as the files say."""

    width: int
    encoder: dict[str, Any]

    @property
    def origin(self) -> dict[str, Any]:
        """Width and the rest in one mapping."""
        return {"width": self.width, **self.encoder}


@dataclass(frozen=True)
class Cohort:
    """Training and validation bags with what identifies them."""

    hierarchy: ClassHierarchy
    train: BagDataset
    val: BagDataset
    features: Features
    slides: TrainedSlides
    notes: tuple[str, ...]


def open_cohort(data: DataConfig, hierarchy: ClassHierarchy, *, cache_bytes: int = 0) -> Cohort:
    """Read the manifest, check it, and open the bags of train and val."""
    manifest = read_manifest(data)
    # Only these are read. The whole table serves to find patients that are in other parts too, and files by name.
    seen = replace(manifest, records=tuple(r for r in manifest if r.split in ("train", "val")))
    train, val = manifest.select("train"), manifest.select("val")
    # Before any feature file is opened: a patient on both sides makes every later score worthless.
    _refuse_shared_patients(manifest, seen)
    refuse_errors(examine_manifest(seen, hierarchy, whole=manifest), manifest.where)
    store = open_store(features_path(data), manifest)
    sources = [make_sources(part, hierarchy, data) for part in (train, val)]
    features = _with_what_was_stated(look_at_features(store, train), data, seen)
    first = train.records[0].slide_id
    origin = OriginCheck(features.origin, whose=f"the slide {first!r}", slide_ids=[r.slide_id for r in seen])
    datasets = [
        BagDataset(part, hierarchy, store, cache_bytes=cache_bytes, sources=source, origin=origin)
        for part, source in zip((train, val), sources, strict=True)
    ]
    slides = TrainedSlides.of(seen, "train", "val")
    return Cohort(hierarchy, datasets[0], datasets[1], features, slides, manifest.notes)


def read_manifest(data: DataConfig) -> Manifest:
    """The manifest with the settings that say how to read it."""
    return Manifest.read(data.manifest, **data.reading())


def features_path(data: DataConfig) -> Path:
    """The folder of feature files or the pack; the manifest's own folder when none is given."""
    return data.features if data.features is not None else data.manifest.parent


def make_sources(manifest: Manifest, hierarchy: ClassHierarchy, data: DataConfig) -> list[BagSource]:
    """One bag per slide, or per case."""
    return merge_cases(manifest, hierarchy) if data.merge_cases else slides_as_sources(manifest, hierarchy)


def look_at_features(store: BagStore, manifest: Manifest) -> Features:
    """Width and encoder of the first bag; every other bag is held against them when it is read."""
    found = feature_origin(store.read(manifest.records[0]))
    return Features(found.pop("width"), found)


def _with_what_was_stated(features: Features, data: DataConfig, seen: Manifest) -> Features:
    """Features of other tools: what their files do not say may stand in the settings or in the table."""
    settings = {key: getattr(data, key) for key in STATED}
    stated = complete_origin(stated_by_table(seen), settings, where="data", whose=f"the table {seen.where}")
    return replace(features, encoder=complete_origin(features.encoder, stated, where="data", whose="the feature files"))


def _refuse_shared_patients(manifest: Manifest, seen: Manifest) -> None:
    trained = {record.patient_id for record in seen}
    harm = {"test": "Test scores would be inflated", "calib": "Certificates would promise too much"}
    for split, consequence in harm.items():
        shared = sorted({r.patient_id for r in manifest if r.split == split and r.patient_id in trained})
        if shared:
            raise ManifestError(
                f"{manifest.where}: {len(shared)} patients have slides in train or val and in {split}: "
                f"{listing(shared)}. {consequence}; split by patient with 'pams split'."
            )
