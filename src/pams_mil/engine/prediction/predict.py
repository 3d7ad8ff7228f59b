"""Prediction: any number of trained runs on any slides, with or without labels, the same every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pams_mil.data.bags.dataset import BagDataset, BagSample
from pams_mil.data.bags.store import open_store
from pams_mil.engine.prediction.prediction_table import PredictionManifest, read_for_prediction
from pams_mil.engine.prediction.slide_predictions import SlidePredictions, summed
from pams_mil.engine.run import checkpoint
from pams_mil.engine.run.blueprint import Blueprint
from pams_mil.engine.run.folder import RunFolder, require_run
from pams_mil.engine.run.run_checkpoints import load_weights
from pams_mil.engine.training.learner import Learner
from pams_mil.engine.training.run_cohort import Features, look_at_features
from pams_mil.errors import CheckpointError, RunError
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.limits import explain_out_of_memory

Attend = Callable[[BagSample, list[Tensor]], None]
"""Given a bag and the attention [n] of every trained level, coarsest first, averaged over the runs."""


@dataclass(frozen=True)
class LoadedRun:
    """A trained model ready to predict, and what its checkpoint says about it."""

    path: Path
    learner: Learner
    blueprint: Blueprint
    state: dict[str, Any]


def load_run(path: Path | str, *, which: str = "best", trusted: bool = False, device: str = "cpu") -> LoadedRun:
    """The model of a run folder (its best or last checkpoint) or of a checkpoint file.

    Args:
        path: A run folder, an exported folder, or a `.safetensors` checkpoint.
        which: "best" or "last".
        trusted: Allow a checkpoint that names methods or models in modules outside of PAMS.
        device: Where to put the model.
    """
    file = _checkpoint_file(Path(path), which)
    saved = checkpoint.load(file)
    blueprint = Blueprint.from_json(saved.state.get("blueprint"))
    with torch.random.fork_rng(devices=[]):
        learner = blueprint.build(trusted=trusted)
    load_weights(learner, saved)
    return LoadedRun(Path(path), learner.to(device).eval(), blueprint, dict(saved.state))


def predict(
    runs: Sequence[Path | str | RunFolder],
    manifest: Path | str,
    *,
    split: str | None = None,
    features: Path | str | None = None,
    labels: bool = True,
    trusted: bool = False,
    device: str = "auto",
    attend: Attend | None = None,
    progress: Callable[[float], None] | None = None,
    **reading: Any,
) -> SlidePredictions:
    """Probabilities of every slide at every level; several runs are averaged.

    Args:
        runs: Run folders or checkpoints; all must know the same classes and features.
        manifest: The cohort table; labels are not needed.
        split: Only this split; None: all slides.
        features: Folder of feature files or a pack; the manifest's folder when None.
        labels: Use the table's labels where it has them.
        trusted: As in `load_run`.
        device: "auto", "cpu", "cuda", ...
        attend: Called with every bag and its attention.
        progress: Called with the share done.
        **reading: How to read the table, as for `Manifest.read`.
    """
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    paths = [run.path if isinstance(run, RunFolder) else run for run in runs]
    loaded = [load_run(path, trusted=trusted, device=place) for path in paths]
    _refuse_unlike(loaded)
    hierarchy = loaded[0].blueprint.hierarchy
    table = read_for_prediction(manifest, hierarchy, split=split, labels=labels, **reading)
    store = open_store(features if features is not None else Path(manifest).parent, table.manifest)
    _check_features(loaded, look_at_features(store, table.manifest))
    bags = BagDataset(table.manifest, hierarchy, store, with_coords=attend is not None, sources=table.sources)
    found = list(_predict_bags([run.learner for run in loaded], bags, place, attend, progress))
    return _gather(loaded, table, found)


def _predict_bags(
    learners: list[Learner],
    bags: BagDataset,
    device: str,
    attend: Attend | None,
    progress: Callable[[float], None] | None,
) -> Iterator[list[Tensor]]:
    """For every bag, the probabilities [c] of every level, averaged over the learners."""
    for index in range(len(bags)):
        sample = bags[index]
        batch = BagBatch.single(sample.features.to(device), sample.slide_id)
        with explain_out_of_memory(sample.slide_id, len(sample.features)):
            made = [learner.predict(batch, attention=attend is not None) for learner in learners]
        yield [
            torch.stack(
                [summed(learner, one.probabilities, level)[0] for learner, one in zip(learners, made, strict=True)]
            ).mean(0)
            for level in range(learners[0].hierarchy.num_levels)
        ]
        if attend is not None:
            attend(sample, _mean_attention([one.attention or [] for one in made], sample.slide_id))
        if progress is not None:
            progress((index + 1) / len(bags))


def _mean_attention(attention: list[list[Tensor | None]], slide_id: str) -> list[Tensor]:
    levels = min(len(one) for one in attention)
    found = []
    for level in range(-levels, 0):
        given = [one[level] for one in attention]
        present = [weights for weights in given if weights is not None]
        if len(present) < len(given):
            raise RunError(f"A model has no attention to show for slide {slide_id!r}; predict without --attention.")
        found.append(torch.stack(present).mean(0))
    return found


def _gather(loaded: list[LoadedRun], table: PredictionManifest, found: list[list[Tensor]]) -> SlidePredictions:
    hierarchy = loaded[0].blueprint.hierarchy
    own = set.intersection(*(set(run.learner.levels) for run in loaded))
    return SlidePredictions(
        hierarchy=hierarchy,
        names=tuple(source.name for source in table.sources),
        patient_ids=tuple(source.patient_id for source in table.sources),
        splits=tuple(source.records[0].split for source in table.sources),
        targets=table.targets,
        probabilities=tuple(
            torch.stack([bag[level] for bag in found]).numpy() for level in range(hierarchy.num_levels)
        ),
        own_levels=tuple(sorted(own)),
        tags=table.tags,
        runs=tuple(str(run.path) for run in loaded),
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
        raise RunError(f"{path} has no {which} checkpoint yet; the run is {state}. Finish it with --resume.")
    return file


def _refuse_unlike(loaded: list[LoadedRun]) -> None:
    if not loaded:
        raise RunError("Expected at least one run to predict with, found none.")
    first = loaded[0]
    for other in loaded[1:]:
        for what, one, two in (
            ("classes", first.blueprint.hierarchy.digest, other.blueprint.hierarchy.digest),
            ("feature width", first.blueprint.in_features, other.blueprint.in_features),
            ("encoder", first.blueprint.encoder.get("encoder"), other.blueprint.encoder.get("encoder")),
        ):
            if one != two:
                raise CheckpointError(
                    f"{first.path} and {other.path} cannot be averaged: their {what} differ ({one} and {two})."
                )


def _check_features(loaded: list[LoadedRun], features: Features) -> None:
    blueprint, path = loaded[0].blueprint, loaded[0].path
    if features.width != blueprint.in_features:
        raise CheckpointError(
            f"{path} was trained on features of width {blueprint.in_features}, these have {features.width}. "
            "Extract them with the encoder that the model was trained with."
        )
    for key, trained in blueprint.encoder.items():
        found = features.encoder.get(key, trained)
        if found != trained:
            raise CheckpointError(
                f"{path} was trained on features with {key} = {trained!r}, these have {found!r}. "
                "Extract them in the way that the model was trained with."
            )
