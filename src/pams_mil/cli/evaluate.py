"""`pams evaluate`: predict a split with trained runs and audit the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pams_mil.cli.console import list_failures, print_json, print_note, progress_bar
from pams_mil.cli.options import METRIC, SEEN_PATIENTS, add_metrics, out_folder
from pams_mil.errors import ConfigError

if TYPE_CHECKING:
    from pams_mil.engine.prediction.predict import LoadedRun
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions
    from pams_mil.engine.run.folder import RunFolder


def evaluate(
    runs: list[Path] = typer.Argument(
        ..., metavar="RUN...", help="Run folders or cross-validations; the first is the reference."
    ),
    split: str | None = typer.Option(
        None, "--split", help="Which split; default: test, and all labeled slides of another table without splits."
    ),
    manifest: Path | None = typer.Option(None, "--manifest", help="Another cohort table, e.g. of another hospital."),
    features: Path | None = typer.Option(None, "--features", help="Feature files of that table."),
    calibrated: bool = typer.Option(False, "--calibrated", help="Calibrated probabilities; see 'pams calibrate'."),
    classes: list[str] | None = typer.Option(
        None, "--classes", help="Refuse runs that were trained with other classes. Again: another order of them."
    ),
    out: Path | None = typer.Option(
        None, "--out", callback=out_folder, help="Folder for the report; default: <first run>/reports/<table>-<split>."
    ),
    match_on: str | None = typer.Option(
        None,
        "--match-on",
        metavar="SPLIT",
        help="Score every other run also at the κ that has, on this split, the false alarms of the first; e.g. val.",
    ),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON instead of a table."),
    tag: str | None = typer.Option(None, "--tag", help="COLUMN=VALUE: score this subset beside the whole."),
    resamples: int = typer.Option(2000, "--resamples", min=0, help="Resamples of patients for intervals; 0: none."),
    metric: list[str] | None = METRIC,
    seen_patients: bool = SEEN_PATIENTS,
    trust_code: bool = typer.Option(False, "--trust-code", help="Allow runs that name your own methods or models."),
) -> None:
    """Score trained runs on the test split by how grave their mistakes are, and compare them.

    Slides that cannot be predicted are left out of the scores, listed in the report and below it; the exit code is
    then 1.

    A cross-validation is scored by its out-of-fold predictions; on another table, by the mean of its folds. A committee
    is also compared with its reference, member by member, as 'pams cv' does.

    Patients that a run has seen in training, or that chose its epoch, are refused: scores would be too good. With
    --manifest the labeled slides of another hospital are scored, which is external validation.

    Runs that were trained with several orders of urgency are scored under each of them, or under those of --classes.

    Models are compared as they decide, and at equal false alarms, with κ set on the scored slides. With --match-on val
    they are also compared with κ set on validation slides, as they would be used.

    Example: pams evaluate runs/ce-abmil-seed0 runs/pams-abmil-seed0
    """
    from pams_mil.cli.audit_table import audit_command, parse_tag, show, view_command, write
    from pams_mil.engine.prediction.hub import is_hub
    from pams_mil.engine.prediction.predict import load_runs
    from pams_mil.engine.prediction.scored_runs import (
        at_matched_false_alarms,
        labeled_slides,
        out_of_fold,
        predict_to_score,
        refuse_other_classes,
        unique_names,
    )
    from pams_mil.engine.run.cv_folder import CrossValidationFolder
    from pams_mil.engine.run.folder import RunFolder
    from pams_mil.engine.tuning.committee_report import report_committee
    from pams_mil.evaluate.audit import audit
    from pams_mil.hierarchy import ClassHierarchy

    add_metrics(metric)
    if out is None and any(map(is_hub, runs)):
        raise ConfigError("Reports on a model on the hub need a folder of their own; say where with --out.")
    # Predictions are kept with their run; a model on the hub has no folder here.
    homes = [
        RunFolder(out / name) if out is not None and is_hub(run) else RunFolder.at(run)
        for run, name in zip(runs, unique_names(runs), strict=True)
    ]
    pair = parse_tag(tag)
    stated = ClassHierarchy.load(classes) if classes else None
    models = []
    loaded: list[list[LoadedRun]] = []
    predictions: dict[str, SlidePredictions] = {}
    with progress_bar() as progress:
        for run, name in zip(runs, unique_names(runs), strict=True):
            folds = CrossValidationFolder(run)
            pooled = manifest is None and folds.exists()
            if pooled and (calibrated or split not in (None, "test")):
                raise ConfigError(
                    f"The out-of-fold predictions of {run} are of the split 'test' and not calibrated; leave --split "
                    "and --calibrated out."
                )
            loaded.append([] if pooled and match_on is None else load_runs([run], trusted=trust_code))
            if pooled:
                model = out_of_fold(folds, name, tags=(pair[0],) if pair else ())
            else:
                slides = predict_to_score(
                    loaded[-1], table=manifest, split=split, features=features, calibrated=calibrated,
                    # name=name: the function must not see the name of a later run.
                    progress=lambda fraction, name=name: progress(f"Predicting {name}", fraction),
                )  # fmt: skip
                predictions[name] = slides
                model = labeled_slides(slides, name, external=manifest is not None)
            if stated is not None:
                refuse_other_classes([model.hierarchy], [run], stated)
                model = model.with_orders(stated)
            models.append(model)
        if match_on is not None:
            models.extend(at_matched_false_alarms(loaded, models, match_on, split, calibrated=calibrated))
        committee = CrossValidationFolder(runs[0])
        if len(models) == 1 and manifest is None and committee.members and not (pair or stated):
            result = report_committee(committee, models[0].hierarchy, resamples=resamples, progress=progress)
        else:
            result = audit(models, tag=pair, resamples=resamples, progress=progress, seen_patients=seen_patients)
    slots = [
        _keep(home, predictions[name], manifest or group[0].folder.config().data.manifest, calibrated=calibrated)
        if name in predictions
        else ""
        for home, name, group in zip(homes, unique_names(runs), loaded, strict=True)
    ]
    names = [models[0].name] if result.committee is None else [result.committee.name]
    names += unique_names(runs)[1:]
    folder = out or _report(runs, slots[0])
    asked = {"--manifest": manifest, "--features": features, "--split": split}
    words = [str(word) for option in asked.items() if option[1] is not None for word in option]
    views = {one: view_command(run, *words) for run, one in zip(runs, names, strict=True)}
    commands = {
        one: audit_command(
            one, [_file(home, slot)], classes or _classes(run), *(["--seen-patients"] if seen_patients else [])
        )
        for run, home, slot, one in zip(runs, homes, slots, names, strict=True)
        if classes or _classes(run)
    }
    write(result, folder, commands, views)
    if out is None and slots[0]:
        RunFolder(folder.parents[1]).keep_report(folder.name, [model.weights for model in models])
    if json:
        print_json(result.to_json())
    else:
        show(result)
    print_note(f"Report: {folder / 'report.html'}")
    incomplete = {name: slides for name, slides in predictions.items() if slides.failures}
    for name, slides in incomplete.items():
        list_failures(slides, name=name)
    if incomplete:
        raise typer.Exit(1)


def _keep(folder: RunFolder, predictions: SlidePredictions, table: Path, *, calibrated: bool) -> str:
    """Keep predictions with the run, under a name of their own; returns the name."""
    slot = folder.slot(table, predictions.table["split"], *(["calibrated"] if calibrated else []))
    predictions.write(folder.predictions, name=slot)
    return slot


def _file(folder: RunFolder, slot: str) -> Path:
    """The file of the predictions that were scored: kept under a name, or out of fold."""
    from pams_mil.engine.run.cv_folder import CrossValidationFolder

    return folder.predictions / f"{slot}.csv" if slot else CrossValidationFolder(folder.path).predictions_file


def _classes(run: Path) -> tuple[str, ...]:
    """The class files that a run was trained with; none where a folder holds no config, such as an export."""
    from pams_mil.engine.run.cv_folder import CrossValidationFolder
    from pams_mil.engine.run.folder import RunFolder

    folds = CrossValidationFolder(run)
    home = RunFolder(folds.runs()[0]) if folds.exists() else RunFolder.at(run)
    classes = home.config().classes if home.exists() else ()
    return (classes,) if isinstance(classes, str) else tuple(classes)


def _report(runs: list[Path], slot: str) -> Path:
    from pams_mil.engine.run.folder import RunFolder

    home = RunFolder.at(runs[0])
    if not slot:  # out-of-fold predictions
        return home.path / "report"
    return home.report(slot if len(runs) == 1 else f"{slot}-compared")
