"""`pams calibrate`: probability calibration of a run, fitted on its validation slides."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from typer import Argument, Option

from pams_mil.cli.console import make_table, output, print_json, print_note, print_result, progress_bar, trust_option
from pams_mil.errors import counted

if TYPE_CHECKING:
    from pams_mil.engine.prediction.run_calibration import RunCalibration

SCORES = {"nll": "negative log-likelihood", "brier": "Brier score", "rps": "ranked probability score"}


def calibrate(
    run: Path = Argument(..., metavar="RUN", help="A run folder."),
    json: bool = Option(False, "--json", help="Print what was fitted as JSON instead of a table."),
    trust_code: bool = Option(False, "--trust-code", help="Allow a run that names your own method or model."),
    device: str = Option("auto", help="auto, cpu, cuda, ..."),
) -> None:
    """Calibrate the probabilities of a run: fit a temperature on its validation slides and store it in the run.

    Runs trained with MSCE, or with a remix that changes how often classes occur, start from what theory says these did
    to the probabilities. Writes calibration.json; apply it with 'pams predict --calibrated'.

    Example: pams calibrate runs/pams-abmil-seed0
    """
    from pams_mil.engine.prediction.calibrate import calibrate as run_calibration

    with progress_bar() as progress:
        tell = partial(progress, "Predicting validation slides")
        fitted = run_calibration(run, trusted=trust_code, device=device, progress=tell)
    if json:
        print_json(fitted.to_json())
    else:
        _show(fitted)
    again = f"pams predict {quote(str(run))} MANIFEST --calibrated{trust_option(run)}"
    print_note(f"Wrote {run / 'calibration.json'}; apply it with: {again}")


def _show(fitted: RunCalibration) -> None:
    slides, patients = counted(fitted.validation["slides"], "validation slide"), fitted.validation["patients"]
    output.print(f"Fitted on {slides} of {counted(patients, 'patient')}.")
    for level in fitted.levels:
        output.print(f"\n{level.name}", style="bold")
        print_result(f"slides: {', '.join(f'{label} {count}' for label, count in level.slides.items())}")
        print_result(level.calibration.describe())
        rows = []
        for key, label in SCORES.items():
            after = "too few patients" if level.after is None else f"{level.after[key]:.3f}"
            rows.append((label, f"{level.before[key]:.3f}", after))
        output.print(make_table(("lower is better", "before", "after, on other patients"), rows))
    for note in fitted.notes:
        print_result(f"Note: {note}")
