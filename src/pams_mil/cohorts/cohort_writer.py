"""Cohorts that need no download: bags with labels, and the true class of every instance, for scoring attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pams_mil import atomic
from pams_mil.arrays import AnyArray
from pams_mil.data.bags.bag import Bag, BagInfo
from pams_mil.data.bags.bag_file import write_bag
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.errors import OutputError

BACKGROUND = "background"
FEATURES = "h5_files"


@dataclass(frozen=True)
class CohortSlide:
    """A slide with known instances: its record, its bag and the label of every instance (or `background`)."""

    record: SlideRecord
    bag: Bag
    instance_labels: tuple[str, ...]


def write_cohort(
    out: Path | str, slides: Iterable[CohortSlide], *, total: int, progress: Callable[[int], None] | None = None
) -> Manifest:
    """Write a cohort in CLAM's layout: `h5_files/`, `manifest.csv` and `instance_labels.csv`.

    The manifest is written last, so a folder that has one is complete.
    """
    out = Path(out)
    if (out / "manifest.csv").exists():
        raise OutputError(f"{out} already holds a cohort; choose another folder or delete it first.")
    records: list[SlideRecord] = []
    truth: list[tuple[str, int, str]] = []
    names = FileNames()
    for number, slide in enumerate(slides):
        write_bag(out / FEATURES / f"{names[slide.record.slide_id]}.h5", slide.bag)
        records.append(slide.record)
        truth.extend((slide.record.slide_id, row, label) for row, label in enumerate(slide.instance_labels))
        if progress is not None:
            progress(number + 1)
    # Checked before the manifest is written: without it the folder does not count as a cohort.
    if len(records) != total:
        raise OutputError(f"The cohort in {out} should have {total} slides, but {len(records)} were generated.")
    atomic.write_csv(out / "instance_labels.csv", ["slide_id", "row", "label"], truth)
    manifest = Manifest(tuple(records), source=out / "manifest.csv")
    manifest.write(out / "manifest.csv")
    return manifest


def cohort_slide(
    record_ids: tuple[str, str, str],
    features: AnyArray,
    kinds: AnyArray,
    names: Sequence[str],
    info: BagInfo,
) -> CohortSlide:
    """A slide from features [n, d] and what every instance shows: a class index, or len(names) and above: background.

    Its label is the most urgent class that it shows; `record_ids` are slide, patient and split.
    """
    slide_id, patient, split = record_ids
    present = sorted({int(kind) for kind in kinds if kind < len(names)})
    tags = ("mixed",) if len(present) > 1 else ()
    record = SlideRecord(slide_id, patient, names[present[-1]], split, tags=tags)
    bag = Bag(features.astype(np.float32), grid_coords(len(kinds), info.tile_px or 1), info)
    truth = tuple(names[kind] if kind < len(names) else BACKGROUND for kind in kinds.tolist())
    return CohortSlide(record, bag, truth)


def grid_coords(count: int, tile_px0: int) -> AnyArray:
    """Level-0 corners [n, 2] of tiles laid row by row in a square.

    >>> grid_coords(3, 8).tolist()
    [[0, 0], [8, 0], [0, 8]]
    """
    side = int(np.ceil(np.sqrt(count)))
    row, column = np.divmod(np.arange(count), side)
    return np.stack([column * tile_px0, row * tile_px0], axis=1).astype(np.int32)


def patient_names(count: int, generator: np.random.Generator, *, most_slides: int, prefix: str) -> Sequence[str]:
    """Patients for `count` slides in a row, each with 1 to `most_slides` slides."""
    names: list[str] = []
    patient = 0
    while len(names) < count:
        slides = int(generator.integers(1, most_slides + 1))
        names.extend([f"{prefix}{patient:04d}"] * min(slides, count - len(names)))
        patient += 1
    return names
