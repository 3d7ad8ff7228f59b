"""`pams calibrate`: probabilities of a run that mean what they say, fitted on its validation slides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pams_mil.cli.console import output, print_json, print_note, print_result, progress_bar
from pams_mil.errors import ConfigError, counted, listing, nearest

if TYPE_CHECKING:
    from pams_mil.engine.prediction.run_calibration import CalibratedLevel, RunCalibration
    from pams_mil.evaluate.calibration import Form

SCORES = {"nll": "negative log-likelihood", "brier": "Brier score", "rps": "ranked probability score"}


def calibrate(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder."),
    form: str = typer.Option("auto", "--form", help="temperature, slope (by urgency), bias (per class), or auto."),
    json: bool = typer.Option(False, "--json", help="Print what was fitted as JSON instead of a table."),
    trust_code: bool = typer.Option(False, "--trust-code", help="Allow a run that names your own method or model."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, ..."),
) -> None:
    """Fit temperature, and as much more as the validation slides allow, and store it in the run.

    Runs trained with MSCE or a remix start from what theory says these did to the probabilities. Writes
    calibration.json; apply it with 'pams predict --calibrated'.

    Example: pams calibrate runs/pams-abmil-seed0
    """
    from pams_mil.engine.prediction.calibrate import calibrate as run_calibration
    from pams_mil.evaluate.calibration import FORMS

    known: dict[str, Form | None] = {"auto": None, **{name: name for name in FORMS}}
    if form not in known:
        raise ConfigError(f"--form must be one of {listing(known)}, found {form!r}.{nearest(form, known)}")
    with progress_bar() as progress:
        found = run_calibration(
            run, form=known[form], trusted=trust_code, device=device,
            progress=lambda fraction: progress("Predicting validation slides", fraction),
        )  # fmt: skip
    if json:
        print_json(found.to_json())
    else:
        _show(found)
    print_note(f"Wrote {run / 'calibration.json'}; apply it with: pams predict {run} MANIFEST --calibrated")


def _show(found: RunCalibration) -> None:
    said = f"Fitted on {counted(found.num_slides, 'validation slide')} of {counted(found.num_patients, 'patient')}."
    output.print(said)
    for level in found.levels:
        _show_level(level)
    for note in found.notes:
        print_result(f"Note: {note}")


def _show_level(level: CalibratedLevel) -> None:
    from rich.table import Table

    counts = ", ".join(f"{label} {count}" for label, count in level.slides.items())
    output.print(f"\n{level.name}", style="bold")
    print_result(f"slides: {counts}")
    print_result(f"{level.calibration.form}: {level.calibration.describe()}")
    table = Table("lower is better", "before", "after, on other patients", box=None, header_style="dim")
    for key, label in SCORES.items():
        after = "too few patients" if level.after is None else f"{level.after[key]:.3f}"
        table.add_row(label, f"{level.before[key]:.3f}", after)
    output.print(table)
