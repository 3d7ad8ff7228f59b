"""Cross-validation: every slide is tested once, by a model that saw none of its patient's slides."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

from pams_mil import atomic
from pams_mil.data import tables
from pams_mil.data.exposure import COLUMN, parse_roles, role_cell
from pams_mil.data.manifest.manifest import FOLD_COLUMN, Manifest
from pams_mil.data.splits.split_writer import write_split
from pams_mil.data.splits.stratify import Split
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.config.run_config import RunConfig, short_name
from pams_mil.engine.grid.folds import digest_of_folds, in_folds
from pams_mil.engine.grid.grid import Engine, GridRun, Progress, run_cells
from pams_mil.engine.prediction.slide_predictions import DISAGREES, OWN, table_identity
from pams_mil.engine.run.cv_folder import CrossValidationFolder, run_name
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.run.spec import refuse_another
from pams_mil.evaluate.predictions.sidecar import OUT_OF_FOLD, sidecar, write_sidecar
from pams_mil.hierarchy import ClassHierarchy

Row = dict[str, str]


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
    cohort: Manifest,
    split: Split,
    hierarchy: ClassHierarchy,
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
        cohort: The slides.
        split: Their folds.
        hierarchy: The class hierarchy.
        out: The folder; one that holds the same cross-validation is continued.
        engine: What runs the folds.
        seeds: The seeds that every fold is trained with; none: the one of the settings.
        progress: Told about progress.
    """
    folder = CrossValidationFolder(Path(out))
    seeds = tuple(seeds) or (config.seed,)
    wanted = cells(config, cohort, folder.manifest_file, range(len(split.folds)), seeds)
    lines = _open(folder, _asked(wanted[0].config, cohort, split, hierarchy, seeds), cohort, split, hierarchy)
    done = run_cells(wanted, folder.path, folder.path, engine, progress=progress)
    if not done.failures:
        lines = (*lines, *pool(folder, hierarchy))
    return CrossValidation(folder, done, lines)


def train_committee(
    members: Mapping[str, RunConfig],
    cohort: Manifest,
    split: Split,
    hierarchy: ClassHierarchy,
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
        cohort: The slides.
        split: Their folds.
        hierarchy: The class hierarchy.
        out: The folder; one that holds the same committee is continued.
        engine: What runs the folds.
        reference: Settings of the networks to compare with, in `reference`; None: none.
        networks: How many of them for every fold, with the seeds SEED, SEED + 1, ...
        progress: Told about progress.
    """
    folder, folds = CrossValidationFolder(Path(out)), range(len(split.folds))
    runs: dict[CrossValidationFolder, tuple[RunConfig, tuple[int, ...]]]
    runs = {folder.member(name): (config, (config.seed,)) for name, config in members.items()}
    if reference is not None and networks:
        runs[folder.reference] = (reference, tuple(range(reference.seed, reference.seed + networks)))
    wanted: dict[CrossValidationFolder, list[Cell]] = {
        member: cells(config, cohort, folder.manifest_file, folds, seeds) for member, (config, seeds) in runs.items()
    }
    asked = {member: _asked(own[0].config, cohort, split, hierarchy, runs[member][1]) for member, own in wanted.items()}
    settings = {name: asked[folder.member(name)]["settings"] for name in members}
    whole = {**asked[folder.member(next(iter(members)))], "members": settings}
    del whole["settings"]
    lines = _open(folder, whole, cohort, split, hierarchy)
    for member, own in asked.items():
        _open(member, own, cohort, split, hierarchy)
    every = [
        replace(cell, key=f"{member.path.relative_to(folder.path).as_posix()}/{cell.key}")
        for member, own in wanted.items()
        for cell in own
    ]
    done = run_cells(every, folder.path, folder.path, engine, progress=progress)
    if not done.failures:
        for member in wanted:
            pool(member, hierarchy)
        lines = (*lines, *pool(folder, hierarchy))
    return CrossValidation(folder, done, lines)


def _open(
    folder: CrossValidationFolder, asked: dict[str, Any], cohort: Manifest, split: Split, hierarchy: ClassHierarchy
) -> tuple[str, ...]:
    """Start a cross-validation in its folder, or take up the one that was started there with the same settings."""
    if folder.exists():
        advice = "Repeat the command that it was started with, or choose another folder with --out."
        refuse_another(folder.path, "cross-validation", folder.asked(), json.loads(json.dumps(asked)), advice)
    else:
        # Before the folds are written: a kill in between leaves a folder that the same command completes.
        folder.start(asked)
    if folder.manifest_file.exists():
        return ()
    return write_split(folder.path, cohort, hierarchy, split, is_folds=True).lines


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
    """Write the predictions of all folds as one file per level; a slide of several runs gets the mean of them."""
    finest = "predictions.csv"
    coarser = {f"predictions_{name}.csv": level for level, name in enumerate(hierarchy.level_names)}
    names = [name for name in (finest, *coarser) if _fold_file(folder.tested()[0][1], name).exists()]
    order = {slide: number for number, slide in enumerate(tables.read_table(folder.manifest_file)["slide_id"])}
    pooled = {name: _by_slide(folder, name) for name in names}
    slides = sorted(pooled[finest], key=lambda slide: order.get(slide, len(order)))
    # A slide has several rows where several seeds or several folds tested it; the first one becomes their mean.
    for slide in slides:
        rows = {name: pooled[name][slide] for name in names}
        if len(rows[finest]) > 1:
            _decide_together(rows, hierarchy, coarser)
    for name in names:
        joined = [pooled[name][slide][0] for slide in slides]
        header = list(joined[0])
        atomic.write_csv(folder.path / name, header, ([row.get(key, "") for key in header] for row in joined))
    _write_sidecar(folder, [folder.path / name for name in names], len(slides))
    several = sum(" " in pooled[finest][slide][0]["fold"] for slide in slides)
    if not several:
        return ()
    who = "1 slide is" if several == 1 else f"{several:,} slides are"
    return (f"{who} tested in several folds; the probabilities were averaged.",)


def _write_sidecar(folder: CrossValidationFolder, files: Sequence[Path], slides: int) -> None:
    """Say of which weights the pooled predictions are, and which patients any of them has seen."""
    runs = [run for _, run in folder.tested()]
    notes = [sidecar(RunFolder(run).predictions_file()) for run in runs]
    seen = [exposure for run in runs if (exposure := RunFolder(run).exposure()) is not None]
    write_sidecar(
        folder.predictions_file.with_suffix(".json"), files, slides=slides,
        table=table_identity(folder.manifest_file, OUT_OF_FOLD),
        made_by=[origin for note in notes for origin in note["made_by"]],
        weights=[weights for note in notes for weights in note["weights"]],
        exposure=reduce(operator.or_, seen) if len(seen) == len(runs) else None,
    )  # fmt: skip


def _fold_file(run: Path, name: str) -> Path:
    """The file of a run's test predictions that goes into the pooled file `name`."""
    finest = RunFolder(run).predictions_file()
    return finest.with_name(finest.stem + name.removeprefix("predictions"))


def _by_slide(folder: CrossValidationFolder, name: str) -> dict[str, list[Row]]:
    """The rows of every slide, one of each run that tested it."""
    rows: dict[str, list[Row]] = {}
    for fold, run in folder.tested():
        read = tables.read_table(_fold_file(run, name))
        table = {column: cells_ for column, cells_ in read.items() if not FOLD_COLUMN.fullmatch(column)}
        for cells_ in zip(*table.values(), strict=True):
            row = {**dict(zip(table, cells_, strict=True)), "fold": str(fold)}
            rows.setdefault(row["slide_id"], []).append(row)
    return rows


def _decide_together(rows: Mapping[str, list[Row]], hierarchy: ClassHierarchy, coarser: Mapping[str, int]) -> None:
    """Put the mean of a slide's rows first, at every level; the finest level's mean decides, as everywhere."""
    for name, of_runs in rows.items():
        of_runs[0] = _mean(of_runs, hierarchy.names(coarser.get(name, -1)))
    finest = rows["predictions.csv"][0]
    # The mean of the finest level is called first, then lifted: averaged levels may disagree, and one answer decides.
    called = hierarchy.index(finest["prediction"])
    unlike = []
    for name, of_runs in rows.items():
        if name not in coarser:
            continue
        level = coarser[name]
        own, lifted = of_runs[0]["prediction"], hierarchy.names(level)[int(hierarchy.groups(level)[called])]
        of_runs[0] |= {"prediction": lifted, OWN: own}
        unlike += [f"{hierarchy.level_names[level]}: {own}"] if own != lifted else []
    if DISAGREES in finest:
        finest[DISAGREES] = "; ".join(unlike)


def _mean(rows: Sequence[Row], classes: Sequence[str]) -> Row:
    """One row with the mean of the probabilities and the class that is the most probable by it."""
    means = {label: sum(float(row[f"p_{label}"]) for row in rows) / len(rows) for label in classes}
    findings = [column for column in rows[0] if column.startswith("f_") and column.removeprefix("f_") in classes]
    folds = " ".join(dict.fromkeys(row["fold"] for row in rows))
    changed = {f"p_{label}": repr(value) for label, value in means.items()}
    changed |= {column: repr(sum(float(row[column]) for row in rows) / len(rows)) for column in findings}
    roles = [parse_roles(row.get(COLUMN, "")) for row in rows]
    known = [one for one in roles if one is not None]
    if len(known) == len(rows):  # the mean has seen what any of the models has seen
        changed[COLUMN] = role_cell(frozenset().union(*known))
    return {**rows[0], **changed, "prediction": max(classes, key=means.__getitem__), "fold": folds}


def best_epochs(folder: CrossValidationFolder, folds: int) -> list[int]:
    """The epoch that every fold's model was taken from; of several, the first one's."""
    first = dict(reversed(folder.tested()))
    return [int(RunFolder(first[fold]).status()["best_epoch"]) for fold in range(folds)]


def _asked(
    config: RunConfig, cohort: Manifest, split: Split, hierarchy: ClassHierarchy, seeds: Sequence[int]
) -> dict[str, Any]:
    """What defines a cross-validation, as it goes into `cv.json`."""
    settings = config.to_json()
    return {
        "folds": list(range(len(split.folds))),
        **({"seeds": list(seeds)} if len(seeds) > 1 else {}),
        "slides": len(in_folds(cohort, split)),
        "slides_and_folds": digest_of_folds(cohort, split),
        "classes": " ".join(order.digest for order in hierarchy.orders),
        "settings": {key: value for key, value in settings.items() if key not in ("compute", "classes", "data")},
    }
