"""The bags a run may see: train and val. The splits test and calib are dropped here and cannot be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from pams_mil.data.bags.bag import Fingerprint
from pams_mil.data.bags.dataset import BagCache, BagDataset
from pams_mil.data.bags.feature_origin import STATED, OriginCheck, complete_origin, stated_by_table
from pams_mil.data.bags.store import BagStore, fingerprints, first_origin, open_store
from pams_mil.data.examine import examine_manifest, refuse_errors
from pams_mil.data.exposure import Fingerprints
from pams_mil.data.manifest.manifest import PARTS, Manifest, SlideRecord, bag_sources
from pams_mil.digests import digest, file_signature
from pams_mil.engine.config.complete_config import CompleteConfig
from pams_mil.engine.config.run_config import DataConfig
from pams_mil.engine.run.spec import RunSpec
from pams_mil.engine.run.trained_slides import TrainedSlides
from pams_mil.errors import BagError, ManifestError, listing
from pams_mil.hierarchy import ClassHierarchy

SEEN = ("train", "val")
"""The splits that a run sees."""


@dataclass(frozen=True)
class Cohort:
    """Training and validation bags with what identifies them."""

    manifest: Manifest
    hierarchy: ClassHierarchy
    store: BagStore
    train: BagDataset
    val: BagDataset
    features: dict[str, Any]
    fingerprints: Fingerprints = field(default_factory=dict)
    """Of the content of every slide in `slides`."""

    @cached_property
    def slides(self) -> TrainedSlides:
        """The slides of training and validation."""
        return TrainedSlides.of(self.manifest, *SEEN)

    @property
    def held_out(self) -> TrainedSlides:
        """The slides of the other splits, by name and label alone."""
        return TrainedSlides.of(self.manifest, *(set(PARTS) - set(SEEN)))

    def spec(self, config: CompleteConfig) -> RunSpec:
        """The spec of a run with these settings on these bags."""
        return RunSpec.of(config, self.hierarchy, self.slides, self.features)


def open_cohort(data: DataConfig, hierarchy: ClassHierarchy, *, cache: BagCache | None = None) -> Cohort:
    """Read the manifest, check it, and open the bags of train and val; what `cache` holds is not read again."""
    manifest = read_manifest(data, hierarchy)
    # Only these are read. The whole table serves to find patients that are in other splits too, and files by name.
    seen = replace(manifest, records=tuple(r for r in manifest if r.split in SEEN))
    subsets = manifest.select("train"), manifest.select("val")
    # Before any feature file is opened: a patient on both sides makes every later score worthless.
    refuse_errors(examine_manifest(seen, hierarchy, whole=manifest), manifest.where)
    store = open_store(data.features, manifest)
    marks = fingerprints(store, seen)
    _refuse_copies(store, manifest, marks)
    features = _features(data, store, seen, marks)
    first = subsets[0].records[0].slide_id
    origin = OriginCheck(
        {key: value for key, value in features.items() if key != "files"},
        whose=f"the slide {first!r}",
        slide_ids=[record.slide_id for record in seen],
    )
    sources = [bag_sources(subset, hierarchy, merge_cases=data.merge_cases) for subset in subsets]
    train, val = (
        BagDataset(subset, hierarchy, store, cache=cache, sources=own, origin=origin)
        for subset, own in zip(subsets, sources, strict=True)
    )
    content = {slide: (mark.content,) for slide, mark in marks.items()}
    return Cohort(manifest, hierarchy, store, train, val, features, content)


def read_manifest(data: DataConfig, hierarchy: ClassHierarchy) -> Manifest:
    """The manifest as the settings say to read it; parsed once per process while its files stay as they are."""
    files = [path for path in (data.manifest, data.splits, data.clini) if path is not None]
    return _parse(data.model_dump_json(), tuple(file_signature(path) for path in files), hierarchy)


@lru_cache(maxsize=16)
def _parse(content: str, signatures: tuple[tuple[int, ...], ...], hierarchy: ClassHierarchy) -> Manifest:
    data = DataConfig.model_validate_json(content)
    reading = data.model_dump(include={"fold", "splits", "clini", "columns", "patients_are_slides"})
    return Manifest.read(data.manifest, classes=hierarchy, **reading)


def _features(data: DataConfig, store: BagStore, seen: Manifest, marks: Mapping[str, Fingerprint]) -> dict[str, Any]:
    """How the features of train and val were made (`feature_origin`), and `files`, digests of their files by split."""
    stated = {key: getattr(data, key) for key in STATED}
    stated = complete_origin(stated_by_table(seen), stated, where="data", whose=f"the table {seen.where}")
    origin = first_origin(store, seen.select("train"))
    files = {
        split: digest([[r.slide_id, marks[r.slide_id].stored] for r in seen if r.split == split]) for split in SEEN
    }
    return {**complete_origin(origin, stated, where="data", whose="the feature files"), "files": files}


def _refuse_copies(store: BagStore, manifest: Manifest, marks: Mapping[str, Fingerprint]) -> None:
    """Refuse equal features under two ids in different splits, as 'pams check' does."""
    same: dict[str, list[SlideRecord]] = {}
    for record in manifest:
        try:
            mark = marks.get(record.slide_id) or store.fingerprint(record)
        except BagError:  # test slides need no features before they are predicted
            continue
        if mark.content:
            same.setdefault(mark.content, []).append(record)
    for records in same.values():
        if len({record.split for record in records if record.split}) < 2:
            continue
        # Samples are equal: now all of the features are compared.
        if len({store.read(record).feature_digest for record in records}) < len(records):
            slides = [record.slide_id for record in records]
            raise ManifestError(
                f"{manifest.where}: {len(slides)} slides in different splits have equal features: {listing(slides)}. "
                "Scores would be too good to be true; 'pams check' lists all copies. Keep one of each."
            )
