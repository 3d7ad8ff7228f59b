"""A synthetic cohort to try the viewer on: pyramidal slides with planted lesions, and models trained on such slides.

Training slides are drawn coarsely, slides to look at finely; tiles are cut at one physical scale from both, so that one
model serves. Everything is drawn and trained once and kept in the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pams_mil import atomic
from pams_mil.cohorts.synthetic_slides import Lesion, Piece, Scene, write_slide
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.seeding import numpy_generator
from pams_mil.view.opening import Asked
from pams_mil.wsi.extract import BAG_FOLDER, extract
from pams_mil.wsi.slide_sources import find_slides
from pams_mil.wsi.tile_grid import TileSettings, WorkSettings

Progress = Callable[[str, float], None]
CLASSES = """\
# Synthetic slides: what was planted into them, least urgent first.
name: planted
levels: [group, finding]
classes:
  Harmless: [none, mild]
  Suspicious: [dense]
  Grave: [severe]
display:
  none: No lesion
  mild: Mild lesion
  dense: Dense lesion
  severe: Severe lesion
"""
LABELS = ("none", "mild", "dense", "severe")
SIDE_UM = 1600.0
TILES = TileSettings(mpp=4.0, tile_px=16)
FINE_MPP, COARSE_MPP = 1.0, 4.0
FOLDER, READY = Path("demo-view"), "ready.txt"
SEEDS = (0, 1, 2)
MODEL = {"name": "abmil", "embedding_features": 32, "attention_features": 16}


class TileColors:
    """A tile as a few statistics of its colors: enough for planted lesions, and computed at once."""

    name = "demo-colors"
    digest = "demo-colors-1"

    def __call__(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Means, deviations and low quantiles of the colors, [b, t, t, 3] -> [b, 9]."""
        flat = tiles.reshape(len(tiles), -1, 3).astype(np.float32)
        colors = np.concatenate([flat.mean(1), flat.std(1), np.quantile(flat, 0.1, axis=1)], axis=1) / 255
        return ((colors - 0.5) * 8).astype(np.float32)  # about as wide as a network likes its input


def demo_request(asked: Asked, progress: Progress, folder: Path = FOLDER) -> Asked:
    """Draw and train the demonstration, unless it is there, and ask for it."""
    folder = folder.resolve()
    if not (folder / READY).exists():
        make_demo(folder, progress)
    paths = [folder / f"run-{seed}" for seed in SEEDS]
    return replace(asked, paths=paths, slides=folder / "slides", reviews=asked.reviews or folder / "reviews")


def make_demo(folder: Path, progress: Progress, *, train_each: int = 8, shown_each: int = 4) -> None:
    """Draw the slides, extract them, train AB-MIL with PAMS, predict the slides to look at; three runs."""
    from pams_mil.engine import configure, predict, train  # noqa: PLC0415  torch only when it is needed

    records = _draw(folder, progress, train_each, shown_each)
    progress("Extracting tiles", 0.0)
    for kind in ("slides", "learning"):
        sources = find_slides([folder / kind])
        outcome = extract(sources, folder / "features", TileColors(), TILES, WorkSettings(workers=2, batch=256))
        if outcome.failed:
            raise RuntimeError(f"synthetic slides could not be extracted: {outcome.failed}")
    progress("Extracting tiles", 1.0)
    Manifest(tuple(records)).write(folder / "manifest.csv")
    atomic.write_text(folder / "classes.yaml", CLASSES)
    features = folder / "features" / BAG_FOLDER
    for seed in SEEDS:
        progress("Training", SEEDS.index(seed) / len(SEEDS))
        settings = configure(
            folder / "manifest.csv", classes=folder / "classes.yaml", features=features, method="pams", model=MODEL,
            epochs=15, lr=5e-3, seed=seed, compute={"accelerator": "cpu"}, patience=None,
        )  # fmt: skip
        run = train(settings, folder / f"run-{seed}", resume=True)
        predict([run.path], folder / "manifest.csv", split="test", features=features).write(run.path)
    progress("Training", 1.0)
    atomic.write_text(folder / READY, "complete\n")


def scene(label: str, number: int) -> Scene:
    """A slide with one lesion of the label's kind, and often a milder one beside it, as on real slides."""
    draw = numpy_generator(number, "demo", label)
    kind = LABELS.index(label)
    half = SIDE_UM / 2
    tissue = (
        Piece(half * draw.uniform(0.52, 0.60), half * draw.uniform(0.9, 1.1), half * 0.40, half * 0.72),
        Piece(half * draw.uniform(1.40, 1.48), half * draw.uniform(0.9, 1.1), half * 0.38, half * 0.66),
    )
    lesions: list[Lesion] = []
    for milder, piece in zip(([0] if kind < 2 else [0, int(draw.integers(0, kind))]), tissue, strict=False):
        what = kind if not lesions else milder
        if what:
            angle, radius = draw.uniform(0, 2 * np.pi), draw.uniform(100, 170) if not lesions else draw.uniform(60, 110)
            x, y = piece.x + 0.35 * piece.radius_x * np.cos(angle), piece.y + 0.5 * piece.radius_y * np.sin(angle)
            lesions.append(Lesion(float(x), float(y), float(radius), what))
    return Scene(SIDE_UM, SIDE_UM, tissue, tuple(lesions), seed=number)


def _draw(folder: Path, progress: Progress, train_each: int, shown_each: int) -> list[SlideRecord]:
    records = []
    jobs = [(label, number) for number in range(train_each + shown_each) for label in LABELS]
    for done, (label, number) in enumerate(jobs):
        shown = number >= train_each
        patient = f"P-{1 + (len(jobs) - done) // 2:03d}" if shown else f"L-{done:03d}"
        name = f"S{numpy_generator(number, 'name', label).integers(1000, 9999)}-{done:02d}"
        place = folder / ("slides" if shown else "learning") / f"{name}.tiff"
        if not place.exists():
            mpp, levels = (FINE_MPP, 3) if shown else (COARSE_MPP, 1)
            write_slide(place, scene(label, number), mpp=mpp, levels=levels)
        # A quarter of the learning slides chooses the epoch.
        split = "test" if shown else "val" if number % 4 == 3 else "train"
        records.append(SlideRecord(name, patient, label, split))
        progress("Drawing slides with planted lesions", (done + 1) / len(jobs))
    return records
