"""What a newcomer has on the disk: the files that the documentation's commands name, at a size that runs in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.data import writers
from tests.docs.console_blocks import ROOT, block_of, files_of

from pams_mil.cohorts.cohort_writer import write_cohort
from pams_mil.cohorts.digits import Digits
from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine import configure, train
from pams_mil.hierarchy import ClassHierarchy

PARTS = ("train",) * 5 + ("val",) * 2 + ("calib",) * 6 + ("test",) * 3
"""Of the patients of every class; as many as calibration and certificates ask for."""
FOLDS = 5
"""Patients of every class in labels.csv, so that five folds have all classes."""
CASES = 20
"""Patients of every class in the CLAM folder: a quarter of them can certify 10 % of the malignant ones."""
NEW = 5
"""Slides of new-slides.csv."""
SETS = 80
"""Patients with sets of findings: two in five of them certify."""
SLIDES = ("train", "train", "val", "test")
METHODS = ("pams", "ce")
TINY = BagInfo(encoder="tiny", tile_px=256, tile_px0=256, mpp=1.0)


def make_tables_and_features(folder: Path) -> None:
    """A cohort of 112 patients with BRACS' seven classes, labels of 35, features, predictions of two models, a grid."""
    hierarchy, random = ClassHierarchy.load("bracs"), np.random.default_rng(0)
    names, records, rows = hierarchy.names(), [], []
    for number in range(len(PARTS) * len(names)):
        target, slide = number % len(names), f"slide_{number}"
        features = random.standard_normal((int(random.integers(9, 14)), 16)).astype(np.float32)
        features[0, target] += 4.0
        coords = np.stack(np.divmod(np.arange(len(features)), 4), axis=1).astype(np.int32) * 256
        bag = Bag(features, coords, TINY)
        for place in ("features", "cohort/h5_files"):
            write_bag(folder / place / f"{slide}.h5", bag)
        records.append(SlideRecord(slide, f"patient_{number}", names[target], PARTS[number // len(names)]))
        scores = random.dirichlet(np.ones(len(names)) + 3 * (np.arange(len(names)) == target))
        rows.append(
            (slide, f"patient_{number}", names[target], names[int(scores.argmax())], *map(repr, scores.tolist()))
        )
    cohort = Manifest(tuple(records))
    cohort.write(folder / "cohort/manifest.csv")
    cohort.with_splits([""] * len(records)).write(folder / "cohort/labels.csv")
    few = Manifest(tuple(records[: FOLDS * len(names)]))
    few.with_splits([""] * len(few)).write(folder / "labels.csv")
    for number in range(NEW):  # patients that no model has seen
        write_bag(
            folder / f"features/new_{number}.h5", Bag(random.standard_normal((9, 16)).astype(np.float32), None, TINY)
        )
    new = [f"new_{number},new_patient_{number}" for number in range(NEW)]
    (folder / "new-slides.csv").write_text("\n".join(["slide_id,patient_id", *new]) + "\n")
    head = ",".join(["slide_id", "patient_id", "target", "prediction", *(f"p_{name}" for name in names)])
    later = [(f"new_{row[0]}", f"new_{row[1]}", *row[2:]) for row in rows]
    for model, shown in (("model_a", rows), ("model_b", rows[::-1]), ("new-labeled", later), ("predictions", rows)):
        (folder / f"{model}.csv").write_text("\n".join([head, *(",".join(row) for row in shown)]) + "\n")
    reviews = ["slide_id,patient_id,model_call,reader_class,verdict,seconds"]
    reviews += [f"{row[0]},{row[1]},{row[3]},{row[2]},{'agree' if row[2] == row[3] else 'override'},9" for row in rows]
    (folder / "reviews.csv").write_text("\n".join(reviews) + "\n")
    readers = ["slide_id,patient_id,consensus,reader1,reader2,reader3"]
    for row in rows:
        true = names.index(row[2])
        seen = [names[int(np.clip(true + random.integers(-1, 2), 0, len(names) - 1))] for _ in range(3)]
        readers.append(",".join((*row[:3], *seen)))
    (folder / "readers.csv").write_text("\n".join(readers) + "\n")
    foreign = ["case,diagnosis,prediction", *(",".join((row[0], row[2], row[3])) for row in rows)]
    (folder / "results.csv").write_text("\n".join(foreign) + "\n")
    (folder / "my-classes.yaml").write_text(block_of(ROOT / "docs/tutorial.md", "yaml", "classes:"))
    (folder / "second.yaml").write_text(block_of(ROOT / "docs/disputed.md", "yaml", "classes:"))
    (folder / "many.csv").write_text(block_of(ROOT / "docs/disputed.md", "csv", "rank"))
    make_published_weights(folder)
    for name, text in files_of(ROOT / "docs/bring-your-own.md").items():
        (folder / name).write_text(text)
    (folder / "grid.yaml").write_text(block_of(ROOT / "docs/training.md", "yaml", "methods:"))
    (folder / "my-space.yaml").write_text(block_of(ROOT / "docs/tune.md", "yaml", "try:"))


def make_published_weights(folder: Path) -> None:
    """A CLAM-SB for two classes with the original names, on features as wide as the cohort's."""
    import torch

    shapes = {"attention_net.module.0": (32, 16), "attention_net.module.3.attention_a.0": (256, 32)}
    shapes |= {"attention_net.module.3.attention_b.0": (256, 32), "attention_net.module.3.attention_c": (1, 256)}
    shapes |= {"classifiers": (2, 32), "instance_classifiers.0": (2, 32), "instance_classifiers.1": (2, 32)}
    state = {f"{name}.weight": torch.randn(shape) / 8 for name, shape in shapes.items()}
    torch.save(state | {f"{name}.bias": torch.zeros(shape[0]) for name, shape in shapes.items()},
               folder / "s_0_checkpoint.pt")  # fmt: skip


def make_runs(folder: Path) -> None:
    """Two trained runs with the names that `pams train` gives."""
    for method in METHODS:
        config = configure(
            folder / "cohort/manifest.csv", classes="bracs", method=method, features=folder / "cohort/h5_files",
            model={"name": "abmil", "embedding_features": 8, "attention_features": 4}, epochs=3, lr=2e-2,
            compute={"accelerator": "cpu", "threads": 1},
        )  # fmt: skip
        train(config, folder / f"runs/{method}-abmil-seed0")


def make_slides(folder: Path) -> None:
    """Four small slides with a table of labels."""
    from pams_mil.cohorts.synthetic_slides import Piece, Scene, write_slide

    rows = ["slide_id,patient_id,label,split"]
    for number, part in enumerate(SLIDES):
        name = "case-17" if part == "test" else f"case-{number}"
        scene = Scene(560.0, 560.0, (Piece(280.0, 280.0, 200.0, 200.0),), (), seed=number)
        write_slide(folder / "slides" / f"{name}.tiff", scene, mpp=1.0, levels=1)
        rows.append(f"{name},p-{name},{('N', 'IC')[number % 2]},{part}")
    bag = Bag(np.ones((4, 16), np.float32), np.array([[0, 0], [0, 256], [256, 0], [256, 256]], np.int32), TINY)
    write_bag(folder / "features/case-17.h5", bag)
    (folder / "slides/case-17.tiff").rename(folder / "slides/case-17.svs")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")


def make_digits(folder: Path) -> None:
    """The digits cohort, small."""
    made = Digits(train=14, val=7, test=14, smallest=7, largest=9)
    write_cohort(folder / "digits", made.slides(), total=len(made))


def make_clam_folder(folder: Path) -> None:
    """A cohort as CLAM leaves it: its table, and features that name neither encoder nor resolution."""
    random, names, rows = np.random.default_rng(1), ClassHierarchy.load("bracs").names(), ["case_id,slide_id,label"]
    (folder / "clam/h5_files").mkdir(parents=True)
    corners = np.stack(np.divmod(np.arange(9), 3), axis=1).astype(np.int32) * 256
    for number in range(CASES * len(names)):
        features = random.standard_normal((9, 16)).astype(np.float32)
        features[0, number % len(names)] += 4.0
        writers.clam(folder / f"clam/h5_files/slide_{number}.h5", features, corners)
        rows.append(f"case_{number},slide_{number},{names[number % len(names)]}")
    for number in range(NEW):
        writers.clam(
            folder / f"clam/h5_files/new_{number}.h5", random.standard_normal((9, 16)).astype(np.float32), corners
        )
    (folder / "clam/dataset.csv").write_text("\n".join(rows) + "\n")


def make_sets(folder: Path) -> None:
    """Slides with several findings: a table with a column of 0 and 1 per finding, features, and new slides."""
    random, names = np.random.default_rng(2), ("UDH", "ADH", "DCIS")
    rows, new = ["slide_id,patient_id," + ",".join(names)], ["slide_id,patient_id"]
    for number in range(SETS + NEW):
        present = random.random(len(names)) < 0.4
        features = random.standard_normal((9, 16)).astype(np.float32)
        for place in np.flatnonzero(present):
            features[place, place] += 6.0
        slide = f"sets_{number}"
        write_bag(folder / f"sets/features/{slide}.h5", Bag(features, None, TINY))
        if number < SETS:
            rows.append(",".join([slide, f"patient_{number}", *(str(int(one)) for one in present)]))
        else:
            new.append(f"{slide},patient_{number}")
    (folder / "sets/labels.csv").write_text("\n".join(rows) + "\n")
    (folder / "sets/new-slides.csv").write_text("\n".join(new) + "\n")
    (folder / "sets/classes.yaml").write_text(block_of(ROOT / "docs/findings.md", "yaml", "findings: several"))
