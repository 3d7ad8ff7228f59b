"""`pams audit`: how grave are the mistakes of one or several models, wherever they were trained?"""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE_HEAD

from pams_mil.cli.console import errors, output, progress_bar
from pams_mil.cli.out_option import out_folder

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from pams_mil.evaluate.audit import Audit, ModelAudit, OnStage
    from pams_mil.evaluate.prediction_layouts import Source
    from pams_mil.evaluate.predictions import Predictions
    from pams_mil.evaluate.scores import LevelScores
    from pams_mil.hierarchy import ClassHierarchy

MOST_ACROSS, MOST_WITH_INTERVALS = 4, 2
COLUMNS = ("acc", "auc", "ascc", "asmc", "risk", "under_call_rate", "over_call_rate")


def audit(
    predictions: list[Path] = typer.Argument(..., help="Predictions files: CSV, TSV, parquet or xlsx."),
    classes: str = typer.Option(..., "--classes", help="A preset (see 'pams classes') or a YAML class file."),
    out: Path | None = typer.Option(
        None, "--out", callback=out_folder, help="Folder for report.html, scores.json, severe_errors.csv."
    ),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON instead of a table."),
    true: str | None = typer.Option(None, "--true", help="Column of the true class."),
    pred: str | None = typer.Option(None, "--pred", help="Column of the predicted class."),
    id_column: str | None = typer.Option(None, "--id", help="Column that identifies the slide."),
    patient: str | None = typer.Option(None, "--patient", help="Column of the patient."),
    index_order: str | None = typer.Option(
        None, "--index-order", help="Classes in the order of integer labels, e.g. N,PB,UDH."
    ),
    decide: str | None = typer.Option(
        None, "--decide", help="Decide anew: argmax, ascc, risk, or kappa=3 (a miss costs 3 false alarms)."
    ),
    tag: str | None = typer.Option(None, "--tag", help="COLUMN=VALUE: score this subset beside the whole."),
    reference: int = typer.Option(1, "--reference", min=1, help="Which file the others are compared with."),
    penalty: float = typer.Option(2.0, "--penalty", help="P, the extra weight of a missed urgency."),
    resamples: int = typer.Option(2000, "--resamples", min=0, help="Resamples of patients for intervals; 0: none."),
    seed: int = typer.Option(0, "--seed", help="Seed of the resampling."),
) -> None:
    """Score predictions of any model by how grave its mistakes are.

    Reads PAMS, CLAM and STAMP predictions, or any table with --true and --pred.

    Example: pams audit model_a.csv model_b.csv --classes bracs --out report
    """
    from pams_mil.atomic import strict_json
    from pams_mil.evaluate.audit import audit as run_audit
    from pams_mil.evaluate.decide import DecisionRule, redecide
    from pams_mil.evaluate.prediction_layouts import Source
    from pams_mil.hierarchy import ClassHierarchy

    rule = None if decide is None else DecisionRule.parse(decide)
    tag_pair = parse_tag(tag)
    _check_reference(reference, len(predictions))
    hierarchy = ClassHierarchy.load(classes)
    order = tuple(label.strip() for label in next(csv.reader([index_order]))) if index_order else ()
    source = Source(true, pred, id_column, patient, order, (tag_pair[0],) if tag_pair else ())
    with progress_bar() as progress:
        models = _read(predictions, hierarchy, source, progress)
        if rule is not None:
            models = [redecide(model, rule=rule.name, kappa=rule.kappa, penalty=penalty) for model in models]
        result = run_audit(
            models, tag=tag_pair, reference=reference - 1, penalty=penalty, resamples=resamples, seed=seed,
            progress=progress,
        )  # fmt: skip
    if out is not None:
        write(result, out)
    if json:
        print(strict_json(result.to_json()))
    else:
        show(result)
    if out is not None:
        errors.print(f"Report: {out / 'report.html'}", highlight=False, markup=False, soft_wrap=True)


def show(result: Audit) -> None:
    """Print the audit for people."""
    hierarchy = result.hierarchy
    for sentence in result.cautions:
        output.print(f"Caution, {sentence}", style="bold yellow", highlight=False, markup=False, soft_wrap=True)
    for model in result.models:
        read = model.predictions
        text = f"{model.name}: {len(read):,} slides, {read.num_patients:,} patients, read as {read.layout}."
        output.print(" ".join((text, *read.notes)), style="dim", highlight=False, markup=False)
    for note in hierarchy.tie_notes():
        output.print(f"Note: {note}", style="dim", highlight=False, markup=False, soft_wrap=True)
    for level in range(hierarchy.num_levels - 1, -1, -1):
        output.print()
        output.print(_table(result, level))
    output.print("↑ higher is better, ↓ lower is better; 95 % intervals in brackets.", style="dim", highlight=False)
    for sentence in result.verdicts:
        output.print()
        output.print(sentence, style="bold", highlight=False, markup=False)


def write(result: Audit, out: Path) -> None:
    """Write report.html, scores.json and severe_errors.csv into `out`."""
    from pams_mil import atomic
    from pams_mil.report.page import audit_page

    page = audit_page(result)
    rows = [
        [model.name, e.slide_id, e.patient_id, e.true, e.predicted, e.gravity, e.probability_of_true]
        for model in result.models
        for e in model.severe
    ]
    header = ["model", "slide_id", "patient_id", "true", "predicted", "gravity", "probability_of_true"]
    atomic.write_json(out / "scores.json", result.to_json())
    atomic.write_csv(out / "severe_errors.csv", header, rows)
    atomic.write_text(out / "report.html", page)


def _read(paths: list[Path], hierarchy: ClassHierarchy, source: Source, progress: OnStage) -> list[Predictions]:
    from pams_mil.evaluate.prediction_layouts import read_predictions

    return [
        read_predictions(path, hierarchy, source, name=name, progress=partial(progress, f"Reading {name}"))
        for path, name in zip(paths, _names(paths), strict=True)
    ]


def _names(paths: list[Path]) -> list[str]:
    """File stems, with folders added until they differ."""
    for depth in range(1, 6):
        names = ["/".join((*path.parts[:-1][len(path.parts) - depth :], path.stem)) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.stem} ({number})" for number, path in enumerate(paths, 1)]


def parse_tag(tag: str | None) -> tuple[str, str] | None:
    """COLUMN=VALUE as a pair."""
    from pams_mil.errors import ConfigError

    if tag is None:
        return None
    column, sign, value = tag.partition("=")
    if not (column and sign):
        raise ConfigError(f"--tag must be COLUMN=VALUE, e.g. --tag findings=mixed; found {tag!r}.")
    return column, value


def _check_reference(reference: int, count: int) -> None:
    from pams_mil.errors import ConfigError

    if reference > count:
        raise ConfigError(f"--reference is {reference}, but there are only {count} predictions files.")


def _table(result: Audit, level: int) -> Table:
    """Metrics down and models across, with intervals where there is room; for many models the other way round."""
    from rich.table import Table
    from rich.text import Text

    from pams_mil.metrics.table import FACTS

    hierarchy = result.hierarchy
    rows = [row for model in result.models for row in _rows(model, level)]
    keys = [
        key
        for key in COLUMNS
        if key != "auc" or any(scores.values["auc"] == scores.values["auc"] for _, scores in rows)
    ]
    heads = [f"{FACTS[key].label} {'↑' if FACTS[key].higher_is_better else '↓'}" for key in keys]
    title = Text(f"{hierarchy.level_names[level]}: {hierarchy.order(level)}")
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    if len(rows) > MOST_ACROSS:
        for head in ("model", "slides", *heads):
            table.add_column(head, justify="left" if head == "model" else "right")
        for label, scores in rows:
            table.add_row(Text(label), str(scores.n), *(_cell(scores.values[key], None, key) for key in keys))
        return table
    table.add_column("")
    for label, _ in rows:
        table.add_column(Text(label), justify="right")
    table.add_row("Slides", *(f"{scores.n:,}" for _, scores in rows))
    table.add_row("Errors", *(f"{scores.errors:,}" for _, scores in rows))
    table.add_row("Missed urgency, count ↓", *(f"{scores.values['severe_errors']:,.0f}" for _, scores in rows))
    for key, head in zip(keys, heads, strict=True):
        pairs = [scores.intervals.get(key) if len(rows) <= MOST_WITH_INTERVALS else None for _, scores in rows]
        cells = (_cell(scores.values[key], pair, key) for (_, scores), pair in zip(rows, pairs, strict=True))
        table.add_row(head, *cells)
    return table


def _rows(model: ModelAudit, level: int) -> list[tuple[str, LevelScores]]:
    whole = [(model.name, model.levels[level])]
    return whole if model.subset is None else [*whole, (model.subset.name, model.subset_levels[level])]


def _cell(value: float, pair: tuple[float, float] | None, key: str) -> Text:
    from rich.text import Text

    from pams_mil.report.page import format_interval, format_value

    bracket = format_interval(pair, key)
    return Text(format_value(value, key)) + Text(f"  [{bracket}]" if bracket else "", style="dim")
