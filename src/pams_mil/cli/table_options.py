"""Options of the verbs that read a cohort table, and what they say about reading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pams_mil.errors import ConfigError

SLIDE_COLUMN = typer.Option(None, "--slide-column", help="Column of the slide id.")
PATIENT_COLUMN = typer.Option(None, "--patient-column", help="Column of the patient.")
LABEL_COLUMN = typer.Option(None, "--label-column", help="Column of the label.")
CLASSES_HELP = "A preset (see 'pams classes') or a class file. Again: another order of its classes."
PATIENTS_ARE_SLIDES = typer.Option(
    False, "--patients-are-slides", help="The table names no patients: take every slide for one."
)
SEEN_PATIENTS = typer.Option(
    False,
    "--seen-patients",
    help="Also use patients that the model has seen, where that is refused; everything made from it says so.",
)
"""Of the verbs that `pams_mil.data.exposure` may refuse."""
METRIC = typer.Option(
    None, "--metric", help="A metric of your own, './my_metric.py:grave': a function of slides. Several: --metric again"
)


def add_metrics(names: list[str] | None) -> None:
    """Make metrics of one's own part of every score and comparison that follows."""
    from pams_mil import discover
    from pams_mil.metrics import add_metric

    for name in names or []:
        if ":" not in name:
            raise ConfigError(f"--metric takes './my_file.py:my_function' or 'my_module:my_function', found {name!r}.")
        add_metric(discover.load("metrics", name))


def reading_options(
    slide_column: str | None,
    patient_column: str | None,
    label_column: str | None,
    clini: Path | None,
    patients_are_slides: bool,
) -> dict[str, Any]:
    """How to read the table, as `Manifest.read` takes it."""
    named = {"slide_id": slide_column, "patient_id": patient_column, "label": label_column}
    columns = {role: name for role, name in named.items() if name is not None}
    return {"columns": columns, "clini": clini, "patients_are_slides": patients_are_slides}
