"""Training, prediction and benchmarks: runs that survive interruption and give the same result again.

    from pams_mil.engine import configure, predict, train

    run = train(configure("cohort/manifest.csv", classes="digits", method="pams", model="abmil"), "runs/pams")
    predictions = predict([run.path], "cohort/manifest.csv", split="test")

Names are loaded on first use, so that reading settings imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.lazy import lazy_names

if TYPE_CHECKING:
    from pams_mil.engine.config.run_config import RunConfig, configure, load_config
    from pams_mil.engine.prediction.calibrate import calibrate
    from pams_mil.engine.prediction.predict import load_run, predict
    from pams_mil.engine.run.folder import RunFolder, open_run
    from pams_mil.engine.run.run_identity import trained_slides
    from pams_mil.engine.training.train import train

_HOMES = {
    "RunConfig": "config.run_config",
    "RunFolder": "run.folder",
    "calibrate": "prediction.calibrate",
    "configure": "config.run_config",
    "load_config": "config.run_config",
    "load_run": "prediction.predict",
    "open_run": "run.folder",
    "predict": "prediction.predict",
    "train": "training.train",
    "trained_slides": "run.run_identity",
}

__all__ = [
    "RunConfig",
    "RunFolder",
    "calibrate",
    "configure",
    "load_config",
    "load_run",
    "open_run",
    "predict",
    "train",
    "trained_slides",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
