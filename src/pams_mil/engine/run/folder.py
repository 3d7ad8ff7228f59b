"""A run folder: where everything of one training run lies, and what state it is in.

config.yaml     the effective settings            run.json      versions, identity, seeds, command
cohort.csv      the slides of train and val       exposure.json  which patients the model has seen, by digest
held_out.csv    those of test and calib, with the labels that they had when the run was started
last.safetensors  best.safetensors                checkpoints, each one file
metrics.csv     one row per epoch                 status.json   running, interrupted, failed or finished
predictions/<table>-<split>.csv  ..._<level>.csv  by `pams predict` and `pams evaluate`; ...json says of which weights
predictions/<table>-<split>/     attention, tiles of the same predictions
reports/<table>-<split>/         the audit of them by `pams evaluate`; ...json says of which weights
code/                            the files of one's own method, model or remix, if any
calibration.json                 by `pams calibrate`        certificate*.json, certificate*.html  by `pams certify`
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pams_mil import __version__, atomic
from pams_mil.data import tables
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.exposure import FILE, Exposure, Fingerprints
from pams_mil.digests import file_digest
from pams_mil.discover import own_file
from pams_mil.engine.config.run_config import RunConfig, build, with_overrides, with_setting
from pams_mil.engine.config.yaml_file import read_yaml, write_yaml
from pams_mil.engine.run.trained_slides import HELD_OUT, TrainedSlides
from pams_mil.errors import ConfigError, ExposureError, RunError, nearest, stored_format

State = Literal["running", "interrupted", "failed", "finished"]
CALIBRATION = "calibration.json"
CODE = "code"
_PACKAGES = ("torch", "numpy", "lightning-fabric", "safetensors", "h5py", "scikit-learn", "torchmetrics")


class Inside:
    """An attribute of a folder: the path of what has this name inside of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Any, kind: type) -> Path:
        return Path("" if folder is None else folder.path, self._name)


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run."""

    path: Path
    config_file = Inside("config.yaml")
    """The effective settings; written last, its presence says that a run exists."""
    last = Inside("last.safetensors")
    """The checkpoint to continue from."""
    best = Inside("best.safetensors")
    """The checkpoint to predict with."""
    metrics_file = Inside("metrics.csv")
    """One row per epoch."""
    predictions = Inside("predictions")
    """The folder of predictions, one set of files per table and split."""

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """The folder of a run, or the one that a checkpoint lies in."""
        return cls(path.parent if path.is_file() else path)

    def slot(self, table: Path, split: str | None, *kinds: str) -> str:
        """The name of the predictions of a table or a split of it, which no other table of that name ever gets.

        `kinds` set them apart from the model's plain calls: calibrated, or a decision rule.
        """
        name = FileNames()["-".join([tables.table_name(table), split or "all", *kinds])]
        own = self.config().data.manifest if self.exists() else None
        if own is not None and own.resolve() == table.resolve():
            return name
        digest = file_digest(table)
        is_taken = own is not None and tables.table_name(own) == tables.table_name(table)
        stored = read_json(self.predictions / f"{name}.json").get("table", {}).get("digest", digest)
        return f"{name}-{digest[:8]}" if is_taken or stored != digest else name

    def predictions_file(self, split: str = "test") -> Path:
        """The predictions of a split of the run's own table, at the finest level."""
        return self.predictions / f"{self.slot(self.config().data.manifest, split)}.csv"

    def report(self, slot: str) -> Path:
        """The folder of the report on some predictions."""
        return self.path / "reports" / slot

    def keep_report(self, slot: str, weights: Sequence[Sequence[str]]) -> None:
        """Write `reports/<slot>.json`: the weights of every model in a report, and digests of its files."""
        folder = self.report(slot)
        files = {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.is_file()}
        content = {"pams_mil": __version__, "weights": [list(one) for one in weights], "files": files}
        atomic.write_json(folder.with_name(f"{slot}.json"), content)

    def scores(self) -> list[dict[str, Any]]:
        """The models in all reports of the run, as `scores.json` has them; files that were changed are left out."""
        models = []
        for file in sorted((self.path / "reports").glob("*.json")):
            stored = read_json(file)
            path = self.report(file.stem) / "scores.json"
            if path.is_file() and stored.get("files", {}).get(path.name) == file_digest(path):
                with stored_format(path, RunError, "Write the report again with 'pams evaluate'."):
                    models += [one for one in read_json(path)["files"] if one.get("weights") in stored["weights"]]
        return models

    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.config_file.exists()

    def config(self) -> RunConfig:
        """The settings that the run was started with."""
        require_run(self)
        return build(RunConfig, read_yaml(self.config_file), where=str(self.config_file))

    def start(
        self,
        config: RunConfig,
        facts: Mapping[str, Any],
        slides: TrainedSlides,
        fingerprints: Fingerprints | None = None,
        held_out: TrainedSlides | None = None,
    ) -> None:
        """Write what defines the run, `config.yaml` last.

        `facts` go into `run.json` beside versions and command; `slides`, with the `fingerprints` of their features,
        train the run or choose its epoch. A run that is extended keeps the slides `held_out` that it began with.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        # A kill before `config.yaml` leaves files that a new start writes again; after it, all of them are there.
        slides.write(self.path)
        if held_out is not None:
            held_out.write(self.path, HELD_OUT)
        # A tuning may have noted before that its patients chose this recipe.
        before = Exposure.read(self.path) or Exposure()
        seen = slides.exposure(selects=config.training.select != "last", fingerprints=fingerprints)
        (before.without("train", "select") | seen).write(self.path)
        for name in (config.method.name, config.model.name, config.method.options.get("remix")):
            if (file := own_file(name)) is not None:
                copy_code(file, self.path)
        atomic.write_json(self.path / "run.json", {**manifest(config), **facts})
        comment = f"Effective settings, written by pams-mil {__version__}."
        write_yaml(self.config_file, config.to_json(), comment=comment)

    def slides(self) -> TrainedSlides:
        """The slides that trained the run (`train`) and those that chose its epoch (`val`)."""
        return TrainedSlides.read(self.path, read_json(self.path / "run.json").get("spec", {}).get("cohort", {}))

    def exposure(self) -> Exposure | None:
        """Which patients the weights have seen; None beside a checkpoint that came without it."""
        exposure = Exposure.read(self.path)
        if exposure is None and self.exists():
            raise ExposureError(
                f"Cannot determine which patients {self.path} has seen: {self.path / FILE} is gone. Restore it from a "
                "copy."
            )
        return exposure

    def expose(self, exposure: Exposure) -> None:
        """Note further roles of patients, also before the run is started."""
        ((Exposure.read(self.path) or Exposure()) | exposure).write(self.path)

    def set_status(self, state: State, **facts: Any) -> None:
        """Say what the run is doing."""
        atomic.write_json(self.path / "status.json", {"state": state, "time": _now(), **facts})

    def status(self) -> dict[str, Any]:
        """What the run was last said to be doing; empty when unknown."""
        return read_json(self.path / "status.json")


def open_run(path: Path | str) -> RunFolder:
    """The folder of an existing run."""
    folder = RunFolder(Path(path))
    require_run(folder)
    return folder


def read_settings(arguments: list[str], options: dict[str, Any], *, out: Path | None, resume: bool) -> RunConfig:
    """Settings from a file, options by dotted key (None: left out) and KEY=VALUE; a resumed run brings its own."""
    # Unlike Path.is_file, this takes a long list of values for what it is: not the name of a file.
    files = [text for text in arguments if "=" not in text or os.path.isfile(text)]  # noqa: PTH113
    changes = [text for text in arguments if text not in files]
    if len(files) > 1:
        raise ConfigError(f"Expected one config file, found {', '.join(files)}. Changes are written KEY=VALUE.")
    chosen = {key: value for key, value in options.items() if value is not None}
    if resume and not files and "data.manifest" not in chosen:
        if out is None:
            raise ConfigError("Which run? Name it with --out FOLDER --resume.")
        content = RunFolder(out).config().to_json()
    else:
        content = read_yaml(files[0]) if files else {}
    if not content and "data.manifest" not in chosen:
        raise ConfigError("Nothing to train: give a config file, or --manifest and --classes. See 'pams init'.")
    for key, value in chosen.items():
        content = with_setting(content, key, value)
    changed = with_overrides(content, changes, kind=RunConfig)
    return build(RunConfig, changed, where=files[0] if files else "the settings")


def copy_code(file: Path, folder: Path) -> None:
    """Keep a file of code with a run or an export; files of one name stay apart."""
    with atomic.replacing(folder / CODE / f"{file_digest(file)[:8]}_{file.name}") as copy:
        copy.write_bytes(file.read_bytes())


def require_run(folder: RunFolder) -> None:
    """Refuse a folder that holds no run, naming runs nearby."""
    if folder.exists():
        return
    if (folder.path / "cv.json").is_file():
        raise RunError(
            f"{folder.path} is a cross-validation, and this needs one model: name one of its folds, e.g. "
            f"{folder.path / 'fold0'}."
        )
    chosen = read_json(folder.path / "tune.json").get("choice", {}).get("recipe")
    if chosen:
        raise RunError(
            f"{folder.path} is a tuning; the mean of its best recipes is {folder.path / 'mean'}, and each recipe has a "
            f"folder of its own, e.g. {folder.path / 'recipes' / str(chosen)}."
        )
    parent = folder.path.parent
    runs = [entry.parent.name for entry in parent.glob("*/config.yaml")] if parent.is_dir() else []
    hint = nearest(folder.path.name, runs)
    raise RunError(f"{folder.path} is not a run folder: it has no config.yaml.{hint} 'pams train' makes one.")


def manifest(config: RunConfig) -> dict[str, Any]:
    """Versions, seed, commit, machine and command of a run."""
    return {
        "pams_mil": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "git_commit": git_commit(),
        "command": sys.argv,
        "seed": config.seed,
        "started": _now(),
    }


def git_commit() -> str | None:
    """The commit that is checked out here, with `-dirty` when files differ; None outside git."""
    try:
        process = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],  # noqa: S607  the user's git
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from one of our own files; empty when it is missing or damaged."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
