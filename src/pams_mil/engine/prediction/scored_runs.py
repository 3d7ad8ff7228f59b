"""Predictions of runs for scoring: on a split of their own table, on the table of another hospital, or out of fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pams_mil.digests import file_digest
from pams_mil.engine.prediction.predict import LoadedRun, load_runs, predict, predict_own
from pams_mil.engine.prediction.prediction_table import split_of
from pams_mil.engine.prediction.slide_predictions import SlidePredictions
from pams_mil.engine.run.cv_folder import CrossValidationFolder, with_folds
from pams_mil.engine.run.folder import RunFolder, require_run
from pams_mil.engine.run.spec import stored_spec
from pams_mil.errors import CheckpointError, ConfigError, PredictionsError, counted
from pams_mil.evaluate.decisions.decide import at_fixed_kappa, matching_kappa
from pams_mil.evaluate.predictions.join import join_predictions
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy

OWN_SPLIT = "test"


def predict_to_score(
    runs: Sequence[LoadedRun],
    *,
    table: Path | None = None,
    split: str | None = None,
    features: Path | None = None,
    default: str = OWN_SPLIT,
    **options: Any,
) -> SlidePredictions:
    """Predict a split of a table, of the first run's own or of another hospital, with runs, which are averaged.

    Without a split it is the `default` one, and all slides of another table that has none of it. `features` are the
    feature files of that table, `options` as in `predict`.
    """
    first = runs[0]
    if table is None:
        require_run(first.folder)
        return predict_own(runs, first.folder.config().data, split=split or default, features=features, **options)
    split = split or split_of(table, first.spec.hierarchy, default)
    return predict(runs, table, split=split, features=features, **options)


@dataclass(frozen=True)
class ScoredRun:
    """A run or cross-validation and its predictions of the slides that are scored; without `slides`, out of fold."""

    path: Path
    model: Predictions
    runs: Sequence[LoadedRun]
    slides: SlidePredictions | None = None

    def keep(self, home: RunFolder, table: Path | None, *, calibrated: bool) -> Path:
        """Write the predictions of a table, by default the run's own, under a name of their own; returns the file."""
        if self.slides is None:
            return CrossValidationFolder(self.path).predictions_file
        table = table or self.runs[0].folder.config().data.manifest
        slot = home.slot(table, self.slides.sample.table["split"], *(["calibrated"] if calibrated else []))
        return self.slides.write(home.predictions, name=slot)[0]

    @property
    def classes(self) -> Sequence[str]:
        """The class files that it was trained with; none where a folder holds no config, such as an export."""
        home = RunFolder.at(with_folds([self.path])[0])
        classes = home.config().classes if home.exists() else ()
        return (classes,) if isinstance(classes, str) else classes


def score_run(
    run: Path,
    name: str,
    table: Path | None,
    split: str | None,
    *,
    stated: ClassHierarchy | None,
    tags: tuple[str, ...],
    trusted: bool,
    load: bool,
    **options: Any,
) -> ScoredRun:
    """What a run is scored on: out-of-fold predictions of a cross-validation, else those of a split or another table.

    Other classes than `stated` are refused, and its orders are scored. Out-of-fold predictions keep `tags`, and need no
    runs unless `load` asks for them. `options` are those of `predict_to_score`.
    """
    folds = CrossValidationFolder(run)
    pooled = table is None and folds.exists()
    if pooled and (options["calibrated"] or split not in (None, OWN_SPLIT)):
        raise ConfigError(
            f"The out-of-fold predictions of {run} are of the split 'test' and not calibrated; leave --split and "
            "--calibrated out."
        )
    runs = load_runs([run], trusted=trusted) if load or not pooled else []
    slides = None
    if pooled:
        model = out_of_fold(folds, name, tags=tags)
    else:
        slides = predict_to_score(runs, table=table, split=split, **options)
        model = labeled_slides(slides, name, external=table is not None)
    refuse_other_classes({run: model.hierarchy}, stated)
    return ScoredRun(run, model if stated is None else model.with_orders(stated), runs, slides)


def stored_predictions(run: LoadedRun, split: str) -> Predictions | None:
    """The predictions of a split of the run's own table that its folder keeps; None unless they fit weights and table.

    Targets are -1 where there is no label.
    """
    if not run.folder.exists():
        return None
    path, table = run.folder.predictions_file(split), run.folder.config().data.manifest
    if not path.is_file() or not table.is_file():
        return None
    stored = read_predictions(path, run.spec.hierarchy, Source(labels_needed=False), name=run.path.name)
    fits = stored.weights == (run.weights,) and stored.table.get("digest") == file_digest(table)
    return stored if fits else None


def labeled_slides(predictions: SlidePredictions, name: str, *, external: bool) -> Predictions:
    """The slides that have a label, with what must be said about the others and about where they come from."""
    rows = np.flatnonzero(predictions.sample.target >= 0)
    where = predictions.sample.table.get("name", "the table")
    if not len(rows):
        raise PredictionsError(
            f"None of the {len(predictions)} slides of {where} has a label, so there is nothing to score. Add a column "
            "'label' with the true class."
        )
    labeled = predictions.labeled(name, rows=rows)
    notes = list(labeled.notes)
    if len(rows) < len(predictions):
        notes.append(f"{counted(len(predictions) - len(rows), 'slide')} of {where} without a label are not scored.")
    if external:
        unseen = labeled.roles is not None and not any(labeled.roles)
        seen = "; the model has seen none of their patients" if unseen else ""
        size = f"{counted(len(labeled), 'labeled slide')} of {counted(labeled.num_patients, 'patient')}"
        notes.append(f"External validation on {where}: {size}{seen}.")
    return replace(labeled, notes=tuple(notes))


def out_of_fold(folder: CrossValidationFolder, name: str, *, tags: tuple[str, ...] = ()) -> Predictions:
    """The predictions of a cross-validation, every slide by the fold that tested it."""
    hierarchy = stored_spec(folder.runs()[0]).hierarchy
    return read_predictions(folder.predictions_file, hierarchy, Source(tags=tags), name=name)


def of_folds(
    runs: Iterable[tuple[int, Path]], hierarchy: ClassHierarchy, name: str, split: str, source: Source | None = None
) -> Predictions:
    """What runs said about a split of their own table, one after the other, each row with the fold of its run."""
    source, samples = source or Source(), []
    for fold, run in runs:
        one = read_predictions(RunFolder(run).predictions_file(split), hierarchy, source, name=name)
        kept = {tag: one.tags[tag] for tag in source.tags}
        samples.append(replace(one, tags={**kept, "fold": [str(fold)] * len(one)}))
    return join_predictions(name, samples)


def at_matched_false_alarms(
    runs: Sequence[Sequence[LoadedRun]], models: Sequence[Predictions], on: str, scored: str | None, **options: Any
) -> list[Predictions]:
    """Every model but the first, at the κ that gives it the first one's false alarms on another split, `on`.

    Of the `runs` behind a model, those of a cross-validation each predict their own slides of that split. `models` are
    predictions of the slides that are scored, of the split `scored`; `options` as in `predict`.
    """
    if on == (scored or OWN_SPLIT):
        raise ConfigError(
            f"--match-on {on}: κ must be set on other slides than those that are scored. Models are always compared at "
            "equal false alarms of the scored slides too; that needs no option."
        )
    if len(runs) < 2:
        raise ConfigError("--match-on compares runs with the first one; name at least two.")
    subsets = [[predict_to_score([run], split=on, **options).labeled(str(run.path)) for run in group] for group in runs]
    return [
        at_fixed_kappa(model, matching_kappa(subsets[0], own), reference=models[0].name, split=on)
        for model, own in zip(models[1:], subsets[1:], strict=True)
    ]


def refuse_other_classes(trained: Mapping[Path, ClassHierarchy], stated: ClassHierarchy | None) -> None:
    """Stop when a run was trained with another class hierarchy than the one named, if one is."""
    for run, hierarchy in trained.items():
        if stated is not None and hierarchy.digest != stated.digest:
            raise CheckpointError(
                f"{run} was trained with other classes than {stated.name!r}: digest {hierarchy.digest}, expected "
                f"{stated.digest}. Names, groups and ranks must be the same."
            )


def unique_names(runs: Sequence[Path]) -> list[str]:
    """The names of run folders, with their paths where two have the same name."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]
