"""`pams predict`: probabilities of any slides, from one run or the average of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import errors, output, print_json, print_note, print_notice, print_result, progress_bar
from pams_mil.cli.out_option import out_folder
from pams_mil.errors import BagError, CheckpointError, ConfigError, counted

if TYPE_CHECKING:
    from torch import Tensor

    from pams_mil.data.bags.dataset import BagSample
    from pams_mil.engine.learner import Learner
    from pams_mil.engine.prediction.predict import Attend
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions


def predict(
    paths: list[Path] = typer.Argument(
        ...,
        metavar="RUN... MANIFEST|SLIDE...",
        help="Run folders, or the folder of a cross-validation; then the table of slides, or slide files.",
    ),
    features: Path | None = typer.Option(None, "--features", help="Folder of feature files, or a pack."),
    split: str | None = typer.Option(None, "--split", help="Only this split; default: all slides."),
    out: Path | None = typer.Option(
        None, "--out", callback=out_folder, help="Folder for the predictions; default: the first run's."
    ),
    attention: bool = typer.Option(False, "--attention", help="Also write attention/<slide>.h5 for heat maps."),
    tiles: bool = typer.Option(
        False, "--tiles", help="Also write tiles/<slide>.parquet: place, attention and evidence of every tile."
    ),
    into_stores: bool = typer.Option(
        False, "--into-stores", help="Also add them as columns to the tiles of the LazySlide stores in --features."
    ),
    parquet: bool = typer.Option(False, "--parquet", help="Also write the predictions as parquet."),
    calibrated: bool = typer.Option(False, "--calibrated", help="Calibrated probabilities; see 'pams calibrate'."),
    labels: bool = typer.Option(True, "--labels/--no-labels", help="Use the table's labels where it has them."),
    classes: str | None = typer.Option(None, "--classes", help="Refuse runs that were trained with other classes."),
    trust_code: bool = typer.Option(False, "--trust-code", help="Allow runs that name your own methods or models."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, ..."),
    encoder: str | None = typer.Option(
        None, "--encoder", help="For slide files: the run's encoder, if the run does not name it or where it is."
    ),
    mpp: float | None = typer.Option(None, "--mpp", help="For slide files: the run's resolution, if it does not say."),
    tile_px: int | None = typer.Option(None, "--tile-px", help="For slide files: its tiles' side, if it does not say."),
    mpp_of_slide: float | None = typer.Option(None, "--mpp-of-slide", help="Scale of slides that do not state it."),
    certificate: Path | None = typer.Option(
        None, "--certificate", help="Also write the calls that this certificate.json of 'pams certify' certifies."
    ),
    json: bool = typer.Option(False, "--json", help="Print what was predicted and written as JSON."),
    decide: str = typer.Option(
        "argmax", "--decide", help="argmax, ascc, risk, or kappa=3: a missed urgency costs 3 false alarms."
    ),
) -> None:
    """Predict slides with one or several trained runs; no labels needed.

    Slide files are cut and encoded as the run's training features were. The probabilities of several runs, or of all
    folds of a cross-validation, are averaged. Writes predictions.csv (finest level) and predictions_<level>.csv
    (coarser levels with a model of their own), with --calibrated predictions_calibrated.csv and so on. One answer
    decides, the finest level's; where a coarser level's own model says otherwise, the column disagrees says so, and
    predictions_review.csv lists the slide.

    With --certificate also the columns certified, certified_slide, cannot_exclude, interval_low and interval_high.

    A slide that cannot be predicted does not stop the others: it is listed, also in predictions_failed.csv, and the
    exit code is 1.

    Example: pams predict runs/pams-abmil-seed0 new-slides.csv --features features --out predicted
    """
    from pams_mil.cli.certify import certificate_for, show_guarantee
    from pams_mil.data.bags.feature_origin import complete_origin
    from pams_mil.engine.prediction.predict import load_run
    from pams_mil.engine.prediction.predict import predict as run_prediction
    from pams_mil.engine.prediction.tile_tables import csv_as_parquet
    from pams_mil.engine.run.cv_folder import with_folds
    from pams_mil.evaluate.decide import DecisionRule
    from pams_mil.wsi.extract import is_slide

    rule = DecisionRule.parse(decide)

    if len(paths) < 2:
        raise ConfigError("Expected at least one run folder, then a manifest or slides: pams predict RUN... MANIFEST.")
    slides = [path for path in paths if is_slide(path)]
    runs, manifest = ([path for path in paths if path not in slides], None) if slides else (paths[:-1], paths[-1])
    if not runs:
        raise ConfigError("Expected at least one run folder before the slides: pams predict RUN SLIDE...")
    folder = out or default_folder(runs)
    # From here on a cross-validation is the list of its folds; `folder` was taken from what the user named.
    validated, runs = [run for run in runs if (run / "cv.json").is_file()], with_folds(runs)
    if classes is not None:
        refuse_other_classes([load_run(run, trusted=trust_code).spec.hierarchy.digest for run in runs], runs, classes)
    certified_by = certificate_for(certificate, runs, trusted=trust_code, calibrated=calibrated)
    if into_stores and features is None:
        raise ConfigError("--into-stores needs --features, the folder of the LazySlide stores.")
    if manifest is None:
        known = load_run(runs[0], trusted=trust_code).spec.encoder
        stated = {"mpp": mpp, "tile_px": tile_px}
        made = complete_origin(known, stated, where="The command", whose=f"the run {runs[0]}")
        manifest, features = encode_slides(slides, folder, made, encoder, mpp_of_slide, device)
    unwritten: dict[str, str] = {}
    writers = [attention_writer(folder)] if attention else []
    if tiles or into_stores:
        learners = [load_run(run, trusted=trust_code).learner for run in runs]
        # The same bag feeds all writers, so a slide is read and predicted once.
        writers.append(tile_writer(learners, folder if tiles else None, features if into_stores else None, unwritten))
    attend = _one_after_the_other(writers) if writers else None
    with progress_bar() as progress:
        found = run_prediction(
            runs, manifest, split=split, features=features, labels=labels, trusted=trust_code, device=device,
            calibrated=calibrated, attend=attend, progress=lambda fraction: progress("Predicting", fraction),
        )  # fmt: skip
    found = replace(found, rule=rule)
    if certified_by is not None:
        found = found.certified(certified_by)
    written = found.write(folder, name="predictions_calibrated" if calibrated else "predictions")
    if parquet:
        written += [csv_as_parquet(path) for path in written]
    for note in found.excluded:
        print_notice(note)
    _warn_of_training_slides(found, validated)
    if json:
        print_json(_as_json(found, written))
    else:
        for path in written:
            print_result(f"Wrote {path}")
        _counts(found)
        _disagreements(found, written)
        if certified_by is not None:
            show_guarantee(certified_by)
        if slides:
            _each(found)
    for slide, reason in unwritten.items():
        print_note(f"{slide}: {reason}", style="yellow")
    if found.failures:
        list_failures(found)
    if found.failures or unwritten:
        raise typer.Exit(1)


def default_folder(runs: list[Path]) -> Path:
    """Where predictions go: the first run's folder; of a cross-validation a folder inside, beside its own results."""
    if (runs[0] / "cv.json").is_file():
        return runs[0] / "predicted"
    return runs[0] if runs[0].is_dir() else runs[0].parent


def encode_slides(
    slides: list[Path],
    folder: Path,
    made: Mapping[str, Any],
    encoder: str | None,
    mpp_of_slide: float | None,
    device: str,
) -> tuple[Path, Path]:
    """A table of the slides and the folder of their features, made as the run's own were."""
    from pams_mil.wsi.encoders.encoder import EncoderOptions
    from pams_mil.wsi.extract import bags_for_run
    from pams_mil.wsi.slide_sources import find_slides

    sources = find_slides(slides, mpp_of_slide=mpp_of_slide)
    with errors.status(f"Encoding {counted(len(sources), 'slide')}"):
        ready = bags_for_run(
            sources, folder / "features", made, encoder=encoder, options=EncoderOptions(device=device),
            announce=print_notice,
        )  # fmt: skip
    return ready.manifest, ready.features


def refuse_other_classes(digests: list[str], runs: list[Path], classes: str) -> None:
    """Stop when a run was trained with another class hierarchy than the one named."""
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
    from pams_mil.data.bags.filenames import FileNames

    names = FileNames()

    def write(sample: BagSample, attention: list[Tensor]) -> None:
        with (
            atomic.replacing(folder / "attention" / f"{names[sample.slide_id]}.h5") as part,
            h5py.File(part, "w") as file,
        ):
            file.attrs["slide_id"] = sample.slide_id
            file.create_dataset("attention", data=attention[-1].numpy(), fletcher32=True)
            for number, weights in enumerate(attention[:-1]):
                file.create_dataset(f"attention_level{number}", data=weights.numpy(), fletcher32=True)
            if sample.coords_px0 is not None:
                file.create_dataset("coords", data=sample.coords_px0.numpy(), fletcher32=True)

    return write


def tile_writer(learners: list[Learner], folder: Path | None, stores: Path | None, unwritten: dict[str, str]) -> Attend:
    """Writes attention and evidence of every tile to `tiles/<slide>.parquet`, and into LazySlide's stores.

    A slide whose store cannot be written to is noted in `unwritten`, and does not stop the others.
    """
    from pams_mil.data.bags.filenames import FileNames
    from pams_mil.data.bags.layouts.lazyslide import store_of
    from pams_mil.data.bags.store import FeatureFolder
    from pams_mil.data.manifest.manifest import SlideRecord
    from pams_mil.engine.prediction.tile_tables import tile_columns, write_into_store, write_tiles

    files, names = None if stores is None else FeatureFolder(stores), FileNames()

    def write(sample: BagSample, attention: list[Tensor]) -> None:
        columns = tile_columns(learners, sample, attention)
        if folder is not None:
            write_tiles(folder / "tiles" / f"{names[sample.slide_id]}.parquet", sample, columns)
        if files is not None:
            try:
                found = files.find(SlideRecord(sample.slide_id, "", ""))
                store = store_of(found)
                if store is None:
                    raise BagError(f"{found} is not a LazySlide store; nothing was written to it.")
                write_into_store(store, sample, columns)
            except BagError as error:
                unwritten[sample.slide_id] = str(error)

    return write


def _one_after_the_other(writers: list[Attend]) -> Attend:
    def write(sample: BagSample, attention: list[Tensor]) -> None:
        for writer in writers:
            writer(sample, attention)

    return write


def _warn_of_training_slides(found: SlidePredictions, validated: list[Path]) -> None:
    """Say where the folds know slides from training: their mean looks better on those than it is."""
    from pams_mil.engine.run.cv_folder import CrossValidationFolder

    for path in validated:
        folder = CrossValidationFolder(path)
        own = folder.slides() & set(found.names)
        if own:
            print_note(
                f"warning  {len(own):,} of these slides were used to train folds of {path}. Judge it by its "
                f"out-of-fold predictions, {folder.predictions_file}, not by these.",
                style="yellow",
            )


def _as_json(found: SlidePredictions, written: list[Path]) -> dict[str, Any]:
    names = found.hierarchy.names()
    called = found.calls().tolist()
    unlike = found.disagreements()
    return {
        "runs": list(found.runs),
        "decided_by": str(found.rule),
        "files": [str(path) for path in written],
        "slides": [
            {
                "slide_id": slide,
                "prediction": names[called[row]],
                "disagrees": unlike.get(slide),
                "probabilities": by_level(found, row),
            }
            for row, slide in enumerate(found.names)
        ],
    }


def by_level(found: SlidePredictions, row: int) -> dict[str, dict[str, float]]:
    """The probabilities of one slide: level -> class -> value."""
    hierarchy = found.hierarchy
    return {
        hierarchy.level_names[level]: dict(zip(hierarchy.names(level), values[row].tolist(), strict=True))
        for level, values in enumerate(found.probabilities)
    }


def _counts(found: SlidePredictions) -> None:
    names = found.hierarchy.names()
    predicted = found.calls().tolist()
    shown = ", ".join(f"{label} {predicted.count(index)}" for index, label in enumerate(names))
    output.print(f"{counted(len(found), 'slide')}, least urgent class first: {shown}")


def _disagreements(found: SlidePredictions, written: list[Path]) -> None:
    unlike = found.disagreements()
    if unlike:
        shown = ", ".join(f"{slide} ({said})" for slide, said in list(unlike.items())[:3])
        listed = next(path.name for path in written if path.stem.endswith("_review"))
        print_result(
            f"On {len(unlike)} of {len(found)} slides a coarser level says otherwise, e.g. {shown}. The finest level "
            f"decides; {listed} lists them."
        )


def list_failures(found: SlidePredictions, *, name: str = "") -> None:
    """Say on stderr which slides have no prediction, and why."""
    of = f" by {name}" if name else ""
    errors.print(f"{len(found.failures)} of {len(found) + len(found.failures)} slides could not be predicted{of}:")
    for slide, reason in found.failures.items():
        print_note(f"- {slide}: {reason}")


def _each(found: SlidePredictions) -> None:
    """Every slide's probabilities at every level, for a handful of slide files."""
    names, called = found.hierarchy.names(), found.calls().tolist()
    for row, slide in enumerate(found.names):
        output.print(f"{slide}: {names[called[row]]}", style="bold")
        for level, probabilities in enumerate(found.probabilities):
            labels = zip(found.hierarchy.names(level), probabilities[row].tolist(), strict=True)
            shown = "  ".join(f"{label} {value:.3f}" for label, value in labels)
            output.print(f"{slide}, {found.hierarchy.level_names[level]}: {shown}")
