"""From run folders, predictions files, slides and features to a session that can be served."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pams_mil.data.bags.filenames import FileNames, features_of
from pams_mil.data.exposure import admit
from pams_mil.data.manifest.manifest import Manifest
from pams_mil.engine.run.cv_folder import CrossValidationFolder
from pams_mil.errors import ConfigError, PredictionsError
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.make import require_patients
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.view.heat import HeatMaker
from pams_mil.view.session import Session
from pams_mil.view.shelf import Shelf
from pams_mil.view.verdict_journal import Journal
from pams_mil.view.worklist_cases import Cases

if TYPE_CHECKING:
    from pams_mil.engine.config.run_config import DataConfig
    from pams_mil.engine.prediction.predict import LoadedRun

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Asked:
    """What the command line asked for."""

    paths: Sequence[Path]
    slides: Path | None = None
    features: Path | None = None
    manifest: Path | None = None
    certificate: Path | None = None
    classes: Sequence[str] = ()
    split: str = "test"
    source: Source | None = None
    reviews: Path | None = None
    reviewer: str | None = None
    blind: bool = False
    trust_code: bool = False
    patients_are_slides: bool = False


def is_run(path: Path) -> bool:
    """Whether a path is a run folder, a checkpoint or a fold of a committee rather than a table of predictions."""
    return path.is_dir() or path.suffix == ".safetensors" or CrossValidationFolder.at(path) is not None


def open_session(asked: Asked, progress: Progress | None = None) -> Session:
    """Read everything that the page shows; slides and features are opened later, one by one."""
    if not asked.paths:
        raise ConfigError("Expected a run folder or a predictions file: pams view RUN-or-PREDICTIONS.")
    for path in asked.paths:
        if not (path.exists() or is_run(path)):
            raise PredictionsError(f"There is no run folder or predictions file {path}.")
    report = progress or (lambda what, fraction: None)
    loaded = {path: _load(path, trusted=asked.trust_code) for path in asked.paths if is_run(path)}
    runs = [run for group in loaded.values() for run in group]
    hierarchy = _hierarchy(asked, runs)
    manifest = _manifest(asked)
    records = {record.slide_id: record for record in manifest} if manifest is not None else {}
    models = []
    incomplete: set[str] = set()
    for path in asked.paths:
        if path in loaded:
            models.append(_predicted(path, loaded[path], asked, report, incomplete))
        else:
            models.append(_table(path, hierarchy, asked, report))
    cases = Cases.combine(models, groups={slide: record.case for slide, record in records.items()})
    certificate = None if asked.certificate is None else Certificate.load(asked.certificate)
    if certificate is not None:
        require_patients(models[0], patients_are_slides=asked.patients_are_slides)
        cases = cases.with_certificate(certificate, incomplete=incomplete)
    shelf = Shelf.find(cases.slide_ids, asked.slides)
    features, *feature_notes = _features(asked, runs)
    heat = HeatMaker(
        features=features,
        runs=runs,
        attention=_attention(asked.paths[0]),
        records={slide: record for slide, record in records.items() if record.path},
        reads_cases=any((data := _own_data(run)) is not None and data.merge_cases for run in runs),
        mpp_of=lambda slide: shelf.mpp(cases.slides.row_of[slide]),
    )
    labels = {
        slide: model.label(row)
        for model in models
        for row, slide in enumerate(model.slide_ids)
        if model.target[row] >= 0
    }
    journal = Journal(
        _review_folder(asked), reviewer_name(asked.reviewer), cases.hierarchy, cases.digests, labels, blind=asked.blind
    )
    run_weights = [run.weights for run in runs] if len(loaded) == len(asked.paths) else []
    notes = [
        *feature_notes,
        *_certificate_notes(certificate, cases, models, run_weights),
        *_notes(asked, shelf, cases, journal),
    ]
    title = ", ".join(cases.models) if len(cases.models) < 4 else f"{len(cases.models)} models"
    guarantee = "" if certificate is None else " ".join(certificate.sentences)
    return Session(title, cases, shelf, heat, journal, tuple(notes), guarantee)


def reviewer_name(name: str | None) -> str:
    """The reader's name, else that of the account."""
    if name is not None:
        if not name.strip():
            raise ConfigError("--reviewer is empty; give the name that reviews are stored under.")
        return name.strip()
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "reader"


def _load(path: Path, *, trusted: bool) -> list[LoadedRun]:
    """The run of a folder, or all runs of a cross-validation or a committee."""
    from pams_mil.engine.prediction.predict import load_runs  # noqa: PLC0415  torch only where there is a run

    return load_runs([path], trusted=trusted, device="cpu")


def _predicted(
    path: Path, runs: Sequence[LoadedRun], asked: Asked, report: Progress, incomplete: set[str]
) -> Predictions:
    """What is stored: a run's predictions, or a cross-validation's out-of-fold ones; else computed now, by all runs.

    Patients of whom a slide cannot be read are added to `incomplete`.
    """
    from pams_mil.engine.prediction.predict import predict, predict_own  # noqa: PLC0415
    from pams_mil.engine.prediction.scored_runs import out_of_fold, stored_predictions  # noqa: PLC0415

    progress, run = partial(report, f"Predicting {path.name}"), runs[0]
    if asked.manifest is not None:
        predicted = predict(runs, asked.manifest, features=asked.features, progress=progress)
    else:
        folder = CrossValidationFolder.at(path)
        if run.path == path:
            stored = stored_predictions(run, asked.split)
            # A file names the slides that failed, not their patients, whom a certificate must leave out.
            failed = asked.certificate is not None and _failures(run.folder.predictions_file(asked.split)).is_file()
            if stored is not None and not failed:
                return stored
        elif folder is None:
            raise ConfigError(f"{path} is an exported model without predictions; name slides with --manifest.")
        elif folder.fold is None and asked.certificate is not None:
            raise ConfigError(
                f"The slides of {path} were each called by the runs that did not train on them, and a certificate is "
                "about the mean of all runs. Name new slides with --manifest TABLE.csv, or view without --certificate."
            )
        elif folder.fold is None:
            return out_of_fold(folder, path.name)
        data = run.folder.config().data
        predicted = predict_own(runs, data, split=asked.split, features=asked.features, progress=progress)
    incomplete.update(predicted.incomplete)
    return predicted.named(path.name)


def _hierarchy(asked: Asked, runs: Sequence[LoadedRun]) -> ClassHierarchy:
    stated = ClassHierarchy.load(asked.classes) if asked.classes else None
    own = [run.spec.hierarchy for run in runs]
    if stated is None and not own:
        raise ConfigError("A predictions file does not say which classes are urgent; give them with --classes.")
    chosen = stated if stated is not None else own[0]
    for run, hierarchy in zip(runs, own, strict=True):
        if hierarchy.digest != chosen.digest:
            raise ConfigError(
                f"{run.path} was trained with other classes ({hierarchy.order()}) than the ones to show "
                f"({chosen.order()}); names, groups and ranks must be the same."
            )
    return chosen


def _manifest(asked: Asked) -> Manifest | None:
    if asked.manifest is None:
        return None
    from pams_mil.engine.prediction.prediction_table import read_for_prediction  # noqa: PLC0415  it knows tables without labels

    hierarchy = ClassHierarchy.flat(["less", "more"])  # labels are not looked at
    return read_for_prediction(asked.manifest, hierarchy, labels=False)[0]


def _table(path: Path, hierarchy: ClassHierarchy, asked: Asked, report: Progress) -> Predictions:
    if asked.certificate is not None and _failures(path).is_file():
        raise PredictionsError(
            f"{_failures(path)} lists slides that could not be predicted. Their patients may be more urgent than their "
            "other slides show, so no certificate applies. View the run itself, or predict again once all can be read."
        )
    source = asked.source or Source(labels_needed=False)
    return read_predictions(
        path, hierarchy, source, name=path.stem, progress=lambda done: report(f"Reading {path}", done)
    )


def _failures(predictions: Path) -> Path:
    return predictions.with_name(f"{predictions.stem}_failed.csv")


def _own_data(run: LoadedRun) -> DataConfig | None:
    return run.folder.config().data if run.folder.exists() else None


def _features(asked: Asked, runs: Sequence[LoadedRun]) -> tuple[Path | None, *tuple[str, ...]]:
    """The folder of feature files, or None and why there is none."""
    if asked.features is not None:
        if not asked.features.is_dir():
            raise ConfigError(f"There is no folder or pack of features {asked.features}.")
        return (asked.features,)
    own = next((features_of(data.manifest, data.features) for run in runs if (data := _own_data(run))), None)
    if own is None:
        return None, "No folder of features was given (--features), so there are no heatmaps."
    if not own.is_dir():
        return None, f"The run's features are not a folder any more ({own.name}), so there are no heatmaps."
    return (own,)


def _attention(path: Path) -> Path | None:
    # In a run folder beside the predictions, in a folder of their name; in the user's, in the same one.
    folders = [path] if path.is_dir() else [path.with_suffix(""), path.parent]
    return next((folder / "attention" for folder in folders if (folder / "attention").is_dir()), None)


def _review_folder(asked: Asked) -> Path:
    first = asked.paths[0]
    base = asked.reviews or (first.with_name(f"{first.stem}-reviews") if first.is_file() else first / "reviews")
    name = reviewer_name(asked.reviewer)
    folder = base / FileNames()[name]
    # Resolved, so that no link leads there either.
    if asked.slides is not None and folder.resolve().is_relative_to(asked.slides.resolve()):
        raise ConfigError(
            f"Reviews would be stored in {folder}, inside the folder of slides, where nothing is ever written. "
            "Choose another place with --reviews."
        )
    return folder


def _certificate_notes(
    certificate: Certificate | None, cases: Cases, models: Sequence[Predictions], runs: Sequence[str]
) -> list[str]:
    """A certificate holds for its own weights; a note says so where those cannot be compared.

    `runs` are the weights of runs; tables of ours state theirs in the file beside them.
    """
    if certificate is None:
        return []
    notes = [*certificate.reservations, *certificate.notes, *(() if cases.certified is None else cases.certified.notes)]
    stated = all(model.weights for model in models) and bool(certificate.weights)
    if runs or stated:
        certificate.refuse_other_weights(tuple(runs or dict.fromkeys(one for model in models for one in model.weights)))
    else:
        notes.append("Whether these predictions come from the certified weights cannot be determined from a table.")
    return notes


def _notes(asked: Asked, shelf: Shelf, cases: Cases, journal: Journal) -> Iterator[str]:
    """What slides are missing, which patients the model has seen, and what the journal holds besides."""
    missing = len(cases) - shelf.num_files
    if asked.slides is None:
        yield "No folder of slides was given (--slides), so there are no pictures."
    elif missing:
        yield f"{missing} of {len(cases)} slides have no usable file in the slide folder."
    yield from admit("viewing", cases.roles, cases.slides.patient_ids)
    if seen := sum(bool(roles) for roles in cases.roles or ()):
        yield f"{seen} of {len(cases)} slides are of patients that the model has seen; they carry a badge."
    if journal.skipped:
        yield f"{journal.skipped} damaged lines of the journal of reviews were skipped."
    if others := journal.of_other_predictions():
        yield f"{others} earlier reviews belong to other predictions; they are kept in reviews.csv, not shown."
    if journal.blind and (shown := len(journal.shown & journal.digests.keys())):
        yield f"{shown} of these slides were shown to {journal.reviewer} before; reading them is not blind."
