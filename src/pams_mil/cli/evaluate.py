"""`pams evaluate`: predict a split with trained runs and audit the result."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from typer import Argument, Exit, Option

from pams_mil.cli.console import list_failures, print_json, print_note, progress_bar
from pams_mil.cli.options import METRIC, SEEN_PATIENTS, out_folder, parse_tag
from pams_mil.errors import ConfigError


def evaluate(
    runs: list[Path] = Argument(
        ..., metavar="RUN...", help="Run folders or cross-validations; the first is the reference."
    ),
    split: str | None = Option(
        None, help="Which split; default: test, and all labeled slides of another table without splits."
    ),
    manifest: Path | None = Option(None, help="Another cohort table, e.g. of another hospital."),
    features: Path | None = Option(None, help="Feature files of that table."),
    calibrated: bool = Option(False, "--calibrated", help="Calibrated probabilities; see 'pams calibrate'."),
    classes: list[str] | None = Option(
        None, help="Refuse runs that were trained with other classes. Again: another order of them."
    ),
    out: Path | None = Option(
        None, callback=out_folder, help="Folder for the report; default: <first run>/reports/<table>-<split>."
    ),
    match_on: str | None = Option(
        None,
        metavar="SPLIT",
        help="Score every other run also at the κ that has, on this split, the false alarms of the first; e.g. val.",
    ),
    json: bool = Option(False, "--json", help="Print the scores as JSON instead of a table."),
    tag: str | None = Option(None, help="COLUMN=VALUE: score this subset beside the whole."),
    resamples: int = Option(2000, min=0, help="Resamples of patients for intervals; 0: none."),
    metric: list[str] | None = METRIC,
    seen_patients: bool = SEEN_PATIENTS,
    trust_code: bool = Option(False, "--trust-code", help="Allow runs that name your own methods or models."),
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
    from pams_mil.cli.audit_table import audit_command, show, view_command, write
    from pams_mil.engine.prediction.hub import is_hub
    from pams_mil.engine.prediction.scored_runs import at_matched_false_alarms, score_run, unique_names
    from pams_mil.engine.run.cv_folder import CrossValidationFolder
    from pams_mil.engine.run.folder import RunFolder
    from pams_mil.engine.tuning.committee_report import report_committee
    from pams_mil.evaluate.audit import audit
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.report.live import Links

    if out is None and any(map(is_hub, runs)):
        raise ConfigError("Reports on a model on the hub need a folder of their own; say where with --out.")
    names, pair = unique_names(runs), parse_tag(tag)
    stated = ClassHierarchy.load(classes) if classes else None
    with progress_bar() as progress:
        scored = [
            score_run(
                run, name, manifest, split, features=features, calibrated=calibrated, stated=stated,
                tags=(pair or ())[:1], trusted=trust_code, load=match_on is not None,
                progress=partial(progress, f"Predicting {name}"),
            )
            for run, name in zip(runs, names, strict=True)
        ]  # fmt: skip
        models = [one.model for one in scored]
        if match_on is not None:
            models += at_matched_false_alarms(
                [one.runs for one in scored], models, match_on, split, calibrated=calibrated
            )
        folds = CrossValidationFolder(runs[0])
        if len(models) == 1 and manifest is None and folds.members and not (pair or stated):
            result = report_committee(folds, models[0].hierarchy, resamples=resamples, progress=progress)
        else:
            result = audit(models, tag=pair, resamples=resamples, progress=progress, seen_patients=seen_patients)
    # Predictions are kept with their run; a model on the hub has no folder here.
    homes = [
        RunFolder(out / name) if out is not None and is_hub(run) else RunFolder.at(run)
        for run, name in zip(runs, names, strict=True)
    ]
    files = [one.keep(home, manifest, calibrated=calibrated) for one, home in zip(scored, homes, strict=True)]
    out_of_fold = scored[0].slides is None
    own = homes[0].report(files[0].stem if len(runs) == 1 else f"{files[0].stem}-compared")
    # What a cross-validation says of itself stays, also for its model card.
    folder = out or (homes[0].path / "report" if out_of_fold and len(runs) == 1 else own)
    shown = [names[0] if result.committee is None else result.committee.name, *names[1:]]
    asked = {"--manifest": manifest, "--features": features, "--split": split}
    words = [word for option in asked.items() if option[1] is not None for word in option]
    seen = ["--seen-patients"] if seen_patients else []
    links = {}
    for name, run, one, file in zip(shown, runs, scored, files, strict=True):
        view, known = view_command(run, *words), classes or one.classes
        links[name] = audit_command(name, [file], known, *seen, view=view) if known else Links(view=view)
    write(result, folder, links)
    if out is None and not out_of_fold:
        homes[0].keep_report(folder.name, [model.weights for model in models])
    if json:
        print_json(result.to_json())
    else:
        show(result)
    print_note(f"Report: {folder / 'report.html'}")
    predicted = {name: one.slides for name, one in zip(names, scored, strict=True) if one.slides is not None}
    for name, slides in predicted.items():
        list_failures(slides, name=name)
    if any(slides.failures for slides in predicted.values()):
        raise Exit(1)
