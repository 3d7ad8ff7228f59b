"""`pams audit`: how grave are the mistakes of one or several models, wherever they were trained?"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from pams_mil.cli.console import print_json, print_note, progress_bar
from pams_mil.cli.options import CLASSES_HELP, METRIC, SEEN_PATIENTS, out_folder, parse_labels, parse_tag, repeatable
from pams_mil.errors import ConfigError, listing

if TYPE_CHECKING:
    from pams_mil.evaluate.predictions.prediction_layouts import Source


def audit(
    predictions: list[str] = Argument(
        ..., help="Predictions files: CSV, TSV (also .gz), parquet or xlsx; or NAME='FILES-*.csv', a method's networks."
    ),
    classes: list[str] = Option(..., help=CLASSES_HELP),
    out: Path | None = Option(
        None, callback=out_folder, help="Folder for report.html, scores.json, severe_errors.csv."
    ),
    json: bool = Option(False, "--json", help="Print the scores as JSON instead of a table."),
    true: str | None = Option(None, help="Column of the true class."),
    pred: list[str] | None = Option(
        None, help="Column of the predicted class; several columns are several models of one file."
    ),
    proba: list[str] | None = Option(
        None, help="Columns of probabilities: 'p_{class}', '{pred}_{class}', 'prob_{index}', or a,b,c."
    ),
    id_column: str | None = Option(None, "--id", help="Column that identifies the slide."),
    patient: str | None = Option(None, help="Column of the patient."),
    index_order: str | None = Option(None, help="Classes in the order of integer labels, e.g. N,PB,UDH."),
    decide: str | None = Option(
        None, help="Re-apply the decision rule: argmax, ascc, risk, or kappa=3 (a miss costs 3 false alarms)."
    ),
    tag: str | None = Option(None, help="COLUMN=VALUE: score this subset beside the whole."),
    by: list[str] | None = Option(
        None, help="Column of subgroups, e.g. site: misses and false alarms of each group. Several: --by again."
    ),
    reference: int = Option(1, min=1, help="Which model the others are compared with."),
    penalty: float = Option(2.0, help="P, the extra weight of a missed urgency."),
    resamples: int = Option(2000, min=0, help="Resamples of patients for intervals; 0: none."),
    seed: int = Option(0, help="Seed of the resampling."),
    metric: list[str] | None = METRIC,
    seen_patients: bool = SEEN_PATIENTS,
    readers: bool = Option(
        False, "--readers", help="The --pred columns are readers, compared with --true or with each other."
    ),
    model: str | None = Option(
        None, help="With --readers: a model's predictions, or NAME=PATTERN; is it in the readers' range?"
    ),
) -> None:
    """Score predictions of any model by how grave its mistakes are.

    Reads PAMS, CLAM and STAMP predictions, or any table with --true and --pred; also gzipped.

    Example: pams audit model_a.csv model_b.csv --classes bracs --out report

    A method with several networks is NAME=PATTERN: files of the same slides are seeds, files of other slides folds.

    Example: pams audit ce='ce-*.csv' pams='pams-*.csv' --classes bracs

    With --readers each --pred column is a reader, and without --true the mode of the other readers is the reference.
    """
    from pams_mil.cli.audit_table import python_line, show, view_command, write
    from pams_mil.engine.run.cv_folder import run_of
    from pams_mil.evaluate.audit import audit as run_audit
    from pams_mil.evaluate.decisions.decide import DecisionRule, redecide
    from pams_mil.evaluate.predictions.join import join_files
    from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.report.live import Links

    if readers or model is not None:
        _audit_readers(
            predictions, classes, pred or [], model, out, true=true, slide=id_column, patient=patient,
            resamples=resamples, seed=seed, seen_patients=seen_patients, json=json,
        )  # fmt: skip
        return
    rule, pair = None if decide is None else DecisionRule.parse(decide), parse_tag(tag)
    hierarchy = ClassHierarchy.load(classes)
    tags = tuple(dict.fromkeys([*(by or []), *(pair or ())[:1]]))
    source = Source(true, None, id_column, patient, parse_labels(index_order), tags)
    asked = models_of(files_of(predictions), source, pred or [], proba or [])
    if reference > len(asked):
        raise ConfigError(f"--reference is {reference}, but there are only {len(asked)} models.")
    with progress_bar() as progress:
        models = []
        for name, paths, own in asked:
            tell = partial(progress, f"Reading {name}")
            read = [read_predictions(path, hierarchy, own, name=name, progress=tell) for path in paths]
            joined = join_files(name, read)
            models.append(joined if rule is None else redecide(joined, rule, penalty=penalty))
        result = run_audit(
            models, tag=pair, by=by or (), reference=reference - 1, penalty=penalty, resamples=resamples, seed=seed,
            progress=progress, seen_patients=seen_patients,
        )  # fmt: skip
    if out is not None:
        links = {}
        for name, (path, *others), own in asked:
            # No line of Python reads several files, or columns with names of their own, as one model.
            plain = not others and replace(own, tags=()) == Source()
            run = None if others else run_of(path)
            links[name] = Links(
                repeatable("audit", sys.argv[1:]),
                python=python_line(path, classes) if plain else Links.python,
                view="" if run is None else view_command(run),
            )
        write(result, out, links)
    if json:
        print_json(result.to_json())
    else:
        show(result)
    if out is not None:
        print_note(f"Report: {out / 'report.html'}")


def _audit_readers(
    files: list[str], classes: list[str], columns: list[str], model: str | None, out: Path | None, *, json: bool,
    seen_patients: bool, **options: Any,
) -> None:  # fmt: skip
    """Readers in columns of one table, and a model's predictions of the same slides."""
    from pams_mil.cli.audit_table import show_readers
    from pams_mil.evaluate.predictions.join import join_files
    from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
    from pams_mil.evaluate.readers import read_readers
    from pams_mil.hierarchy import ClassHierarchy

    if len(files) != 1 or len(classes) != 1:
        raise ConfigError(
            f"Expected one table of readers and one order of the classes, found {len(files)} and {len(classes)}."
        )
    if not columns:
        raise ConfigError("Name each reader's column: --pred reader1 --pred reader2.")
    hierarchy = ClassHierarchy.load(classes[0])
    predictions, unlabeled = None, Source(labels_needed=False)
    for name, paths in files_of([model] if model else []).items():
        networks = [read_predictions(path, hierarchy, unlabeled, name=name) for path in paths]
        predictions = join_files(name, networks).admitted("test scores", seen_patients=seen_patients)
    result = read_readers(files[0], hierarchy, columns, model=predictions, **options)
    show_readers(result, out, json=json)


def files_of(arguments: list[str]) -> dict[str, list[Path]]:
    """Every model's files by its name: NAME=PATTERN, or a file by itself, named after the file."""
    from pams_mil.cli.audit_table import files_matching
    from pams_mil.engine.run.cv_folder import model_names

    groups: list[tuple[str, list[Path]]] = []
    for argument in arguments:
        name, sign, pattern = argument.partition("=")
        if not sign or os.path.isfile(argument):  # noqa: PTH113  Path.is_file raises where a name is too long
            groups.append(("", [Path(argument)]))
            continue
        files = files_matching(pattern)
        if not files:
            raise ConfigError(
                f"{argument}: no file matches {pattern!r}. Quote the pattern, so that the shell leaves it."
            )
        groups.append((name, files))
    single = iter(model_names([files[0] for name, files in groups if not name]))
    names = [name or next(single) for name, _ in groups]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"Two models are called {listing(twice)}; every model needs a name of its own.")
    return dict(zip(names, (files for _, files in groups), strict=True))


def models_of(
    files: dict[str, list[Path]], source: Source, preds: list[str], probas: list[str]
) -> list[tuple[str, list[Path], Source]]:
    """Name, files and source of every model: one per name, or one per name and prediction column."""
    from pams_mil.evaluate.predictions.probability_columns import PREDICTION

    if len(probas) not in (0, 1, max(1, len(preds))):
        raise ConfigError(f"Expected one --proba, or one for each --pred ({len(preds)}); found {len(probas)}.")
    if len(probas) == 1 and len(preds) > 1 and PREDICTION not in probas[0]:
        raise ConfigError(
            f"One --proba would give {len(preds)} models the same probabilities. Give one for each --pred, in the same "
            f"order, or a pattern with {PREDICTION}."
        )
    models = []
    for name, paths in files.items():
        for number, column in enumerate(preds or [None]):
            scores = None if not probas else probas[number if len(probas) > 1 else 0]
            shown = name if len(preds) < 2 else str(column) if len(files) == 1 else f"{name}: {column}"
            models.append((shown, paths, replace(source, predicted=column, scores=scores)))
    return models
