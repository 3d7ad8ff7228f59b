"""What a run folder says it is, and which slides trained it, whichever version wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.run.blueprint import complete
from pams_mil.engine.run.folder import RunFolder, read_json
from pams_mil.engine.run.identity import EARLIER, Identity, settings_of
from pams_mil.engine.run.trained_slides import TrainedSlides, digest_of_0_1_0
from pams_mil.engine.training.run_cohort import read_manifest
from pams_mil.errors import PamsError, RunError, listing


def stored_identity(folder: RunFolder) -> Identity | None:
    """The identity that `run.json` holds, with the slides where they are known; None where it says nothing."""
    facts = read_json(folder.path / "run.json")
    if "identity" not in facts:
        return _of_0_1_0(folder, facts)
    return with_slides(Identity.from_json(facts["identity"]), folder)


def with_slides(identity: Identity, folder: RunFolder) -> Identity:
    """The identity with the slides that `cohort.csv` lists, where it is there and fits."""
    try:
        return replace(identity, slides=TrainedSlides.read(folder.path, dict(identity.cohort)))
    except RunError:  # differences can then be found, but not named
        return identity


def trained_slides(folder: RunFolder) -> TrainedSlides:
    """The slides that trained a run (`train`) and those that chose its epoch (`val`).

    Raises:
        RunError: it cannot be told.
    """
    facts = read_json(folder.path / "run.json")
    if "identity" in facts:
        return TrainedSlides.read(folder.path, dict(Identity.from_json(facts["identity"]).cohort))
    config = folder.config()
    found = _slides_of_table(config, facts)
    if found is None:
        raise RunError(
            f"It cannot be told which slides trained {folder.path}: it was trained by version 0.1.0, which did not "
            f"record them, and {config.data.manifest} is not the table that it was trained with any more. Restore "
            "that table, or name the table to evaluate on with --manifest."
        )
    return found


def refuse_trained(seen: TrainedSlides, slides: Sequence[str], patients: Sequence[str], run: Path | str) -> None:
    """Stop when a slide to be scored, or its patient, trained the run or chose its epoch."""
    known_slides, known_patients = set(seen.slides("train", "val")), set(seen.patients("train", "val"))
    shared = [
        slide
        for slide, patient in zip(slides, patients, strict=True)
        if slide in known_slides or patient in known_patients
    ]
    if shared:
        raise RunError(
            f"{len(shared)} of {len(slides)} slides are of patients that trained {run} or chose its epoch: "
            f"{listing(shared)}. The table was changed since; scores would be too good to be true."
        )


def with_lost_fold(config: RunConfig, facts: dict[str, Any]) -> RunConfig:
    """Give a run of version 0.1.0 its fold 0 back, which that version did not store, where its slides prove it."""
    if config.data.fold is not None or "cohort_digest" not in facts or _slides_of_table(config, facts) is not None:
        return config
    folded = config.model_copy(update={"data": config.data.model_copy(update={"fold": 0})})
    return config if _slides_of_table(folded, facts) is None else folded


def _slides_of_table(config: RunConfig, facts: dict[str, Any]) -> TrainedSlides | None:
    """The slides of the run's table, if they are those of the digest that version 0.1.0 stored."""
    try:
        slides = TrainedSlides.of(read_manifest(config.data), "train", "val")
        digest = digest_of_0_1_0(slides, facts["hierarchy"]["digest"], facts["features"])
    except (PamsError, KeyError, TypeError):
        return None
    return slides if digest == facts.get("cohort_digest") else None


def _of_0_1_0(folder: RunFolder, facts: dict[str, Any]) -> Identity | None:
    try:
        config = complete(folder.config())
        classes = {"digest": facts["hierarchy"]["digest"], "order": {}, "groups": {}}
        settings = {key: value for key, value in settings_of(config).items() if key != "merge_cases"}
        return Identity(settings, classes, {EARLIER: facts["cohort_digest"]}, facts["features"], {})
    except (PamsError, KeyError, TypeError):
        return None
