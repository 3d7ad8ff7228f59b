"""`pams evaluate`: predict a split with trained runs and audit the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import print_json, print_note, progress_bar
from pams_mil.cli.out_option import out_folder
from pams_mil.errors import ConfigError

if TYPE_CHECKING:
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions
    from pams_mil.evaluate.predictions import Predictions


def evaluate(
    runs: list[Path] = typer.Argument(
        ..., metavar="RUN...", help="Run folders or cross-validations; the first is the reference."
    ),
    split: str = typer.Option("test", "--split", help="Which split of the runs' manifest."),
    manifest: Path | None = typer.Option(None, "--manifest", help="Another cohort table, e.g. of another hospital."),
    features: Path | None = typer.Option(None, "--features", help="Feature files of that table."),
    calibrated: bool = typer.Option(False, "--calibrated", help="Calibrated probabilities; see 'pams calibrate'."),
    classes: str | None = typer.Option(None, "--classes", help="Refuse runs that were trained with other classes."),
    out: Path | None = typer.Option(
        None, "--out", callback=out_folder, help="Folder for the report; default: <first run>/report."
    ),
    match_on: str | None = typer.Option(
        None,
        "--match-on",
        metavar="SPLIT",
        help="Score every other run also with its dial set, on this split, to the false alarms of the first; e.g. val.",
    ),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON instead of a table."),
    tag: str | None = typer.Option(None, "--tag", help="COLUMN=VALUE: score this subset beside the whole."),
    resamples: int = typer.Option(2000, "--resamples", min=0, help="Resamples of patients for intervals; 0: none."),
    trust_code: bool = typer.Option(False, "--trust-code", help="Allow runs that name your own methods or models."),
) -> None:
    """Score trained runs on the test split by how grave their mistakes are, and compare them.

    Slides that cannot be predicted are left out of the scores, listed in the report and below it; the exit code is
    then 1.

    A cross-validation is scored by its out-of-fold predictions; on another table, by the mean of its folds.

    Models are compared as they decide, and at equal false alarms with dials turned on the scored slides. With
    --match-on val they are also compared with dials that were fixed on validation slides, as they would be used.

    Example: pams evaluate runs/ce-abmil-seed0 runs/pams-abmil-seed0
    """
    from pams_mil.cli.audit import parse_tag, show, write
    from pams_mil.cli.predict import list_failures, refuse_other_classes
    from pams_mil.evaluate.audit import audit

    pair = parse_tag(tag)
    with progress_bar() as progress:
        models = []
        predictions: dict[str, SlidePredictions] = {}
        for run, name in zip(runs, _names(runs), strict=True):
            if manifest is None and (run / "cv.json").is_file():
                if calibrated:
                    raise ConfigError(
                        f"The out-of-fold predictions of {run} are not calibrated; leave --calibrated out."
                    )
                models.append(_out_of_fold(run, name, split, classes, pair))
                continue
            found = predict_run(
                run, split=split, manifest=manifest, features=features, trusted=trust_code, calibrated=calibrated,
                # name=name: the function must not see the name of a later run.
                progress=lambda fraction, name=name: progress(f"Predicting {name}", fraction),
            )  # fmt: skip
            if classes is not None:
                refuse_other_classes([found.hierarchy.digest], [run], classes)
            if manifest is None and run.is_dir():
                file = "predictions" if split == "test" else f"predictions_of_{split}"
                found.write(run, name=f"{file}_calibrated" if calibrated else file)
            models.append(found.labeled(name))
            predictions[name] = found
        if match_on is not None:
            models.extend(_with_fixed_dials(runs, models, match_on, split, trusted=trust_code, calibrated=calibrated))
        result = audit(models, tag=pair, resamples=resamples, progress=progress)
    home = runs[0] if runs[0].is_dir() else runs[0].parent  # of a checkpoint
    folder = out or home / ("report_calibrated" if calibrated else "report")
    write(result, folder)
    if json:
        print_json(result.to_json())
    else:
        show(result)
    print_note(f"Report: {folder / 'report.html'}")
    incomplete = {name: found for name, found in predictions.items() if found.failures}
    for name, found in incomplete.items():
        list_failures(found, name=name)
    if incomplete:
        raise typer.Exit(1)


def predict_run(
    run: Path, *, split: str | None, manifest: Path | None = None, features: Path | None = None, **options: Any
) -> SlidePredictions:
    """Predict with a run, by default on its own manifest, read as it was for training."""
    from pams_mil.engine.prediction.predict import predict, predict_own
    from pams_mil.engine.run.folder import open_run
    from pams_mil.engine.run.trained_slides import refuse_trained, trained_slides

    if manifest is not None:
        return predict([run], manifest, split=split, features=features, **options)
    folder = open_run(run)
    # Before predicting: where it cannot be told which slides trained the run, that is said at once.
    seen = trained_slides(folder.path) if split in ("test", "calib") else None
    found = predict_own([run], folder.config().data, split=split, features=features, **options)
    if seen is not None:
        refuse_trained(seen, found.names, found.patient_ids, run)
    return found


def _out_of_fold(run: Path, name: str, split: str, classes: str | None, tag: tuple[str, str] | None) -> Predictions:
    """The predictions of a cross-validation, every slide by the fold that tested it."""
    from pams_mil.cli.predict import refuse_other_classes
    from pams_mil.engine.run import checkpoint
    from pams_mil.engine.run.cv_folder import CrossValidationFolder
    from pams_mil.engine.run.folder import RunFolder
    from pams_mil.engine.run.spec import RunSpec
    from pams_mil.evaluate.prediction_layouts import Source, read_predictions

    if split != "test":
        raise ConfigError(
            f"{run} is a cross-validation; its out-of-fold predictions are of split 'test', not {split!r}."
        )
    folder = CrossValidationFolder(run)
    saved = checkpoint.load(RunFolder(folder.runs()[0]).best)
    hierarchy = RunSpec.from_json(saved.state.get("spec")).hierarchy
    if classes is not None:
        refuse_other_classes([hierarchy.digest], [run], classes)
    return read_predictions(folder.predictions_file, hierarchy, Source(tags=(tag[0],) if tag else ()), name=name)


def _with_fixed_dials(
    runs: list[Path], models: list[Predictions], on: str, scored: str, **options: Any
) -> list[Predictions]:
    """Every model but the first, decided with a dial that was set on another split to the first one's false alarms."""
    from pams_mil.engine.run.cv_folder import CrossValidationFolder
    from pams_mil.evaluate.fixed_dial import at_fixed_dial, matching_kappa

    if on == scored:
        raise ConfigError(
            f"--match-on {on}: dials must be set on other slides than those that are scored (--split {scored}). "
            "Models are always compared at equal false alarms of the scored slides too; that needs no option."
        )
    if len(runs) < 2:
        raise ConfigError("--match-on compares runs with the first one; name at least two.")
    parts = []
    for run in runs:
        # Each fold predicts the slides that validated it; one dial is then set on all of them together.
        folds = CrossValidationFolder(run).runs() if (run / "cv.json").is_file() else [run]
        parts.append([predict_run(fold, split=on, **options).labeled(str(fold)) for fold in folds])
    return [
        at_fixed_dial(model, matching_kappa(parts[0], own), reference=models[0].name, split=on)
        for model, own in zip(models[1:], parts[1:], strict=True)
    ]


def _names(runs: list[Path]) -> list[str]:
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]
