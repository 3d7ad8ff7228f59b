"""A cohort that trains in a blink, and ways to run, kill and compare runs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine.config.run_config import RunConfig, configure
from pams_mil.engine.run import checkpoint
from pams_mil.engine.training.train import train

CLASSES = "name: tiny\nclasses:\n  Low: [a, b]\n  High: [c, d]\n"
NAMES = "abcd"
TINY_MODELS: dict[str, dict[str, Any]] = {
    "abmil": {"name": "abmil", "embedding_features": 8, "attention_features": 4},
    "dtfd": {"name": "dtfd", "embedding_features": 8, "attention_features": 4, "pseudo_bags": 2},
    "transmil": {"name": "transmil", "embedding_features": 16, "landmarks": 4},
}
SIZES = {"train": 12, "val": 8, "test": 8}


def make_cohort(folder: Path, *, seed: int = 0, sizes: dict[str, int] | None = None) -> Path:
    """28 bags of 4 to 9 instances with 8 features; the class shifts one feature of one instance."""
    random = np.random.default_rng(seed)
    records = []
    for split, count in {**SIZES, **(sizes or {})}.items():
        for number in range(count):
            features = random.standard_normal((int(random.integers(4, 10)), 8)).astype(np.float32)
            features[0, number % 4] += 4.0
            slide = f"{split}-{number}"
            write_bag(folder / "bags" / f"{slide}.h5", Bag(features, info=BagInfo(encoder="tiny", tile_px=8)))
            tags = ("mixed",) if number % 2 else ()
            records.append(SlideRecord(slide, f"p-{slide}", NAMES[number % 4], split, tags=tags))
    Manifest(tuple(records)).write(folder / "manifest.csv")
    (folder / "classes.yaml").write_text(CLASSES)
    return folder


def settings(cohort: Path, **changes: Any) -> RunConfig:
    """Settings of a run that takes a fraction of a second."""
    model = changes.pop("model", "abmil")
    options = {"method": "pams", "epochs": 3, "lr": 1e-3, "seed": 0, **changes}
    compute = {"accelerator": "cpu", "threads": 1, **options.pop("compute", {})}
    return configure(
        cohort / "manifest.csv",
        classes=cohort / "classes.yaml",
        features=cohort / "bags",
        model=TINY_MODELS.get(model, model) if isinstance(model, str) else model,
        compute=compute,
        **options,
    )


def weights(path: Path) -> dict[str, torch.Tensor]:
    return dict(checkpoint.load(path).tensors)


def same_weights(one: Path, two: Path) -> bool:
    """Bit for bit: every tensor, the optimizer's included."""
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def run(config: RunConfig, out: Path, **options: Any) -> Path:
    train(config, out, **options)
    return out
