"""`pams tune`: which recipe suits a cohort, chosen on validation slides within a budget, then tested once."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rich.text import Text
from typer import Argument, Option

from pams_mil.cli import console
from pams_mil.cli.console import list_failures, output, print_note
from pams_mil.cli.grid_bar import refuse_failures, training_bar
from pams_mil.cli.options import CLASSES_HELP, FOLDS, VAL_SHARE, TableOptions, WorkerOptions, out_folder
from pams_mil.errors import ConfigError

if TYPE_CHECKING:
    from pams_mil.engine.tuning.recipes import Space
    from pams_mil.engine.tuning.tuning_folder import TuningFolder
    from pams_mil.evaluate.audit import Audit
    from pams_mil.evaluate.predictions.predictions import Predictions


def tune(
    manifest: Path | None = Argument(None, metavar="LABELS", help="Cohort table: CSV, TSV, xlsx or parquet."),
    changes: list[str] | None = Argument(
        None, metavar="[KEY=VALUE]...", help="Settings of all recipes, e.g. epochs=30 or model.embedding_features=128."
    ),
    classes: list[str] | None = Option(None, help=CLASSES_HELP),
    features: Path | None = Option(None, help="Folder of feature files, or a pack."),
    folds: int | None = FOLDS,
    val_share: float | None = VAL_SHARE,
    budget: float = Option(60.0, min=0.01, help="Minutes of wall time for trying recipes."),
    space: str = Option("default", help="default, quick, or a YAML file; see docs/tune.md."),
    show_space: bool = Option(False, "--list", help="Only show the recipes of the space."),
    seeds: int = Option(3, min=1, help="Seeds of the last rung, and of the chosen ensemble."),
    seed: int = Option(0, help="The first seed, also of the folds."),
    all_slides: bool = Option(
        False, "--all-slides", help="Also put the slides into folds that the table's column split calls test or calib."
    ),
    out: Path = Option(Path("tune"), callback=out_folder, help="Folder for runs and report."),
    workers: WorkerOptions = WorkerOptions(),
    reading: TableOptions = TableOptions(),
    resamples: int = Option(2000, min=0, help="Resamples of patients for intervals; 0: none."),
    json: bool = Option(False, "--json", help="Print the record and the comparison as JSON."),
) -> None:
    """Try recipes on the folds of a cohort, average the five best on validation slides, and test against cross-entropy.

    Many recipes on few folds, a third of them on all folds, a third of those with more seeds. The result is the mean of
    the best five; beside it stands a single one, the simplest within one standard error of the best urgency AUC. Slides
    that the column split calls test are held out of everything and scored last. Ctrl-C saves; the same command goes on,
    and a larger budget goes further.

    Example: pams tune labels.csv --classes bracs --features features --folds 5 --budget 30 --out tuned
    """
    from pams_mil import atomic
    from pams_mil.cli.audit_table import audit_command, view_command, write
    from pams_mil.engine.grid.folds import fold_cohort
    from pams_mil.engine.prediction.predict import predict
    from pams_mil.engine.tuning.recipes import REFERENCE, load_space
    from pams_mil.engine.tuning.tune import Tuning, TuningTask
    from pams_mil.evaluate.audit import audit
    from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.report.tune_page import tune_page

    chosen_space = load_space(space)
    if show_space:
        _show_space(chosen_space, tuple(changes or ()))
        return
    if manifest is None or not classes:
        raise ConfigError("Expected a table of labels and --classes: pams tune LABELS.csv --classes bracs ...")
    how, hierarchy = reading.options(), ClassHierarchy.load(classes)
    kept = () if all_slides else ("test", "calib")
    folded = fold_cohort(manifest, hierarchy, folds, val_share, seed, how, held_out=kept)
    held_out = f"{folded.held_out:,} slides" if folded.held_out else ""
    more = [f"{held_out} of the split test are held out: they are in no fold, and scored after the choice."]
    for note in (*folded.notes, *(more if held_out else [])):
        print_note(note)
    data = {"manifest": manifest, "features": features}
    shared = {"data": data, "classes": classes, "training": dict(chosen_space.training), "seed": seed}
    all_seeds = tuple(range(seed, seed + seeds))
    task = TuningTask(chosen_space, shared, tuple(changes or ()), folded, all_seeds)
    task.simplicity  # noqa: B018  builds every recipe, so that a wrong setting is refused before any run
    runner = workers.start()
    with training_bar(out) as tell:
        tuning = Tuning(task, out, runner, budget, say=print_note, progress=lambda share, _: tell(share, ""))
        tuning.run()
        folder, choice = tuning.folder, tuning.folder.choice
        failures = tuning.finish()
    refuse_failures(failures, "The chosen recipe could not be completed; the same command tries it again.")
    models = folder.models
    compared: dict[str, list[Predictions]] = {}
    # The very models that are kept lead, on slides that nothing has seen.
    if held_out:
        print_note(f"Predicting the {held_out} that were held out.")
        for name, one in models.items():
            # Trusted: these runs were trained by this very command, from settings that the user typed.
            predictions = predict([one.path], manifest, split="test", features=features, trusted=True, **how)
            predictions.write(one.path, name="held_out")
            list_failures(predictions, name=name)
            compared.setdefault("report_held_out", []).append(predictions.labeled(name))
    tested = folder.tested
    compared["report"] = [read_predictions(file, hierarchy, name=name) for name, file in tested.items()]
    with console.progress_bar() as progress:
        audits = {place: audit(own, resamples=resamples, progress=progress) for place, own in compared.items()}
    views = {name: view_command(one.path) for name, one in models.items()}
    files = {"report": tested, "report_held_out": {name: one.path / "held_out.csv" for name, one in models.items()}}
    links = {
        place: {
            name: audit_command(name, [file], classes, view=views.get(name, "")) for name, file in files[place].items()
        }
        for place in audits
    }
    for place, result in audits.items():
        write(result, folder.path / place, links[place])
    page = tune_page(folder.to_json(), hierarchy, audits, held_out=folded.held_out, links=links)
    atomic.write_text(folder.report_file, page)
    mean, recipe = folder.mean.path, folder.recipe(choice["recipe"]).path
    if json:
        places = {"out_of_fold": "report", "held_out": "report_held_out"}
        scores = {key: audits[place].to_json() if place in audits else None for key, place in places.items()}
        console.print_json({**folder.to_json(), "folder": str(mean), "recipe_folder": str(recipe), **scores})
    else:
        _show(folder, audits)
    reference = "" if choice["recipe"] == REFERENCE else f" The reference: {folder.recipe(REFERENCE).path}."
    print_note(
        f"Report: {folder.report_file}. The mean of the best recipes: {mean}. The single one: {recipe}.{reference}"
    )
    again = f"pams predict {quote(str(mean))} SLIDES.csv --features FEATURES{console.trust_option(mean)}"
    print_note(f"Predict other slides with all its runs: {again}")


def _show(folder: TuningFolder, audits: dict[str, Audit]) -> None:
    """The deciding rung, the choice, and how it compares on slides that tested it."""
    from pams_mil.report.tune_page import PLACES

    number, rung = folder.decisive
    rows = []
    for score in rung.scores:
        chosen = score.name == folder.choice["recipe"]
        values = (score.urgency_auc, score.standard_error, score.behind, score.behind_error)
        style = "bold" if chosen else "" if score.is_near_best else "dim"
        cells = [f"> {score.name}" if chosen else score.name, *(f"{100 * value:.1f}" for value in values)]
        rows.append([Text(cell, style=style) for cell in cells])
    title = f"Rung {number + 1}: validation slides of {rung.folds} folds x {len(rung.seeds)} seeds, in percent"
    heads = ("recipe", "urgency AUC", "error", "behind best", "error")
    output.print(console.make_table(heads, rows, title=title))
    output.print(
        "Errors are standard errors over patients, of the score and of the difference from the best; '>' is chosen, "
        "dim ones are more than one standard error behind.",
        style="dim",
    )
    names = folder.choice["mean_of"]
    output.print(folder.choice["why"])
    output.print(
        f"With few patients one recipe is a lottery ticket, so the tuning ends in the mean of the best {len(names)} by "
        f"validation: {', '.join(names)}. Every fold is tested with those that the other patients ranked first."
    )
    for name, result in audits.items():
        output.print()
        for sentence in result.verdicts or [f"{result.models[0].name} itself is chosen: nothing to compare."]:
            output.print(f"{PLACES[name]}: {sentence}", style="bold")


def _show_space(space: Space, changes: tuple[str, ...]) -> None:
    """Every recipe in words."""
    from pams_mil.engine.tuning.recipes import REFERENCE, in_words

    shared = {"data": "any", "classes": "any", "training": dict(space.training)}
    for one in space.recipes:
        words = in_words(one.config(shared, changes))
        mark = " (the reference)" if one.name == REFERENCE else ""
        console.print_result(f"{one.name}: {words}{mark}")
    settings = ", ".join(f"{key} {value}" for key, value in space.training.items())
    output.print(f"{len(space.recipes)} recipes; unless one says otherwise, with {settings}.", style="dim")
