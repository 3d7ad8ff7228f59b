"""Cross-validation: every slide is tested once, by a model that saw none of its patient's slides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil import atomic
from pams_mil.arrays import Array
from pams_mil.data import tables
from pams_mil.data.exposure import Exposure
from pams_mil.data.manifest.manifest import FOLD_COLUMN, Manifest
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.config.run_config import RunConfig, short_name
from pams_mil.engine.grid.folds import Folds
from pams_mil.engine.grid.grid import BENCH_LOCK, Engine, GridRun, Progress, run_cells
from pams_mil.engine.prediction.scored_runs import of_folds
from pams_mil.engine.prediction.slide_predictions import SlidePredictions, table_identity
from pams_mil.engine.run.cv_folder import CrossValidationFolder, run_name
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.run.lock import locked
from pams_mil.engine.run.spec import refuse_another
from pams_mil.evaluate.predictions.join import mean_by_slide
from pams_mil.evaluate.predictions.prediction_layouts import Source
from pams_mil.evaluate.predictions.predictions import FINDINGS, RESERVED, Predictions
from pams_mil.evaluate.predictions.sidecar import OUT_OF_FOLD, sidecar
from pams_mil.evaluate.scores import score
from pams_mil.hierarchy import ClassHierarchy

FOLD_SCORES = ("acc", "auc", "ascc", "asmc", "missed_rate", "false_alarm_rate")
"""Metrics of every fold by itself."""


Trained = tuple[GridRun, tuple[str, ...]]
"""The runs of a cross-validation, and what is worth saying about it."""


def cross_validate(
    config: RunConfig,
    folds: Folds,
    out: Path | str,
    engine: Engine,
    *,
    seeds: Sequence[int] = (),
    progress: Progress | None = None,
) -> Trained:
    """Train a model for every fold, as far as that is not done, and pool the predictions of all test splits.

    With several seeds, by default the one of the settings, every fold has several models, and a slide's probabilities
    are their mean. Manifest and fold of the settings are replaced by those of the cross-validation; a folder that holds
    the same one is continued.
    """
    folder = CrossValidationFolder(Path(out))
    return _train(folder, {folder: (config, tuple(seeds) or (config.seed,))}, folds, engine, progress)


def train_committee(
    members: Mapping[str, RunConfig],
    folds: Folds,
    out: Path | str,
    engine: Engine,
    *,
    reference: RunConfig | None = None,
    networks: int = 0,
    progress: Progress | None = None,
) -> Trained:
    """Train every member of a committee for every fold, as far as that is not done; its predictions are their mean.

    All runs are one grid, so that processes and progress are shared. Nothing is chosen: members are fixed beforehand
    and keep their last weights, so the validation patients of a fold stay free. So many `networks` of the settings
    `reference` for every fold, with the seeds SEED, SEED + 1, ..., lie in the folder `reference`, to compare with. A
    folder that holds the same committee is continued.
    """
    folder = CrossValidationFolder(Path(out))
    parts: dict[CrossValidationFolder, tuple[RunConfig, tuple[int, ...]]]
    parts = {folder.member(name): (config, (config.seed,)) for name, config in members.items()}
    if reference is not None and networks:
        parts[folder.reference] = (reference, tuple(range(reference.seed, reference.seed + networks)))
    return _train(folder, parts, folds, engine, progress, members)


def _train(
    folder: CrossValidationFolder,
    parts: Mapping[CrossValidationFolder, tuple[RunConfig, tuple[int, ...]]],
    folds: Folds,
    engine: Engine,
    progress: Progress | None,
    members: Iterable[str] = (),
) -> Trained:
    """Train the folds of every part, with its settings and seeds: the folder itself, or what lies inside of it."""
    every, numbers = list[Cell](), range(len(folds))
    asked: dict[CrossValidationFolder, dict[str, Any]] = {}
    for place, (config, seeds) in parts.items():
        own = cells(config, folds.cohort, folder.manifest_file, numbers, seeds)
        asked[place] = _asked(own[0].config, folds, seeds)
        inside = place.path.relative_to(folder.path)
        every += [replace(cell, key=(inside / cell.key).as_posix()) for cell in own]
    settings = {name: asked[folder.member(name)]["settings"] for name in members}
    if settings:
        same = {key: value for key, value in next(iter(asked.values())).items() if key != "settings"}
        asked = {folder: {**same, "members": settings}, **asked}
    with locked(folder.path, take_over=True, name=BENCH_LOCK):  # nobody is training here
        (notes, *_) = (_open(place, own, folds) for place, own in asked.items())
    done = run_cells(every, folder.path, folder.path, engine, progress=progress)
    if not done.failures:
        # The committee last: it is the mean of what its members have pooled.
        notes = (*notes, *[pool(place, folds.hierarchy) for place in reversed(asked)][-1])
    return done, notes


def _open(folder: CrossValidationFolder, asked: dict[str, Any], folds: Folds) -> tuple[str, ...]:
    """Start a cross-validation in its folder, or take up the one that was started there with the same settings."""
    if folder.exists() and any(folder.path.rglob("*.safetensors")):
        advice = "Repeat the command that it was started with, or choose another folder with --out."
        refuse_another(folder.path, "cross-validation", folder.asked(), asked, advice)
    else:
        # What was refused before it was trained does not block the corrected command. The table goes first and comes
        # last: a kill in between leaves a folder that the same command completes.
        folder.manifest_file.unlink(missing_ok=True)
        folder.start(asked)
    if folder.manifest_file.exists():
        return ()
    return folds.write(folder.path)


def cells(
    config: RunConfig, cohort: Manifest, manifest_file: Path, folds: Iterable[int], seeds: Sequence[int]
) -> list[Cell]:
    """One run per fold and seed, seed by seed; `manifest_file` is the table that has the folds."""
    own: dict[str, Any] = {"manifest": manifest_file.resolve(), "patients_are_slides": cohort.patients_are_slides}
    config = complete(config)  # once for all folds and seeds
    own |= {"splits": None, "clini": None, "columns": {}}  # a table of our own needs no reading instructions
    return [
        Cell(
            run_name(fold, None if seed == seeds[0] else seed), short_name(config.model.name),
            short_name(config.method.name), seed, fold,
            config.model_copy(
                update={"data": config.data.model_copy(update={**own, "fold": fold}), "seed": seed}
            ),
        )
        for seed, fold in product(seeds, folds)
    ]  # fmt: skip


def pool(folder: CrossValidationFolder, hierarchy: ClassHierarchy) -> tuple[str, ...]:
    """Write the predictions of all folds as one; returns what is worth saying about them."""
    predictions = pooled(folder.tested(), folder.manifest_file, hierarchy)
    predictions.write(folder.path)
    repeated = sum(" " in cell for cell in predictions.sample.tags["fold"])
    if not repeated:
        return ()
    who = "1 slide is" if repeated == 1 else f"{repeated:,} slides are"
    return (f"{who} tested in several folds; the probabilities were averaged.",)


def pooled(tested_by: Iterable[tuple[int, Path]], manifest_file: Path, hierarchy: ClassHierarchy) -> SlidePredictions:
    """What runs, each with the fold that it tests, said about their test parts as one, in the order of the table.

    A slide that several runs tested gets the mean of their answers.
    """
    runs = [(fold, RunFolder(run)) for fold, run in tested_by]
    files, several = [run.predictions_file() for _, run in runs], hierarchy.findings == "several"
    ours = {*RESERVED, FINDINGS, "fold", *(f"p_{name}" for name in hierarchy.names())}
    ours |= {f"f_{hierarchy.classes[index]}" for index in hierarchy.finding_classes.tolist() if several}
    head = next(iter(tables.read_chunks(files[0], rows=1)))
    tags = (tag for tag in head if not (tag in ours or FOLD_COLUMN.fullmatch(tag)))
    source, name = Source(tags=(*tags, "split"), labels_needed=False), manifest_file.parent.name
    every = of_folds([(fold, run.path) for fold, run in runs], hierarchy, name, "test", source)
    order = {slide: number for number, slide in enumerate(tables.read_table(manifest_file)["slide_id"])}
    slides = sorted(dict.fromkeys(every.slide_ids), key=lambda slide: order.get(slide, len(order)))
    coarse: dict[int, Array] = {}
    for level, level_name in enumerate(hierarchy.level_names[:-1]):
        own = [file.with_name(f"{file.stem}_{level_name}.csv") for file in files]
        if all(map(Path.exists, own)):
            answers: dict[str, list[list[float]]] = {}
            for table in map(tables.read_table, own):
                cells_ = zip(*(table[f"p_{name}"] for name in hierarchy.names(level)), strict=True)
                for slide, row in zip(table["slide_id"], cells_, strict=True):
                    answers.setdefault(slide, []).append(list(map(float, row)))
            coarse[level] = np.array([np.mean(answers[slide], axis=0) for slide in slides])
    notes = [sidecar(file) for file in files]
    # The mean has seen what any of the models has seen.
    mean = mean_by_slide(every, slides)
    sample = replace(
        mean,
        roles=mean.roles if mean.exposure_known else None,
        weights=tuple(weights for note in notes for weights in note["weights"]),
        made_by=tuple(origin for note in notes for origin in note["made_by"]),
        table=table_identity(manifest_file, OUT_OF_FOLD),
        exposure=Exposure.of_all(run.exposure() for _, run in runs),
    )
    return SlidePredictions(sample, sample.tags["split"], coarse, tuple(str(run.path) for _, run in runs))


def score_folds(folder: CrossValidationFolder, pooled: Predictions) -> list[dict[str, Any]]:
    """Every fold by itself at the finest level, with the epoch of its first model; written to `folds.csv`, too."""
    # Where folds of the table overlap, a slide is tested by several, and its cell says "0 2".
    rows, tested = [], [cell.split() for cell in pooled.tags["fold"]]
    for fold, run in sorted(dict(reversed(folder.tested())).items()):
        own = pooled.where(np.array([str(fold) in cell for cell in tested]))
        facts = {"fold": fold, "slides": len(own), "patients": own.num_patients}
        values = score(own, resamples=0)[-1].values
        epoch = int(RunFolder(run).status()["best_epoch"])
        rows.append({**facts, "best_epoch": epoch, **{key: values[key] for key in FOLD_SCORES}})
    atomic.write_csv(folder.folds_file, list(rows[0]), (list(row.values()) for row in rows))
    return rows


def _asked(config: RunConfig, folds: Folds, seeds: Sequence[int]) -> dict[str, Any]:
    """What defines a cross-validation, as it goes into `cv.json`."""
    return {
        "folds": list(range(len(folds))),
        **({"seeds": list(seeds)} if len(seeds) > 1 else {}),
        "slides": len(folds.inside),
        "slides_and_folds": folds.digest,
        "classes": folds.classes,
        "settings": {
            key: value for key, value in config.to_json().items() if key not in ("compute", "classes", "data")
        },
    }
