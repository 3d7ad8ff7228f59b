"""`pams predict`: probabilities of any slides, from one run or the average of several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pams_mil.cli.console import output, progress_bar

if TYPE_CHECKING:
    from torch import Tensor

    from pams_mil.data.dataset import BagSample
    from pams_mil.engine.outcome import SlidePredictions
    from pams_mil.engine.prediction import Attend


def predict(
    paths: list[Path] = typer.Argument(..., metavar="RUN... MANIFEST", help="Run folders, then the table of slides."),
    features: Path | None = typer.Option(None, "--features", help="Folder of feature files, or a pack."),
    split: str | None = typer.Option(None, "--split", help="Only this split; default: all slides."),
    out: Path | None = typer.Option(None, "--out", help="Folder for the predictions; default: the first run's."),
    attention: bool = typer.Option(False, "--attention", help="Also write attention/<slide>.h5 for heat maps."),
    labels: bool = typer.Option(True, "--labels/--no-labels", help="Use the table's labels where it has them."),
    classes: str | None = typer.Option(None, "--classes", help="Refuse runs that were trained with other classes."),
    trust_code: bool = typer.Option(False, "--trust-code", help="Allow runs that name your own methods or models."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, ..."),
) -> None:
    """Predict slides with one or several trained runs; no labels needed.

    Several runs are averaged. Writes predictions.csv (finest level) and predictions_<level>.csv (coarser levels with
    a model of their own).

    Example: pams predict runs/pams-abmil-seed0 new-slides.csv --features features/ --out predicted
    """
    from pams_mil.engine.prediction import load_run
    from pams_mil.engine.prediction import predict as run_prediction
    from pams_mil.errors import ConfigError

    if len(paths) < 2:
        raise ConfigError("Expected at least one run folder and a manifest: pams predict RUN... MANIFEST.")
    *runs, manifest = paths
    if classes is not None:
        refuse_other_classes([load_run(run, trusted=trust_code).blueprint.tree.digest for run in runs], runs, classes)
    folder = out or (runs[0] if runs[0].is_dir() else runs[0].parent)
    attend = attention_writer(folder) if attention else None
    with progress_bar() as progress:
        found = run_prediction(
            runs, manifest, split=split, features=features, labels=labels, trusted=trust_code, device=device,
            attend=attend, progress=lambda fraction: progress("Predicting", fraction),
        )  # fmt: skip
    for path in found.write(folder):
        output.print(f"Wrote {path}", highlight=False, markup=False, soft_wrap=True)
    _counts(found)


def refuse_other_classes(digests: list[str], runs: list[Path], classes: str) -> None:
    """Stop when a run was trained with another class hierarchy than the one named."""
    from pams_mil.errors import CheckpointError
    from pams_mil.hierarchy import ClassHierarchy

    wanted = ClassHierarchy.load(classes).digest
    for run, digest in zip(runs, digests, strict=True):
        if digest != wanted:
            raise CheckpointError(
                f"{run} was trained with other classes than {classes!r}: digest {digest}, expected {wanted}. "
                "Names, groups and ranks must be the same."
            )


def attention_writer(folder: Path) -> Attend:
    """Writes every bag's attention as `attention/<slide>.h5`: one dataset [n] per trained level, and coordinates."""
    import h5py

    from pams_mil import atomic
    from pams_mil.data.filenames import file_names

    def write(sample: BagSample, attention: list[Tensor]) -> None:
        name = file_names([sample.slide_id])[sample.slide_id]
        with atomic.replacing(folder / "attention" / f"{name}.h5") as part, h5py.File(part, "w") as file:
            file.attrs["slide_id"] = sample.slide_id
            file.create_dataset("attention", data=attention[-1].numpy(), fletcher32=True)
            for number, weights in enumerate(attention[:-1]):
                file.create_dataset(f"attention_level{number}", data=weights.numpy(), fletcher32=True)
            if sample.coords_px0 is not None:
                file.create_dataset("coords", data=sample.coords_px0.numpy(), fletcher32=True)

    return write


def _counts(found: SlidePredictions) -> None:
    names = found.tree.names()
    predicted = found.probabilities[-1].argmax(1).tolist()
    shown = ", ".join(f"{label} {predicted.count(index)}" for index, label in enumerate(names))
    output.print(f"{len(found)} slides, least urgent class first: {shown}", highlight=False, markup=False)
