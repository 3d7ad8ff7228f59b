"""Prediction: any number of trained runs on any slides, with or without labels, the same every time."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pams_mil import discover
from pams_mil.arrays import Array
from pams_mil.data.bags.dataset import BagCache, BagDataset
from pams_mil.data.bags.feature_origin import OriginCheck, origin_differences
from pams_mil.data.bags.store import BagStore, first_origin, open_store
from pams_mil.data.exposure import Exposure
from pams_mil.data.manifest.manifest import Manifest
from pams_mil.engine.config.run_config import DataConfig
from pams_mil.engine.inference_loop import infer
from pams_mil.engine.learner import Learner, Prediction
from pams_mil.engine.prediction.hub import local_folder
from pams_mil.engine.prediction.prediction_table import PredictionManifest, read_for_prediction
from pams_mil.engine.prediction.run_calibration import RunCalibration, read_calibration
from pams_mil.engine.prediction.slide_predictions import SlidePredictions, table_identity
from pams_mil.engine.prediction.tiles import Attend
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.checkpoint import load_weights
from pams_mil.engine.run.cv_folder import with_folds
from pams_mil.engine.run.folder import CODE, RunFolder, require_run
from pams_mil.engine.run.spec import RunSpec, differences
from pams_mil.engine.run.trained_slides import changed_labels
from pams_mil.engine.training.run_cohort import read_manifest
from pams_mil.errors import BagError, CheckpointError, PamsError, RunError
from pams_mil.models.core.devices import choose_device

_INSPECTED_BAGS = 5
"""Bags that are read before any is predicted: a wrong encoder is reported before hours of work."""


@dataclass(frozen=True)
class LoadedRun:
    """A trained model ready to predict, and what its checkpoint says about it."""

    path: Path
    learner: Learner
    spec: RunSpec
    state: dict[str, Any]

    @cached_property
    def weights(self) -> str:
        """Digest of the weights, the same wherever they are stored."""
        return checkpoint.weights_digest(self.learner.state_dict())

    @cached_property
    def calibration(self) -> RunCalibration:
        """Its probability calibration; refused where it was fitted for other weights."""
        calibration = read_calibration(self.path)
        calibration.refuse_other_weights(self.learner, self.path)
        return calibration

    @property
    def folder(self) -> RunFolder:
        """The folder that the weights lie in."""
        return RunFolder.at(self.path)

    def exposure(self, *, calibrated: bool = False) -> Exposure | None:
        """Which patients the weights, or their calibrated probabilities, have seen; None when nothing is known."""
        exposure = self.folder.exposure()
        return exposure | self.calibration.exposure if exposure is not None and calibrated else exposure

    @property
    def origin(self) -> dict[str, Any]:
        """What is said of this run wherever its results go: what it is, and with which weights."""
        return {"run": self.path.name, "spec": self.spec.to_json(), "weights": self.weights}


Run = Path | str | RunFolder | LoadedRun
"""A run folder, a cross-validation or a checkpoint, or what `load` made of it."""


def load(path: Path | str, *, which: str = "best", trusted: bool = False, device: str = "cpu") -> LoadedRun:
    """A trained model, ready for `predict`.

    Args:
        path: A run folder, an exported folder, a `.safetensors` checkpoint, or `hf://owner/name@revision`, whose files
            are kept in the hub's cache and are read from there without a network.
        which: "best" or "last".
        trusted: Allow a model that names code outside of PAMS.
        device: Where to put the model.
    """
    path = local_folder(path)
    file = _checkpoint_file(path, which)
    saved = checkpoint.load(file)
    spec = RunSpec.from_json(saved.state.get("spec"), file)
    if trusted and spec.code:
        discover.offer_files(file.parent / CODE)
    # Building draws weights, which are replaced at once; the caller's random state stays as it was.
    with torch.random.fork_rng(devices=[]):
        learner = spec.build(trusted=trusted, weights=saved.part("model"))
    load_weights(learner, saved)
    return LoadedRun(Path(path), learner.to(device).eval(), spec, dict(saved.state))


def load_runs(runs: Sequence[Run], *, trusted: bool = False, device: str = "auto") -> list[LoadedRun]:
    """The models of runs, of all folds of a cross-validation, or of checkpoints, each loaded once.

    All must know the same classes and features, since their probabilities are averaged.
    """
    loaded: list[LoadedRun] = []
    for run in runs:
        if isinstance(run, LoadedRun):
            loaded.append(run)
        else:
            folder = run.path if isinstance(run, RunFolder) else local_folder(run)
            place = str(choose_device(device))
            loaded += [load(path, trusted=trusted, device=place) for path in with_folds([folder])]
    _refuse_unlike(loaded)
    return loaded


def identity_of(run: LoadedRun, *, calibrated: bool = False) -> str:
    """Identity of the weights of a run, with its calibration if applied; the same where it was exported to."""
    return f"{run.weights}+{run.calibration.identity}" if calibrated else run.weights


def exposure_of(runs: Sequence[LoadedRun], *, calibrated: bool = False) -> Exposure | None:
    """Which patients any of several runs has seen; None when that is not known of all of them."""
    exposures = [run.exposure(calibrated=calibrated) for run in runs]
    known = [exposure for exposure in exposures if exposure is not None]
    return reduce(operator.or_, known) if len(known) == len(exposures) else None


def predict(
    runs: Sequence[Run],
    manifest: Path | str | Manifest,
    *,
    split: str | None = None,
    features: Path | str | None = None,
    labels: bool = True,
    trusted: bool = False,
    device: str = "auto",
    calibrated: bool = False,
    attend: Attend | None = None,
    progress: Callable[[float], None] | None = None,
    cache: BagCache | None = None,
    **reading: Any,
) -> SlidePredictions:
    """Probabilities of every slide at every level; several runs are averaged.

    A slide that cannot be read, or whose answer is not a finite number, is in `failures` and does not stop the rest.

    Args:
        runs: Run folders, cross-validations (all their folds) or checkpoints, or what `load` made of them.
        manifest: The cohort table, or one that was read; labels are not needed.
        split: Only this split; None: all slides.
        features: Folder of feature files or a pack; the manifest's folder when None.
        labels: Use the table's labels where it has them.
        trusted: As in `load`.
        device: "auto", "cpu", "cuda", ...
        calibrated: Apply what `calibrate` fitted to each run; refused for runs without it or with other weights since.
        attend: Called with every bag and its attention.
        progress: Called with the share done.
        cache: Bags that this process has read before; None: a bag is needed once, and not kept.
        **reading: How to read the table, as for `Manifest.read`.
    """
    loaded = load_runs(runs, trusted=trusted, device=device)
    exposure = exposure_of(loaded, calibrated=calibrated)
    calibrations = [run.calibration if calibrated else None for run in loaded]
    hierarchy = loaded[0].spec.hierarchy
    table = read_for_prediction(manifest, hierarchy, split=split, labels=labels, **reading)
    store = open_store(features, table.manifest)
    _refuse_other_features(loaded[0], store, table.manifest)
    origin = OriginCheck(loaded[0].spec.origin, whose=f"the run {loaded[0].path}")
    bags = BagDataset(
        table.manifest, hierarchy, store, cache=cache, with_coords=attend is not None, sources=table.sources,
        origin=origin,
    )  # fmt: skip
    results = _predict_bags([run.learner for run in loaded], calibrations, bags, attend, progress)
    # Back into the order of the table: bags that cannot be read come last. By the number alone, answers have no order.
    probabilities = dict(sorted(results, key=operator.itemgetter(0)))
    weights = tuple(identity_of(run, calibrated=calibrated) for run in loaded)
    gathered = _gather(loaded, table, probabilities)
    roles = None
    if exposure is not None:
        records = {source.name: source.records for source in table.sources}
        marks = [[store.fingerprint(one).content for one in records[name]] for name in gathered.names]
        roles = exposure.roles(gathered.names, gathered.patient_ids, marks)
    relabeled = [changed_labels(run.folder.path, table.manifest) for run in loaded]
    return replace(
        gathered,
        weights=weights,
        made_by=tuple(run.origin for run in loaded),
        exposure=exposure,
        roles=roles,
        table={} if table.manifest.source is None else table_identity(table.manifest.source, split),
        relabeled={slide: change for of_run in relabeled for slide, change in of_run.items()},
    )


def predict_own(
    runs: Sequence[Run],
    data: DataConfig,
    *,
    split: str | None,
    features: Path | str | None = None,
    **options: Any,
) -> SlidePredictions:
    """Predict slides of the table that a run was trained with, read as it was for training.

    Args:
        runs: As in `predict`.
        data: The run's settings of its data.
        split: As in `predict`.
        features: Other feature files than those it was trained with.
        **options: As in `predict`.
    """
    loaded = load_runs(runs, trusted=options.pop("trusted", False), device=options.get("device", "auto"))
    manifest = read_manifest(data, loaded[0].spec.hierarchy)
    options |= {"features": features or data.features, "merge_cases": data.merge_cases}
    return predict(loaded, manifest, split=split, **options)


def _predict_bags(
    learners: list[Learner],
    calibrations: Sequence[RunCalibration | None],
    bags: BagDataset,
    attend: Attend | None,
    progress: Callable[[float], None] | None,
) -> Iterator[tuple[int, list[Array] | PamsError]]:
    """For every bag, the probabilities [c] of every level, averaged over the learners, or why there are none.

    Where slides have several findings, those of single findings [k] follow.
    """
    for done, (index, sample, outcome) in enumerate(infer(learners, bags, attention=attend is not None), 1):
        if isinstance(outcome, PamsError):
            yield index, outcome
        else:
            yield index, _mean_probabilities(learners, calibrations, outcome)
            if attend is not None and sample is not None:
                attend(sample, _mean_attention([one.attention or [] for one in outcome], sample.slide_id))
        if progress is not None:
            progress(done / len(bags))


def _mean_probabilities(
    learners: list[Learner], calibrations: Sequence[RunCalibration | None], predictions: list[Prediction]
) -> list[Array]:
    per_run = [
        one.probabilities if calibration is None else calibration.apply(one.probabilities)
        for one, calibration in zip(predictions, calibrations, strict=True)
    ]
    arrays = [[level.numpy() for level in one] for one in per_run]
    findings = [one.findings[0].numpy() for one in predictions if one.findings is not None]
    return [
        # [0]: predictions were taken apart, so each holds one bag.
        *(
            np.mean([learner.at_level(one, level)[0] for learner, one in zip(learners, arrays, strict=True)], axis=0)
            for level in range(learners[0].hierarchy.num_levels)
        ),
        *([np.mean(findings, axis=0)] if findings else []),
    ]


def _refuse_other_features(run: LoadedRun, store: BagStore, manifest: Manifest) -> None:
    """Fail fast where the first bags all contradict the run's features; a single odd one is listed when it is read."""
    unreadable: list[BagError] = []
    contradictions: list[tuple[str, Any, Any]] = []
    for record in manifest:
        try:
            origin = first_origin(store, [record])
        except BagError as error:
            unreadable.append(error)
            continue
        difference = next(iter(origin_differences(run.spec.origin, origin)), None)
        if difference is None:
            return
        contradictions.append(difference)
        if len(contradictions) == _INSPECTED_BAGS:
            break
    if not contradictions:
        raise RunError(f"None of the {len(manifest)} slides can be read. The first: {unreadable[0]}")
    key, expected, actual = contradictions[0]
    what = f"width {expected}" if key == "width" else f"{key} = {expected!r}"
    raise CheckpointError(
        f"{run.path} was trained on features with {what}, these have {actual!r}. "
        "Extract them in the way that the model was trained with."
    )


def _mean_attention(attention: list[list[Tensor | None]], slide_id: str) -> list[Tensor]:
    levels = min(len(one) for one in attention)
    means = []
    # Counted from the finest, which all runs have: methods may train different numbers of levels.
    for level in range(-levels, 0):
        maps = [one[level] for one in attention]
        present = [weights for weights in maps if weights is not None]
        if len(present) < len(maps):
            raise RunError(f"A model has no attention to show for slide {slide_id!r}; predict without --attention.")
        means.append(torch.stack(present).mean(0))
    return means


def _gather(
    loaded: list[LoadedRun], table: PredictionManifest, probabilities: dict[int, list[Array] | PamsError]
) -> SlidePredictions:
    hierarchy = loaded[0].spec.hierarchy
    failures = {
        table.sources[index].name: str(bag) for index, bag in probabilities.items() if isinstance(bag, PamsError)
    }
    rows = [index for index, bag in probabilities.items() if not isinstance(bag, PamsError)]
    answers = [bag for bag in probabilities.values() if not isinstance(bag, PamsError)]
    if not answers:
        raise RunError(
            f"None of the {len(probabilities)} slides could be predicted. The first: {next(iter(failures.values()))}"
        )
    sources = [table.sources[row] for row in rows]
    # A level has an answer of its own only if every run gives one; else part of the mean is a sum of the finest
    # level's.
    own = set.intersection(*(set(run.learner.own_levels) for run in loaded))
    return SlidePredictions(
        hierarchy=hierarchy,
        names=tuple(source.name for source in sources),
        patient_ids=tuple(source.patient_id for source in sources),
        splits=tuple(source.records[0].split for source in sources),
        targets=table.targets[rows],
        probabilities=tuple(np.stack([bag[level] for bag in answers]) for level in range(hierarchy.num_levels)),
        own_levels=tuple(sorted(own)),
        tags={tag: [cells[row] for row in rows] for tag, cells in table.tags.items()},
        runs=tuple(str(run.path) for run in loaded),
        failures=failures,
        incomplete=tuple(
            dict.fromkeys(
                table.sources[row].patient_id for row, bag in probabilities.items() if isinstance(bag, PamsError)
            )
        ),
        patients_known=table.patients_known,
        findings=np.stack([bag[-1] for bag in answers]) if hierarchy.findings == "several" else None,
        labels=tuple(source.label for source in sources),
    )


def _checkpoint_file(path: Path, which: str) -> Path:
    if path.is_file():
        return path
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors"
    folder = RunFolder(path)
    require_run(folder)
    file = folder.best if which == "best" else folder.last
    if not file.exists():
        state = folder.status().get("state", "unfinished")
        if state == "finished":
            raise RunError(
                f"{path} is finished, but its {which} checkpoint {file.name} is gone. Restore it from a copy, or train "
                "again in another folder."
            )
        raise RunError(f"{path} has no {which} checkpoint yet; the run is {state}. Finish it with --resume.")
    return file


def _refuse_unlike(loaded: list[LoadedRun]) -> None:
    if not loaded:
        raise RunError("Expected at least one run to predict with, found none.")
    first = loaded[0]
    for other in loaded[1:]:
        for what, one, two in differences(first.spec, other.spec, parts=("classes", "origin")):
            raise CheckpointError(
                f"{first.path} and {other.path} cannot be averaged: their {what} differ ({one} and {two})."
            )
