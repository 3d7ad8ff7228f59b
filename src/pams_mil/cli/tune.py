"""`pams tune`: which recipe suits a cohort, chosen on validation slides within a budget, then tested once."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import (
    list_failures,
    make_table,
    output,
    print_json,
    print_note,
    print_result,
    progress_bar,
    trust_option,
)
from pams_mil.cli.options import CLASSES_HELP, FOLDS, VAL_SHARE, TableOptions, WorkerOptions, out_folder
from pams_mil.errors import ConfigError

if TYPE_CHECKING:
    from pams_mil.engine.run.cv_folder import CrossValidationFolder
    from pams_mil.engine.tuning.recipes import Space
    from pams_mil.engine.tuning.tune import Tuning, TuningTask
    from pams_mil.engine.tuning.tuning_folder import TuningFolder
    from pams_mil.evaluate.audit import Audit
    from pams_mil.evaluate.predictions.predictions import Predictions
    from pams_mil.report.live import Again


def tune(
    manifest: Path | None = typer.Argument(None, metavar="LABELS", help="Cohort table: CSV, TSV, xlsx or parquet."),
    changes: list[str] | None = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Settings of all recipes, e.g. epochs=30 or model.embedding_features=128."
    ),
    classes: list[str] | None = typer.Option(None, "--classes", help=CLASSES_HELP),
    features: Path | None = typer.Option(None, "--features", help="Folder of feature files, or a pack."),
    folds: int | None = FOLDS,
    val_share: float | None = VAL_SHARE,
    budget: float = typer.Option(60.0, "--budget", min=0.01, help="Minutes of wall time for trying recipes."),
    space: str = typer.Option("default", "--space", help="default, quick, or a YAML file; see docs/tune.md."),
    show_space: bool = typer.Option(False, "--list", help="Only show the recipes of the space."),
    seeds: int = typer.Option(3, "--seeds", min=1, help="Seeds of the last rung, and of the chosen ensemble."),
    seed: int = typer.Option(0, "--seed", help="The first seed, also of the folds."),
    all_slides: bool = typer.Option(
        False, "--all-slides", help="Also put the slides into folds that the table's column split calls test or calib."
    ),
    out: Path = typer.Option(Path("tune"), "--out", callback=out_folder, help="Folder for runs and report."),
    workers: WorkerOptions = WorkerOptions(),
    reading: TableOptions = TableOptions(),
    resamples: int = typer.Option(2000, "--resamples", min=0, help="Resamples of patients for intervals; 0: none."),
    json: bool = typer.Option(False, "--json", help="Print the record and the comparison as JSON."),
) -> None:
    """Try recipes on the folds of a cohort, average the five best on validation slides, and test against cross-entropy.

    Many recipes on few folds, a third of them on all folds, a third of those with more seeds. The result is the mean of
    the best five; beside it stands a single one, the simplest within one standard error of the best urgency AUC. Slides
    that the column split calls test are held out of everything and scored last. Ctrl-C saves; the same command goes on,
    and a larger budget goes further.

    Example: pams tune labels.csv --classes bracs --features features --folds 5 --budget 30 --out tuned
    """
    from pams_mil.engine.grid.folds import fold_cohort
    from pams_mil.engine.tuning.recipes import REFERENCE, load_space
    from pams_mil.engine.tuning.tune import TuningTask
    from pams_mil.evaluate.audit import audit
    from pams_mil.hierarchy import ClassHierarchy

    chosen_space = load_space(space)
    if show_space:
        _show_space(chosen_space, tuple(changes or ()))
        return
    if manifest is None or not classes:
        raise ConfigError("Expected a table of labels and --classes: pams tune LABELS.csv --classes bracs ...")
    how = reading.options()
    shared = {
        "data": {"manifest": manifest, "features": features}, "classes": classes,
        "training": dict(chosen_space.training), "seed": seed,
    }  # fmt: skip
    hierarchy = ClassHierarchy.load(classes)
    folded = fold_cohort(
        manifest, hierarchy, folds, val_share, seed, how, held_out=() if all_slides else ("test", "calib")
    )
    for note in folded.notes:
        print_note(note)
    cohort, split, held_out = folded.cohort, folded.split, folded.held_out
    if held_out:
        print_note(
            f"{held_out:,} slides of the split test are held out: they are in no fold, and scored after the choice."
        )
    all_seeds = tuple(range(seed, seed + seeds))
    task = TuningTask(chosen_space, shared, tuple(changes or ()), cohort, split, hierarchy, all_seeds)
    task.simplicity  # noqa: B018  builds every recipe, so that a wrong setting is refused before any run
    tuning = _run(task, out, workers.start(), budget)
    name = str(tuning.folder.choice["recipe"])
    by_fold = list(tuning.folder.choice["by_fold"])
    audits: dict[str, Audit] = {}
    with progress_bar() as progress:
        # What the choice has not seen leads.
        if held_out:
            print_note(f"Predicting the {held_out:,} slides that were held out.")
            models = _held_out(tuning, manifest, task, how)
            audits["report_held_out"] = audit(models, resamples=resamples, progress=progress)
        # Where every fold would have chosen the same recipe, this is the comparison below.
        if set(by_fold) - {name}:
            audits["report_by_fold"] = audit(_by_fold(tuning, by_fold), resamples=resamples, progress=progress)
        audits["report"] = audit(_out_of_fold(tuning), resamples=resamples, progress=progress)
    _write(tuning, audits, held_out)
    if json:
        _print_json(tuning, audits)
    else:
        _show(tuning.folder, audits)
    folder = tuning.folder.mean.path
    reference = "" if name == REFERENCE else f" The reference: {tuning.folder.recipe(REFERENCE).path}."
    print_note(
        f"Report: {tuning.folder.report_file}. The mean of the best recipes: {folder}. The single one: "
        f"{tuning.folder.recipe(name).path}.{reference}"
    )
    again = f"pams predict {quote(str(folder))} SLIDES.csv --features FEATURES{trust_option(folder)}"
    print_note(f"Predict other slides with all its runs: {again}")


def _run(task: TuningTask, out: Path, engine: Any, budget: float) -> Tuning:
    """Choose, and make the chosen recipe and the reference cross-validations."""
    from pams_mil.cli.grid_bar import grid_bar
    from pams_mil.engine.tuning.recipes import REFERENCE
    from pams_mil.engine.tuning.tune import Tuning

    try:
        with grid_bar() as tell:
            tuning = Tuning(task, out, engine, budget, say=print_note, progress=lambda share, _: tell(share, ""))
            chosen = tuning.run()
            choice = tuning.folder.choice
            done = tuning.finish([REFERENCE, chosen.name, *choice["mean_of"], *choice["by_fold"]])
    except KeyboardInterrupt:
        print_note(f"Stopped; what was trained is in {out}. Go on with the same command.")
        raise typer.Exit(130) from None
    failures = {f"{name}, {run}": reason for name, one in done.items() for run, reason in one.failures.items()}
    for run, reason in failures.items():
        print_note(f"{run}: {reason}", style="red")
    if failures:
        print_note("The chosen recipe could not be completed; the same command tries it again.")
        raise typer.Exit(1)
    return tuning


def _models(tuning: Tuning) -> dict[str, CrossValidationFolder]:
    """What is compared, by name: the reference, the chosen recipe, and the mean of the best ones."""
    from pams_mil.engine.tuning.recipes import REFERENCE

    folder = tuning.folder
    models = {name: folder.recipe(name) for name in (REFERENCE, str(folder.choice["recipe"]))}
    return {**models, f"mean of the best {len(folder.choice['mean_of'])}": folder.mean}


def _out_of_fold(tuning: Tuning) -> list[Predictions]:
    """All models, every slide by the fold that tested it."""
    from pams_mil.evaluate.predictions.prediction_layouts import read_predictions

    hierarchy = tuning.task.hierarchy
    return [read_predictions(folder.predictions_file, hierarchy, name=name) for name, folder in _models(tuning).items()]


def _by_fold(tuning: Tuning, by_fold: list[str]) -> list[Predictions]:
    """The reference, and each fold by the recipe that was chosen without its test patients."""
    from pams_mil.engine.tuning.choice import predictions_by_fold

    folders = [tuning.folder.recipe(one) for one in by_fold]
    reference = _out_of_fold(tuning)[0]
    return [reference, predictions_by_fold(folders, tuning.task.hierarchy)]


def _held_out(tuning: Tuning, manifest: Path, task: TuningTask, reading: dict[str, Any]) -> list[Predictions]:
    """The same on the slides that were in no fold, each by all its runs together."""
    from pams_mil.engine.prediction.predict import predict

    models = []
    for one, folder in _models(tuning).items():
        # Trusted: these runs were trained by this very command, from settings that the user typed.
        predictions = predict(
            [folder.path], manifest, split="test", features=task.shared["data"]["features"], trusted=True, **reading
        )
        predictions.write(folder.path, name="held_out")
        if predictions.failures:
            list_failures(predictions, name=one)
        models.append(predictions.labeled(one))
    return models


def _write(tuning: Tuning, audits: dict[str, Audit], held_out: int) -> None:
    """The comparison's pages, and the page of the tuning, which links to them."""
    from pams_mil import atomic
    from pams_mil.cli.audit_table import audit_command, view_command, write
    from pams_mil.report.tune_page import tune_page

    folder = tuning.folder
    names = {model.name for result in audits.values() for model in result.models}
    models = _models(tuning)
    views = {name: view_command(models[name].path) for name in names if name in models}
    classes = tuning.task.shared["classes"]
    commands: dict[str, dict[str, Again]] = {place: {} for place in audits}
    for name, one in models.items():
        files = {"report": one.predictions_file, "report_held_out": one.path / "held_out.csv"}
        for place, file in files.items():
            commands.setdefault(place, {})[name] = audit_command(name, [file], classes)
    for place, result in audits.items():
        write(result, folder.path / place, commands[place], views)
    page = tune_page(folder.to_json(), tuning.task.hierarchy, audits, held_out=held_out, commands=commands, views=views)
    atomic.write_text(folder.report_file, page)


def _print_json(tuning: Tuning, audits: dict[str, Audit]) -> None:
    record = tuning.folder.to_json()
    content = {
        **record,
        "folder": str(tuning.folder.mean.path),
        "recipe_folder": str(tuning.folder.recipe(record["choice"]["recipe"]).path),
        "out_of_fold": audits["report"].to_json(),
        "by_fold": audits["report_by_fold"].to_json() if "report_by_fold" in audits else None,
        "held_out": audits["report_held_out"].to_json() if "report_held_out" in audits else None,
    }
    print_json(content)


def _show(folder: TuningFolder, audits: dict[str, Audit]) -> None:
    """The deciding rung, the choice, and how it compares on slides that tested it."""
    from rich.text import Text

    from pams_mil.report.tune_page import PLACES

    number, rung = folder.decisive
    title = f"Rung {number + 1}: validation slides of {rung.folds} folds x {len(rung.seeds)} seeds, in percent"
    rows = []
    for score in rung.scores:
        chosen = score.name == folder.choice["recipe"]
        values = (v for one in (score.score, score.behind) for v in (one.value, one.standard_error))
        style = "bold" if chosen else "" if score.is_near_best else "dim"
        cells = [f"> {score.name}" if chosen else score.name, *(f"{100 * value:.1f}" for value in values)]
        rows.append([Text(cell, style=style) for cell in cells])
    output.print(make_table(("recipe", "urgency AUC", "error", "behind best", "error"), rows, title=title))
    output.print(
        "Errors are standard errors over patients, of the score and of the difference from the best; '>' is chosen, "
        "dim ones are more than one standard error behind.",
        style="dim",
    )
    output.print(folder.choice["why"])
    output.print(_mean_sentence(folder.choice["mean_of"]))
    for name, result in audits.items():
        output.print()
        for sentence in result.verdicts or [f"{result.models[0].name} itself is chosen: nothing to compare."]:
            output.print(f"{PLACES[name]}: {sentence}", style="bold")


def _mean_sentence(names: list[str]) -> str:
    return (
        f"With few patients one recipe is a lottery ticket, so the tuning ends in the mean of the best {len(names)} by "
        f"validation: {', '.join(names)}. All folds' labels ranked them, so only held-out slides test the mean without "
        "favor."
    )


def _show_space(space: Space, changes: tuple[str, ...]) -> None:
    """Every recipe in words."""
    from pams_mil.engine.tuning.recipes import REFERENCE, in_words

    shared = {"data": "any", "classes": "any", "training": dict(space.training)}
    for one in space.recipes:
        words = in_words(one.config(shared, changes))
        mark = " (the reference)" if one.name == REFERENCE else ""
        print_result(f"{one.name}: {words}{mark}")
    settings = ", ".join(f"{key} {value}" for key, value in space.training.items())
    output.print(f"{len(space.recipes)} recipes; unless one says otherwise, with {settings}.", style="dim")
