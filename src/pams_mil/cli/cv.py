"""`pams cv`: cross-validation in one command, from a table of labels to one report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from typer import Argument, Option

from pams_mil.cli.console import make_table, output, print_json, print_note, progress_bar, trust_option
from pams_mil.cli.grid_bar import refuse_failures, training_bar
from pams_mil.cli.options import CLASSES_HELP, FOLDS, VAL_SHARE, TableOptions, WorkerOptions, out_folder
from pams_mil.errors import ConfigError


def cv(
    manifest: Path = Argument(..., metavar="LABELS", help="Cohort table: CSV, TSV, xlsx or parquet."),
    changes: list[str] | None = Argument(None, metavar="[KEY=VALUE]...", help="Settings, e.g. patience=5."),
    classes: list[str] = Option(..., help=CLASSES_HELP),
    features: Path | None = Option(None, help="Folder of feature files, or a pack."),
    folds: int | None = FOLDS,
    val_share: float | None = VAL_SHARE,
    method: str | None = Option(None, help="Training method, e.g. pams or ce; not for a committee."),
    model: str | None = Option(None, help="Model, e.g. abmil or dtfd; not for a committee."),
    committee: str = Option("committee", help="The members: a YAML file of recipes of your own."),
    members: int | None = Option(None, min=2, help="Only the first members of the committee."),
    reference: int | None = Option(
        None, min=0, help="Plain networks per fold to compare a committee with; default: as many."
    ),
    epochs: int | None = Option(
        None, min=1, help="Passes over the training slides; default 50, for a committee its file's."
    ),
    lr: float | None = Option(None, help="Learning rate; default 1e-4, for a committee its file's."),
    seed: int = Option(0, help="Seed of the folds and of everything else that is random."),
    seeds: int = Option(
        1, min=1, help="Models per fold, with the seeds SEED, SEED + 1, ...; their probabilities are averaged."
    ),
    out: Path | None = Option(None, callback=out_folder, help="Folder; default cv/<method>-<model>-seed<seed>."),
    workers: WorkerOptions = WorkerOptions(),
    reading: TableOptions = TableOptions(),
    resamples: int = Option(2000, min=0, help="Resamples of patients for intervals; 0: none."),
    json: bool = Option(False, "--json", help="Print the scores as JSON instead of tables."),
) -> None:
    """Split by patient, train every fold, and score all slides, each by the fold that did not train on it.

    Without --method and --model a committee is trained: eight small models that err differently, averaged, compared
    with as many plain networks. Ctrl-C saves; the same command goes on. 'pams predict FOLDER' then predicts with the
    mean of all.

    Example: pams cv labels.csv --classes bracs --features features --folds 5 --out cv/committee
    """
    from pams_mil.cli.audit_table import audit_command, show, view_command, write
    from pams_mil.engine.config.run_config import short_name
    from pams_mil.engine.grid.cross_validation import cross_validate, score_folds, train_committee
    from pams_mil.engine.grid.folds import fold_cohort
    from pams_mil.engine.run.cv_folder import CrossValidationFolder
    from pams_mil.engine.run.folder import read_settings
    from pams_mil.engine.tuning.committee_report import report_committee
    from pams_mil.engine.tuning.recipes import load_committee
    from pams_mil.evaluate.audit import audit
    from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.report.live import Links

    hierarchy = ClassHierarchy.load(classes)
    several = is_committee(method, model, changes or [])
    if several and seeds > 1:
        raise ConfigError("--seeds goes with --method or --model; a committee has members instead, see --members.")
    if not several and (members is not None or reference is not None or committee != "committee"):
        raise ConfigError(
            "--committee, --members and --reference go with a committee, which is trained where neither a method nor a "
            "model is named; found --method, --model, or a setting of one."
        )
    runner = workers.start()
    folded = fold_cohort(manifest, hierarchy, folds, val_share, seed, reading.options())
    for note in folded.notes:
        print_note(note)
    name, data = f"{len(folded)} folds", {"manifest": manifest, "features": features}
    if several:
        recipe = load_committee(committee, most=members)
        shared = {"data": data, "classes": classes, "training": dict(recipe.training), "seed": seed}
        stated = {"epochs": epochs, "lr": lr}
        own = (*(changes or []), *(f"{key}={value}" for key, value in stated.items() if value is not None))
        configs = {member.name: member.config(shared, own) for member in recipe.recipes}
        folder = out or Path("cv") / f"committee-seed{seed}"
        name = f"committee of {len(configs)}, {name}"
        networks = len(configs) if reference is None else reference
        work = partial(train_committee, configs, reference=recipe.reference.config(shared, own), networks=networks)
    else:
        options = {
            **{f"data.{key}": value for key, value in data.items()}, "classes": classes, "method": method,
            "model": model, "training.epochs": epochs, "training.lr": lr, "seed": seed,
        }  # fmt: skip
        config = read_settings(changes or [], options, out=None, resume=False)
        named = short_name(config.method.name), short_name(config.model.name)
        folder = out or Path("cv") / f"{'-'.join(named)}-seed{config.seed}"
        name = f"{' '.join(named)}, {name}" + (f" x {seeds} seeds" if seeds > 1 else "")
        work = partial(cross_validate, config, seeds=range(config.seed, config.seed + seeds))
    with training_bar(folder) as tell:
        done, notes = work(folded, folder, runner, progress=tell)
    for line in notes:
        print_note(line)
    lost = f"{len(done.failures)} of {len(done.cells)} runs failed; the same command tries them again."
    refuse_failures(done.failures, lost)
    place = CrossValidationFolder(folder)
    pooled = read_predictions(place.predictions_file, hierarchy, name=name)
    scores = score_folds(place, pooled)
    with progress_bar() as progress:
        if several:
            result = report_committee(place, hierarchy, resamples=resamples, progress=progress)
        else:
            result = audit([pooled], resamples=resamples, progress=progress)
    names = [model.name for model in result.models]
    # Of a committee the reference, averaged, is last; its single networks are in no one file.
    files = {names[-1]: place.reference.predictions_file, names[0]: place.predictions_file}
    view = view_command(folder)
    links = {name: audit_command(name, [file], classes, view=view) for name, file in files.items()}
    write(result, folder / "report", {**dict.fromkeys(names, Links(view=view)), **links})
    if json:
        print_json({**result.to_json(), "folder": str(folder), "folds": scores, "notes": list(notes)})
    else:
        _show_folds(scores)
        show(result)
    print_note(f"Report: {folder / 'report' / 'report.html'}. Out-of-fold predictions: {place.predictions_file}.")
    again = f"pams predict {quote(str(folder))} SLIDES.csv --features FEATURES{trust_option(folder)}"
    print_note(f"Predict other slides with the mean of the folds: {again}")


def is_committee(method: str | None, model: str | None, changes: list[str]) -> bool:
    """Whether nothing says which method or model to train.

    >>> is_committee(None, None, ["epochs=3"]), is_committee(None, None, ["model.name=dtfd"])
    (True, False)
    """
    named = (change.partition("=")[0].partition(".")[0] for change in changes)
    return method is None and model is None and not any(key in ("method", "model", "pairing") for key in named)


def _show_folds(scores: list[dict[str, Any]]) -> None:
    """Every fold by itself, so that one can see how much they differ."""
    from pams_mil.engine.grid.cross_validation import FOLD_SCORES
    from pams_mil.metrics.metric import METRICS
    from pams_mil.report.page import format_value

    facts = {"fold": "fold", "slides": "slides", "patients": "patients", "best_epoch": "epoch"}
    rows = [
        [*(f"{row[key]:,}" for key in facts),
         *(format_value(row[key], key).removesuffix("%").rstrip() for key in FOLD_SCORES)]
        for row in scores
    ]  # fmt: skip
    heads = (*facts.values(), *(METRICS[key].label for key in FOLD_SCORES))
    output.print(make_table(heads, rows, title="Every fold by itself, in percent", left=0))
