"""`pams monitor`: does the guarantee of a certificate still hold?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pams_mil.cli.console import output, print_json
from pams_mil.errors import PredictionsError, listing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pams_mil.evaluate.certify import Certificate, Monitoring

CALLS = frozenset({"prediction", "certified", "certified_slide", "interval_low", "interval_high", "own_prediction"})
"""Columns that hold calls, not labels."""


def monitor(
    certificate: Path = typer.Argument(..., help="The certificate.json of 'pams certify'."),
    predictions: Path = typer.Argument(..., help="New patients in the order they came: a table with probabilities."),
    level: float = typer.Option(
        0.05, "--level", min=0.0001, max=0.5, help="Chance that a guarantee that holds is ever called violated."
    ),
    drift_level: float = typer.Option(
        0.01, "--drift-level", min=0.0005, max=0.5, help="Without labels: patients differ from this p-value downward."
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
    out: Path | None = typer.Option(None, "--out", help="Also write the result as JSON to this file."),
    true: str | None = typer.Option(None, "--true", help="Column of the true class."),
    pred: str | None = typer.Option(None, "--pred", help="Column of the predicted class."),
    id_column: str | None = typer.Option(None, "--id", help="Column of the slide."),
    patient: str | None = typer.Option(None, "--patient", help="Column of the patient."),
    seed: int = typer.Option(0, "--seed", help="Seed of the shuffles."),
) -> None:
    """Test on new patients whether the guarantee of a certificate still holds.

    With labels, every bound is tested; look as often as you like. With or without, patients are compared with the
    calibration patients by where they reach each rank. Exit code 1: a bound is violated.

    Example: pams monitor certificate.json new-labeled.csv
    """
    from pams_mil import atomic
    from pams_mil.evaluate.certify import Certificate, monitor_unlabeled
    from pams_mil.evaluate.certify import monitor as run_monitor
    from pams_mil.evaluate.prediction_layouts import Source, read_predictions

    reference = Certificate.load(certificate)
    if true is None and not _has_labels(predictions):
        result = monitor_unlabeled(
            reference, *_unlabeled(predictions, reference, id_column, patient), drift_level=drift_level, seed=seed
        )
    else:
        source = Source(true, pred, id_column, patient)
        new = read_predictions(predictions, reference.hierarchy, source)
        result = run_monitor(reference, new, level=level, drift_level=drift_level, seed=seed)
    if out is not None:
        atomic.write_json(out, result.to_json())
    if json:
        print_json(result.to_json())
    else:
        show(reference, result)
    if result.is_violated:
        raise typer.Exit(1)


def show(reference: Certificate, result: Monitoring) -> None:
    """Print the verdicts for people."""
    from pams_mil.cli.certify import show_reservations

    show_reservations(reference)
    for check in result.checks:
        style = "bold red" if check.state == "violated" else "bold"
        output.print(check.words, style=style)
    output.print(result.drift.words)
    for note in result.notes:
        output.print(note, style="dim")


def _has_labels(path: Path) -> bool:
    from pams_mil import tables

    header = set(next(iter(tables.read_chunks(path, rows=1))))
    return bool(header & {"target", "Y"}) or {"PATIENT", "pred"} <= header


def _unlabeled(
    path: Path, reference: Certificate, slide: str | None, patient: str | None
) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Probabilities and patients of a table without labels."""
    import numpy as np

    from pams_mil import tables

    table = tables.read_table(path)
    names = [f"p_{label}" for label in reference.hierarchy.names()]
    # A column that was named must be there: slides must not be counted as patients because of a typing mistake.
    known = ("patient_id", slide or "slide_id") if patient is None else (patient,)
    who = next((name for name in known if name in table), known[-1])
    missing = [name for name in (*names, who) if name not in table]
    if missing:
        raise PredictionsError(
            f"{path} lacks {listing(missing)}; expected one column p_<class> per class and {known[-1]}."
        )
    # Columns of calls are named by us or by the user; any other one that holds class names looks like labels.
    classes = {label for level in range(reference.hierarchy.num_levels) for label in reference.hierarchy.names(level)}
    labels = [name for name, cells in table.items() if name not in CALLS and cells and set(cells) <= classes]
    if labels:
        raise PredictionsError(
            f"{path} has no column 'target', but {listing(labels)} holds class names. If these are the true classes, "
            f"name them with --true {labels[0]}, so that the bounds are tested; if not, remove the column."
        )
    try:
        values = np.asarray([[float(cell) for cell in table[name]] for name in names], dtype=np.float64).T
    except ValueError as error:
        raise PredictionsError(f"{path}: probabilities must be numbers: {error}.") from error
    return values, table[who]
