"""`pams monitor`: does the guarantee of a certificate still hold?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from typer import Argument, Exit, Option

from pams_mil.cli.console import output, print_json, show_reservations
from pams_mil.cli.options import SEEN_PATIENTS, ColumnOptions, PatientsAreSlides


def monitor(
    certificate: Path = Argument(..., help="certificate.json of 'pams certify'."),
    predictions: Path = Argument(..., help="New patients in the order they came: a table with probabilities."),
    level: float = Option(
        0.05, min=0.0001, max=0.5, help="Chance that a guarantee that holds is ever called violated."
    ),
    drift_level: float = Option(
        0.01, min=0.0005, max=0.5, help="Without labels: patients differ from this p-value downward."
    ),
    json: bool = Option(False, "--json", help="Print the result as JSON."),
    out: Path | None = Option(None, help="Also write the result as JSON to this file."),
    columns: ColumnOptions = ColumnOptions(),
    no_labels: bool = Option(False, "--no-labels", help="Do not look at labels: only compare the patients."),
    seen_patients: bool = SEEN_PATIENTS,
    patients_are_slides: PatientsAreSlides = False,
    seed: int = Option(0, help="Seed of the shuffles."),
) -> None:
    """Test on new patients whether the guarantee of a certificate still holds.

    With labels, every bound is tested; look as often as you like. With or without, patients are compared with the
    calibration patients by where they reach each rank. Exit code 1: a bound is violated.

    Patients that trained the model, chose its epoch or recipe, or calibrated the certificate are not new, and refused;
    so are predictions of other weights.

    Example: pams monitor certificate.json new-labeled.csv
    """
    import numpy as np

    from pams_mil import atomic
    from pams_mil.evaluate.certify import Certificate
    from pams_mil.evaluate.certify import monitor as run_monitor
    from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
    from pams_mil.evaluate.predictions.predictions import refuse_unread_labels

    reference = Certificate.load(certificate)
    new = read_predictions(predictions, reference.hierarchy, columns.source(labels_needed=False))
    if no_labels:
        new = replace(new, target=np.full(len(new), -1))
    elif (new.target < 0).all():
        refuse_unread_labels(predictions, reference.hierarchy)
    result = run_monitor(
        reference, new, level=level, drift_level=drift_level, seed=seed, seen_patients=seen_patients,
        patients_are_slides=patients_are_slides,
    )  # fmt: skip
    if out is not None:
        atomic.write_json(out, result.to_json())
    if json:
        print_json(result.to_json())
    else:
        show_reservations(reference)
        for check in result.checks:
            output.print(check.words, style="bold red" if check.state == "violated" else "bold")
        output.print(result.drift.words)
        for note in result.notes:
            output.print(note, style="dim")
    if result.is_violated:
        raise Exit(1)
