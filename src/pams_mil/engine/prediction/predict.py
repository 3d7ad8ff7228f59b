"""Prediction: any number of trained runs on any slides, with or without labels, the same every time."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from pams_mil.engine.prediction.prediction_table import read_for_prediction, table_tags
from pams_mil.engine.prediction.run_calibration import RunCalibration, read_calibration
from pams_mil.engine.prediction.slide_predictions import SlidePredictions, finding_targets, table_identity
from pams_mil.engine.prediction.tiles import Attend
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.checkpoint import load_weights
from pams_mil.engine.run.cv_folder import with_folds
from pams_mil.engine.run.folder import CODE, RunFolder, require_run
from pams_mil.engine.run.spec import RunSpec, differences
from pams_mil.engine.run.trained_slides import changed_labels
from pams_mil.engine.training.run_cohort import read_manifest
from pams_mil.errors import BagError, CheckpointError, PamsError, RunError
from pams_mil.evaluate.decisions.decide import DecisionRule, decide
from pams_mil.evaluate.predictions.predictions import Predictions
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
        if calibration.weights != self.weights:
            raise CheckpointError(
                f"The probability calibration beside {self.path} was fitted for other weights (digest "
                f"{calibration.weights}, now {self.weights}): the run was trained on, or the file was copied. Fit it "
                "again with 'pams calibrate'."
            )
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
    exposure = Exposure.of_all(run.exposure(calibrated=calibrated) for run in loaded)
    weights = tuple(identity_of(run, calibrated=calibrated) for run in loaded)
    hierarchy = loaded[0].spec.hierarchy
    table, sources, known = read_for_prediction(manifest, hierarchy, split=split, labels=labels, **reading)
    store = open_store(features, table)
    _refuse_other_features(loaded[0], store, table)
    origin = OriginCheck(loaded[0].spec.origin, whose=f"the run {loaded[0].path}")
    bags = BagDataset(
        table, hierarchy, store, cache=cache, with_coords=attend is not None, sources=sources, origin=origin
    )  # fmt: skip
    # A level has an answer of its own only if every run gives one; else part of the mean would be a sum of the finest.
    own = sorted(set.intersection(*(set(run.learner.own_levels) for run in loaded)))
    answered = _predict_bags(loaded, own, bags, calibrated, attend, progress)
    # Back into the order of the table: bags that cannot be read come last. By the number alone, answers have no order.
    results = sorted(answered, key=operator.itemgetter(0))
    failed = [(sources[row], str(answer)) for row, answer in results if isinstance(answer, PamsError)]
    predicted = [sources[row] for row, answer in results if not isinstance(answer, PamsError)]
    answers = [answer for _, answer in results if not isinstance(answer, PamsError)]
    if not answers:
        raise RunError(f"None of the {len(failed)} slides could be predicted. The first: {failed[0][1]}")
    slides, patients = [source.name for source in predicted], [source.patient_id for source in predicted]
    levels = {level: np.stack([answer[place] for answer in answers]) for place, level in enumerate(own)}
    finest, roles = levels.pop(hierarchy.num_levels - 1), None
    marks = [[store.fingerprint(one).content for one in source.records] for source in predicted]
    if exposure is not None:
        roles = exposure.roles(slides, patients, marks)
    several = hierarchy.findings == "several"
    sample = Predictions(
        loaded[0].path.name,
        hierarchy,
        slides,
        np.array([source.target for source in predicted], dtype=np.int64),
        decide(finest, hierarchy),
        finest,
        patients if known else None,
        table_tags(predicted),
        layout="PAMS",
        decided_by=str(DecisionRule()),
        made_by=tuple(run.origin for run in loaded),
        weights=weights,
        table={} if table.source is None else table_identity(table.source, split),
        roles=roles,
        exposure_known=roles is not None,
        finding_targets=finding_targets([source.label for source in predicted], hierarchy),
        finding_probabilities=np.stack([answer[-1] for answer in answers]) if several else None,
        exposure=exposure,
        features=marks,
    )
    # Beside a checkpoint that was handed on, a cohort.csv is a table of somebody else's.
    relabeled = [changed_labels(run.folder.path, table) for run in loaded if run.folder.exists()]
    return SlidePredictions(
        sample,
        [source.records[0].split for source in predicted],
        levels,
        tuple(str(run.path) for run in loaded),
        {source.name: reason for source, reason in failed},
        incomplete=tuple(dict.fromkeys(source.patient_id for source, _ in failed)),
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
    """Predict slides of the table that a run was trained with, read as it was then; the rest is as in `predict`.

    `data` are the run's settings of its data, `features` other feature files than those it was trained with.
    """
    loaded = load_runs(runs, trusted=options.pop("trusted", False), device=options.get("device", "auto"))
    manifest = read_manifest(data, loaded[0].spec.hierarchy)
    options |= {"features": features or data.features, "merge_cases": data.merge_cases}
    return predict(loaded, manifest, split=split, **options)


def _predict_bags(
    runs: Sequence[LoadedRun],
    levels: Sequence[int],
    bags: BagDataset,
    calibrated: bool,
    attend: Attend | None,
    progress: Callable[[float], None] | None,
) -> Iterator[tuple[int, list[Array] | PamsError]]:
    """For every bag, the probabilities [c] of some levels, averaged over the runs, or why there are none.

    Where slides have several findings, those of single findings [k] follow.
    """
    learners = [run.learner for run in runs]
    for done, (index, sample, outcome) in enumerate(infer(learners, bags, attention=attend is not None), 1):
        if isinstance(outcome, PamsError):
            yield index, outcome
        else:
            yield index, _mean_probabilities(runs, levels, outcome, calibrated)
            if attend is not None and sample is not None:
                attend(sample, _mean_attention([one.attention or [] for one in outcome], sample.slide_id))
        if progress is not None:
            progress(done / len(bags))


def _mean_probabilities(
    runs: Sequence[LoadedRun], levels: Sequence[int], predictions: list[Prediction], calibrated: bool
) -> list[Array]:
    pairs = list(zip(runs, predictions, strict=True))
    per_run = [run.calibration.apply(one.probabilities) if calibrated else one.probabilities for run, one in pairs]
    findings = [one.findings[0].numpy() for one in predictions if one.findings is not None]
    means = [
        # [0]: predictions were taken apart, so each holds one bag.
        np.mean([p[run.learner.levels.index(level)][0].numpy() for run, p in zip(runs, per_run, strict=True)], axis=0)
        for level in levels
    ]
    return [*means, *([np.mean(findings, axis=0)] if findings else [])]


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


def _checkpoint_file(path: Path, which: str) -> Path:
    if path.is_file():
        if path.suffix != ".safetensors":
            raise RunError(
                f"{path} is a file, where a run folder or a .safetensors checkpoint is expected. Runs come first, then "
                "one table or slides."
            )
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
