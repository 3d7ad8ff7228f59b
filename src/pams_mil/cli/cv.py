"""`pams cv`: cross-validation in one command, from a table of labels to one report."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import make_table, output, print_json, print_note, progress_bar, trust_option
from pams_mil.cli.options import CLASSES_HELP, FOLDS, VAL_SHARE, TableOptions, WorkerOptions, out_folder
from pams_mil.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pams_mil.engine.grid.cross_validation import CrossValidation
    from pams_mil.engine.grid.grid import Engine, Progress
    from pams_mil.evaluate.predictions.predictions import Predictions

_SHOWN = ("acc", "auc", "ascc", "asmc", "missed_rate", "false_alarm_rate")


def cv(
    manifest: Path = typer.Argument(..., metavar="LABELS", help="Cohort table: CSV, TSV, xlsx or parquet."),
    changes: list[str] | None = typer.Argument(None, metavar="[KEY=VALUE]...", help="Settings, e.g. patience=5."),
    classes: list[str] = typer.Option(..., "--classes", help=CLASSES_HELP),
    features: Path | None = typer.Option(None, "--features", help="Folder of feature files, or a pack."),
    folds: int | None = FOLDS,
    val_share: float | None = VAL_SHARE,
    method: str | None = typer.Option(None, "--method", help="Training method, e.g. pams or ce; not for a committee."),
    model: str | None = typer.Option(None, "--model", help="Model, e.g. abmil or dtfd; not for a committee."),
    committee: str = typer.Option("committee", "--committee", help="The members: a YAML file of recipes of your own."),
    members: int | None = typer.Option(None, "--members", min=2, help="Only the first members of the committee."),
    reference: int | None = typer.Option(
        None, "--reference", min=0, help="Plain networks per fold to compare a committee with; default: as many."
    ),
    epochs: int | None = typer.Option(
        None, "--epochs", min=1, help="Passes over the training slides; default 50, for a committee its file's."
    ),
    lr: float | None = typer.Option(None, "--lr", help="Learning rate; default 1e-4, for a committee its file's."),
    seed: int = typer.Option(0, "--seed", help="Seed of the folds and of everything else that is random."),
    seeds: int = typer.Option(
        1,
        "--seeds",
        min=1,
        help="Models per fold, with the seeds SEED, SEED + 1, ...; their probabilities are averaged.",
    ),
    out: Path | None = typer.Option(
        None, "--out", callback=out_folder, help="Folder; default cv/<method>-<model>-seed<seed>."
    ),
    workers: WorkerOptions = WorkerOptions(),
    reading: TableOptions = TableOptions(),
    resamples: int = typer.Option(2000, "--resamples", min=0, help="Resamples of patients for intervals; 0: none."),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON instead of tables."),
) -> None:
    """Split by patient, train every fold, and score all slides, each by the fold that did not train on it.

    Without --method and --model a committee is trained: eight small models that err differently, averaged, compared
    with as many plain networks. Ctrl-C saves; the same command goes on. 'pams predict FOLDER' then predicts with the
    mean of all.

    Example: pams cv labels.csv --classes bracs --features features --folds 5 --method pams --epochs 20 --out cv/pams
    """
    from pams_mil import atomic
    from pams_mil.cli.audit_table import audit_command, show, view_command, write
    from pams_mil.engine.config.run_config import short_name
    from pams_mil.engine.grid.cross_validation import best_epochs, cross_validate, train_committee
    from pams_mil.engine.grid.folds import fold_cohort
    from pams_mil.engine.run.folder import read_settings
    from pams_mil.engine.tuning.committee_report import read_pooled, report_committee
    from pams_mil.engine.tuning.recipes import load_committee
    from pams_mil.evaluate.audit import audit
    from pams_mil.hierarchy import ClassHierarchy

    hierarchy = ClassHierarchy.load(classes)
    options = {
        "data.manifest": manifest, "data.features": features, "classes": classes, "method": method,
        "model": model, "training.epochs": epochs, "training.lr": lr, "seed": seed,
    }  # fmt: skip
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
    split = folded.split
    for note in folded.notes:
        print_note(note)
    if several:
        recipe = load_committee(committee, most=members)
        shared = {"data": {"manifest": manifest, "features": features}, "classes": classes,
                  "training": dict(recipe.training), "seed": seed}  # fmt: skip
        own = [*(changes or []), *(f"{key}={value}" for key, value in (("epochs", epochs), ("lr", lr)) if value)]
        configs = {member.name: member.config(shared, tuple(own)) for member in recipe.recipes}
        folder = out or Path("cv") / f"committee-seed{seed}"
        networks = len(configs) if reference is None else reference

        def work(engine: Engine, tell: Progress) -> CrossValidation:
            plain = recipe.reference.config(shared, tuple(own))
            return train_committee(configs, folded, folder, engine, reference=plain, networks=networks, progress=tell)

        name = f"committee of {len(configs)}, {len(split.folds)} folds"
    else:
        config = read_settings(changes or [], options, out=None, resume=False)
        method_name, model_name = short_name(config.method.name), short_name(config.model.name)
        folder = out or Path("cv") / f"{method_name}-{model_name}-seed{config.seed}"
        numbers = range(config.seed, config.seed + seeds)

        def work(engine: Engine, tell: Progress) -> CrossValidation:
            return cross_validate(config, folded, folder, engine, seeds=numbers, progress=tell)

        of_seeds = f" x {seeds} seeds" if seeds > 1 else ""
        name = f"{method_name} {model_name}, {len(split.folds)} folds{of_seeds}"
    done = _train(work, folder, runner)
    pooled = read_pooled(done.folder, hierarchy, name)
    by_fold = _by_fold(pooled, len(split.folds))
    scores = _scores(by_fold, best_epochs(done.folder, len(by_fold)))
    atomic.write_csv(done.folder.folds_file, list(scores[0]), (list(row.values()) for row in scores))
    with progress_bar() as progress:
        if several:
            result = report_committee(done.folder, hierarchy, resamples=resamples, progress=progress)
        else:
            result = audit([pooled], resamples=resamples, progress=progress)
    names = [model.name for model in result.models]
    # Of a committee the reference, averaged, is last; its single networks are in no one file.
    files = {names[-1]: done.folder.reference.predictions_file} if len(names) > 1 else {}
    files[names[0]] = done.folder.predictions_file
    commands = {name: audit_command(name, [file], classes) for name, file in files.items()}
    write(result, folder / "report", commands, dict.fromkeys(names, view_command(folder)))
    if json:
        print_json({**result.to_json(), "folder": str(folder), "folds": scores, "notes": list(done.notes)})
    else:
        _show_folds(scores)
        show(result)
    print_note(f"Report: {folder / 'report' / 'report.html'}. Out-of-fold predictions: {done.folder.predictions_file}.")
    again = f"pams predict {quote(str(folder))} SLIDES.csv --features FEATURES{trust_option(folder)}"
    print_note(f"Predict other slides with the mean of the folds: {again}")


def is_committee(method: str | None, model: str | None, changes: list[str]) -> bool:
    """Whether nothing says which method or model to train.

    >>> is_committee(None, None, ["epochs=3"]), is_committee(None, None, ["model.name=dtfd"])
    (True, False)
    """
    named = (change.partition("=")[0].partition(".")[0] for change in changes)
    return method is None and model is None and not any(key in ("method", "model", "pairing") for key in named)


def _train(work: Callable[[Engine, Progress], CrossValidation], folder: Path, engine: Engine) -> CrossValidation:
    from pams_mil.cli.grid_bar import grid_bar

    try:
        with grid_bar() as tell:
            done = work(engine, tell)
    except KeyboardInterrupt:
        print_note(f"Stopped; what was trained is in {folder}. Go on with the same command.")
        raise typer.Exit(130) from None
    for line in done.notes:
        print_note(line)
    if done.failures:
        for fold, reason in done.failures.items():
            print_note(f"{fold}: {reason}", style="red")
        print_note(f"{len(done.failures)} of {len(done.grid.cells)} runs failed; the same command tries them again.")
        raise typer.Exit(1)
    return done


def _by_fold(pooled: Predictions, folds: int) -> list[Predictions]:
    import numpy as np

    # Where folds of the table overlap, a slide is tested by several, and its cell says "0 2".
    tested = [cell.split() for cell in pooled.tags["fold"]]
    return [pooled.where(np.array([str(fold) in cell for cell in tested])) for fold in range(folds)]


def _scores(by_fold: list[Predictions], epochs: list[int]) -> list[dict[str, Any]]:
    from pams_mil.evaluate.scores import score

    rows = []
    for fold, (tested, epoch) in enumerate(zip(by_fold, epochs, strict=True)):
        finest = score(tested, resamples=0)[-1]
        values = {key: finest.values[key] for key in _SHOWN}
        rows.append(
            {"fold": fold, "slides": len(tested), "patients": tested.num_patients, "best_epoch": epoch, **values}
        )
    return rows


def _show_folds(scores: list[dict[str, Any]]) -> None:
    """Every fold by itself, so that one can see how much they differ."""
    from pams_mil.metrics.metric import METRICS
    from pams_mil.report.page import format_value

    facts = ("fold", "slides", "patients", "best_epoch")
    rows = [
        [*(f"{row[key]:,}" for key in facts),
         *(format_value(row[key], key).removesuffix("%").rstrip() for key in _SHOWN)]
        for row in scores
    ]  # fmt: skip
    heads = ("fold", "slides", "patients", "epoch", *(METRICS[key].label for key in _SHOWN))
    output.print(make_table(heads, rows, title="Every fold by itself, in percent", left=0))
