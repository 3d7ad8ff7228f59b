"""Cross-validation: every slide is tested once, by a model that saw none of its patient's slides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil import atomic
from pams_mil.data import tables
from pams_mil.data.exposure import COLUMN, Exposure, Roles, parse_roles
from pams_mil.data.manifest.manifest import FOLD_COLUMN, Manifest
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.config.run_config import RunConfig, short_name
from pams_mil.engine.grid.folds import Folds
from pams_mil.engine.grid.grid import Engine, GridRun, Progress, run_cells
from pams_mil.engine.prediction.slide_predictions import SlidePredictions, finding_targets, table_identity
from pams_mil.engine.run.cv_folder import CrossValidationFolder, run_name
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.run.spec import refuse_another
from pams_mil.evaluate.decisions.decide import DecisionRule, decide
from pams_mil.evaluate.predictions.predictions import FINDINGS, RESERVED, Predictions
from pams_mil.evaluate.predictions.sidecar import OUT_OF_FOLD, sidecar
from pams_mil.evaluate.scores import score
from pams_mil.hierarchy import ClassHierarchy

FOLD_SCORES = ("acc", "auc", "ascc", "asmc", "missed_rate", "false_alarm_rate")
"""Metrics of every fold by itself."""


@dataclass(frozen=True)
class CrossValidation:
    """What a cross-validation left behind."""

    folder: CrossValidationFolder
    grid: GridRun
    notes: tuple[str, ...]

    @property
    def failures(self) -> dict[str, str]:
        """Folds that failed, with the reason."""
        return self.grid.failures


def cross_validate(
    config: RunConfig,
    folds: Folds,
    out: Path | str,
    engine: Engine,
    *,
    seeds: Sequence[int] = (),
    progress: Progress | None = None,
) -> CrossValidation:
    """Train a model for every fold, as far as that is not done, and pool the predictions of all test splits.

    With several seeds every fold has several models, and a slide's probabilities are their mean.

    Args:
        config: The settings of every fold; its manifest and fold are replaced by those of the cross-validation.
        folds: The slides and their folds.
        out: The folder; one that holds the same cross-validation is continued.
        engine: What runs the folds.
        seeds: The seeds that every fold is trained with; none: the one of the settings.
        progress: Told about progress.
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
) -> CrossValidation:
    """Train every member of a committee for every fold, as far as that is not done; its predictions are their mean.

    All runs are one grid, so that processes and progress are shared. Nothing is chosen: members are fixed beforehand
    and keep their last weights, so the validation patients of a fold stay free.

    Args:
        members: Name -> settings, in the order of the recipe file.
        folds: The slides and their folds.
        out: The folder; one that holds the same committee is continued.
        engine: What runs the folds.
        reference: Settings of the networks to compare with, in `reference`; None: none.
        networks: How many of them for every fold, with the seeds SEED, SEED + 1, ...
        progress: Told about progress.
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
) -> CrossValidation:
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
    (notes, *_) = (_open(place, own, folds) for place, own in asked.items())
    done = run_cells(every, folder.path, folder.path, engine, progress=progress)
    if not done.failures:
        # The committee last: it is the mean of what its members have pooled.
        notes = (*notes, *[pool(place, folds.hierarchy) for place in reversed(asked)][-1])
    return CrossValidation(folder, done, notes)


def _open(folder: CrossValidationFolder, asked: dict[str, Any], folds: Folds) -> tuple[str, ...]:
    """Start a cross-validation in its folder, or take up the one that was started there with the same settings."""
    if folder.exists():
        advice = "Repeat the command that it was started with, or choose another folder with --out."
        refuse_another(folder.path, "cross-validation", folder.asked(), asked, advice)
    else:
        # Before the folds are written: a kill in between leaves a folder that the same command completes.
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


_NO_ROLES: Roles = frozenset()


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
    """What runs said about their test parts as one; a slide that several runs tested gets the mean of their answers.

    Args:
        tested_by: The run folders, each with the fold that it tests.
        manifest_file: The table that has the folds; its order is that of the slides.
        hierarchy: The class hierarchy.
    """
    runs = [(fold, RunFolder(run)) for fold, run in tested_by]
    finest, files = hierarchy.num_levels - 1, [run.predictions_file() for _, run in runs]
    ends = [*(f"_{name}.csv" for name in hierarchy.level_names[:-1]), ".csv"]
    own = [level for level, end in enumerate(ends) if all(file.with_name(file.stem + end).exists() for file in files)]
    several = hierarchy.findings == "several"
    marks = [f"f_{hierarchy.classes[index]}" for index in hierarchy.finding_classes.tolist()] if several else []
    tested: dict[str, list[dict[str, str]]] = {}  # the rows of every slide, one of each run that tested it
    answers: dict[tuple[int, str], list[list[float]]] = {}  # their probabilities at a level
    for ((fold, _), file), level in product(zip(runs, files, strict=True), own):
        table = tables.read_table(file.with_name(file.stem + ends[level]))
        for row in (dict(zip(table, cells_, strict=True)) for cells_ in zip(*table.values(), strict=True)):
            p = [float(row[f"p_{name}"]) for name in hierarchy.names(level)]
            answers.setdefault((level, row["slide_id"]), []).append(p)
            if level == finest:
                tested.setdefault(row["slide_id"], []).append({**row, "fold": str(fold)})
    order = {slide: number for number, slide in enumerate(tables.read_table(manifest_file)["slide_id"])}
    slides = sorted(tested, key=lambda slide: order.get(slide, len(order)))
    rows, first = [tested[slide] for slide in slides], [tested[slide][0] for slide in slides]
    means = {level: np.array([np.mean(answers[level, slide], axis=0) for slide in slides]) for level in own}
    findings = [np.mean([[float(row[mark]) for mark in marks] for row in of], axis=0) for of in rows if marks]
    ours = {*RESERVED, FINDINGS, *marks, "fold", *(f"p_{name}" for name in hierarchy.names())}
    roles = [[parse_roles(row.get(COLUMN, "")) for row in of] for of in rows]
    notes, labels = [sidecar(file) for file in files], [row.get("target", "") for row in first]
    tags = {tag: [row[tag] for row in first] for tag in first[0] if not (tag in ours or FOLD_COLUMN.fullmatch(tag))}
    known = not any(None in of for of in roles)
    sample = Predictions(
        manifest_file.parent.name,
        hierarchy,
        slides,
        np.array([hierarchy.index(label) if label else -1 for label in labels]),
        decide(means[finest], hierarchy),
        means[finest],
        [row["patient_id"] for row in first] if "patient_id" in first[0] else None,
        {**tags, "fold": [" ".join(dict.fromkeys(row["fold"] for row in of)) for of in rows]},
        layout="PAMS",
        decided_by=str(DecisionRule()),
        weights=tuple(weights for note in notes for weights in note["weights"]),
        made_by=tuple(origin for note in notes for origin in note["made_by"]),
        table=table_identity(manifest_file, OUT_OF_FOLD),
        # The mean has seen what any of the models has seen.
        roles=[_NO_ROLES.union(*filter(None, of)) for of in roles] if known else None,
        exposure_known=known,
        exposure=Exposure.of_all(run.exposure() for _, run in runs),
        finding_targets=finding_targets(labels, hierarchy),
        finding_probabilities=np.array(findings) if findings else None,
    )
    coarse = {level: p for level, p in means.items() if level != finest}
    return SlidePredictions(sample, [row["split"] for row in first], coarse, tuple(str(run.path) for _, run in runs))


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
