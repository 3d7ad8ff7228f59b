"""Small cohorts for tests: manifests drawn by hypothesis, and feature folders."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from tests.data import writers

from pams_mil.data import Manifest, SlideRecord
from pams_mil.hierarchy import ClassHierarchy

TREE = ClassHierarchy.load("bracs")


@st.composite
def manifests(draw: st.DrawFn, *, most_patients: int = 40, one_label: bool = False) -> Manifest:
    """Patients with 1 to 9 slides; some classes rare or absent, some slides tagged `mixed`."""
    names = TREE.names()
    present = draw(st.lists(st.sampled_from(names), min_size=1, max_size=7, unique=True))
    records = []
    for patient in range(draw(st.integers(1, most_patients))):
        label = draw(st.sampled_from(present))
        for slide in range(draw(st.integers(1, 9))):
            own = label if one_label or draw(st.booleans()) else draw(st.sampled_from(present))
            tags = ("mixed",) if draw(st.integers(0, 9)) == 0 else ()
            records.append(SlideRecord(f"s{patient}-{slide}", f"p{patient:03d}", own, tags=tags))
    return Manifest(tuple(records))


def feature_folder(root: Path, count: int = 6, *, rows: int = 40, width: int = 12) -> Manifest:
    """A CLAM feature folder `root/h5_files` and a manifest whose slides have 1, 2 or 3 per patient."""
    folder = root / "h5_files"
    folder.mkdir(parents=True)
    records = []
    for number in range(count):
        features, coords = writers.numbers(rows + number, width, seed=number)
        writers.clam(folder / f"s{number}.h5", features, coords)
        split = ("train", "train", "val", "val", "test", "test")[number % 6]
        label = TREE.names()[number % TREE.num_classes()]
        records.append(SlideRecord(f"s{number}", f"p{number // 2}", label, split))
    manifest = Manifest(tuple(records))
    manifest.write(root / "manifest.csv")
    return Manifest.read(root / "manifest.csv")
