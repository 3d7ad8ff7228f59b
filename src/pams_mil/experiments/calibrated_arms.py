"""Every method's probabilities calibrated and decided alike, by the Bayes rule for AsCC.

A run is calibrated on its own validation slides, which undoes what its loss and its remix did to the probabilities as
far as these slides show it (`pams_mil.evaluate.calibration`). The Bayes rule then asks the same of all methods. What
still differs is what the models know, not where their training put the operating point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.grid import GridRun
from pams_mil.engine.prediction.calibrate import calibrate
from pams_mil.errors import PamsError
from pams_mil.evaluate.decide import redecide
from pams_mil.evaluate.predictions import Predictions
from pams_mil.evaluate.probability_calibration import ProbabilityCalibration
from pams_mil.experiments.entries import read_entries
from pams_mil.report.bench import Entry


def with_calibrated(
    done: GridRun, entries: Sequence[Entry], progress: Callable[[float], None] | None = None
) -> tuple[list[Entry], dict[str, str]]:
    """The entries with their calibrated runs, and the runs that cannot be calibrated with the reason.

    A method with such a run gets no calibrated ones: the others alone would be another set of slides.
    """
    fitted: dict[str, ProbabilityCalibration] = {}
    refused: dict[str, str] = {}
    cells = done.finished
    for number, cell in enumerate(cells, 1):
        try:
            fitted[cell.key] = calibrate(done.out / cell.key, trusted=True).levels[-1].calibration
        except PamsError as error:
            refused[cell.key] = str(error)
        if progress is not None:
            progress(number / len(cells))

    def calibrated(cell: Cell, run: Predictions) -> Predictions:
        if cell.key not in fitted or run.probabilities is None:
            return run
        return redecide(replace(run, probabilities=fitted[cell.key](run.probabilities)), rule="ascc")

    left_out = {(cell.model, cell.method) for cell in cells if cell.key in refused}
    made = {(entry.model, entry.method): entry.runs for entry in read_entries(done, change=calibrated)}
    runs = {key: found for key, found in made.items() if key not in left_out}
    return [replace(entry, calibrated=runs.get((entry.model, entry.method))) for entry in entries], refused
