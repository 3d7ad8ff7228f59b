"""`pams predict`: probabilities of any slides, from one run or the average of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import (
    errors,
    list_failures,
    output,
    print_json,
    print_note,
    print_notice,
    print_result,
    progress_bar,
    show_guarantee,
)
from pams_mil.cli.options import PatientsAreSlides, out_folder
from pams_mil.errors import ConfigError, counted

if TYPE_CHECKING:
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions

MOST_SHOWN = 20
"""Probabilities of one slide that are printed, the largest of more."""


def predict(
    paths: list[Path] = typer.Argument(
        ...,
        metavar="RUN... MANIFEST|SLIDE...",
        help="Run folders, a cross-validation folder, or hf://owner/name; then the table of slides, or slide files.",
    ),
    features: Path | None = typer.Option(None, "--features", help="Folder of feature files, or a pack."),
    split: str | None = typer.Option(None, "--split", help="Only this split; default: all slides."),
    out: Path | None = typer.Option(
        None, "--out", callback=out_folder, help="Folder for the predictions; default, of one run: RUN/predictions."
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
    patients_are_slides: PatientsAreSlides = False,
    json: bool = typer.Option(False, "--json", help="Print what was predicted and written as JSON."),
    decide: str = typer.Option(
        "argmax", "--decide", help="argmax, ascc, risk, or kappa=3: a missed urgency costs 3 false alarms."
    ),
) -> None:
    """Predict slides with one or several trained runs; no labels needed.

    Slide files are cut and encoded as the run's training features were. The probabilities of several runs, or of all
    folds of a cross-validation, are averaged. Writes into the run predictions/<table>-<split>.csv (finest level) and
    <table>-<split>_<level>.csv (coarser levels with a model of their own), or into --out predictions.csv and so on; the
    predictions of several runs need --out. One answer decides, the finest level's; where a coarser level's own model
    says otherwise, the column disagrees says so, and ..._review.csv lists the slide. The column exposure says which
    patients the model has seen.

    With --certificate also the columns certified, certified_slide, cannot_exclude, interval_low and interval_high; and
    certified_findings where slides have several.

    A slide that cannot be predicted does not stop the others: it is listed, also in ..._failed.csv, and the exit code
    is 1. The certified call of its patient is withheld.

    Example: pams predict runs/pams-abmil-seed0 new-slides.csv --features features --out predicted
    """
    from pams_mil.data.bags.feature_origin import complete_origin
    from pams_mil.engine.prediction.certificates import certificate_for
    from pams_mil.engine.prediction.hub import is_hub, local_folder
    from pams_mil.engine.prediction.predict import identity_of, load_runs
    from pams_mil.engine.prediction.predict import predict as run_prediction
    from pams_mil.engine.prediction.scored_runs import refuse_other_classes
    from pams_mil.engine.prediction.slide_predictions import Destination
    from pams_mil.engine.prediction.tiles import attention_writer, csv_as_parquet, one_after_the_other, tile_writer
    from pams_mil.engine.run.folder import RunFolder
    from pams_mil.evaluate.decisions.decide import DecisionRule
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.wsi.extract import is_slide

    rule = DecisionRule.parse(decide)

    if len(paths) < 2:
        raise ConfigError("Expected at least one run folder, then a manifest or slides: pams predict RUN... MANIFEST.")
    slides = [path for path in paths if is_slide(path)]
    runs, manifest = ([path for path in paths if path not in slides], None) if slides else (paths[:-1], paths[-1])
    if not runs:
        raise ConfigError("Expected at least one run folder before the slides: pams predict RUN SLIDE...")
    if out is None and len(runs) > 1:
        raise ConfigError("The predictions of several runs belong to none of them; say where to write with --out.")
    if out is None and is_hub(runs[0]):
        raise ConfigError("Predictions of a model on the hub need a folder of their own; say where with --out.")
    runs = [local_folder(run) for run in runs]
    if into_stores and features is None:
        raise ConfigError("--into-stores needs --features, the folder of the LazySlide stores.")
    loaded = load_runs(runs, trusted=trust_code, device=device)
    if classes is not None:
        stated = ClassHierarchy.load(classes)
        refuse_other_classes([run.spec.hierarchy for run in loaded], [run.path for run in loaded], stated)
    guarantee = None if certificate is None else certificate_for(certificate, loaded, calibrated=calibrated)
    home = RunFolder.at(runs[0])
    if manifest is None:
        resolution = {"mpp": mpp, "tile_px": tile_px}
        origin = complete_origin(loaded[0].spec.encoder, resolution, where="The command", whose=f"the run {runs[0]}")
        manifest, features = encode_slides(slides, out or home.predictions, origin, encoder, mpp_of_slide, device)
    kinds = [*(["calibrated"] if calibrated else []), *([] if decide == "argmax" else [str(rule)])]
    place = Destination.of(out, home, manifest, split, kinds)
    place.prepare(tuple(identity_of(run, calibrated=calibrated) for run in loaded), manifest, split)
    unwritten: dict[str, str] = {}
    writers = [attention_writer(place.side)] if attention else []
    if tiles or into_stores:
        learners = [run.learner for run in loaded]
        # The same bag feeds all writers, so a slide is read and predicted once.
        writers.append(
            tile_writer(learners, place.side if tiles else None, features if into_stores else None, unwritten)
        )
    attend = one_after_the_other(writers) if writers else None
    with progress_bar() as progress:
        predictions = run_prediction(
            loaded, manifest, split=split, features=features, labels=labels, device=device, calibrated=calibrated,
            patients_are_slides=patients_are_slides, attend=attend,
            progress=lambda fraction: progress("Predicting", fraction),
        )  # fmt: skip
    predictions = replace(predictions, rule=rule)
    if guarantee is not None:
        predictions = predictions.certified(guarantee, patients_are_slides=patients_are_slides)
    written = predictions.write(place.folder, name=place.name)
    if parquet:
        written += [csv_as_parquet(path) for path in written]
    for note in predictions.excluded:
        print_notice(note)
    _warn_of_seen_patients(predictions)
    if json:
        print_json(_as_json(predictions, written))
    else:
        for path in written:
            print_result(f"Wrote {path}")
        _counts(predictions)
        _disagreements(predictions, written)
        if guarantee is not None:
            show_guarantee(guarantee)
        if slides:
            _each(predictions)
    for slide, reason in unwritten.items():
        print_note(f"{slide}: {reason}", style="yellow")
    if predictions.failures:
        list_failures(predictions)
    if predictions.failures or unwritten:
        raise typer.Exit(1)


def encode_slides(
    slides: list[Path],
    folder: Path,
    origin: Mapping[str, Any],
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
            sources, folder / "features", origin, encoder=encoder, options=EncoderOptions(device=device),
            announce=print_notice,
        )  # fmt: skip
    return ready.manifest, ready.features


def _warn_of_seen_patients(predictions: SlidePredictions) -> None:
    """Say how many slides are of patients that the model has seen: on those it looks better than it is."""
    from pams_mil.data.exposure import role_cell

    seen = Counter(role_cell(roles) for roles in predictions.roles or () if roles)
    if seen:
        counts = ", ".join(f"{role} {count:,}" for role, count in seen.items())
        print_note(
            f"warning  {sum(seen.values()):,} of {len(predictions):,} slides are of patients that the model has seen "
            f"({counts}; column exposure). Do not judge it by them; a cross-validation has out-of-fold predictions.",
            style="yellow",
        )


def _as_json(predictions: SlidePredictions, written: list[Path]) -> dict[str, Any]:
    names = predictions.hierarchy.names()
    called = predictions.calls().tolist()
    unlike = predictions.disagreements()
    return {
        "runs": list(predictions.runs),
        "decided_by": str(predictions.rule),
        "files": [str(path) for path in written],
        "slides": [
            {
                "slide_id": slide,
                "prediction": names[called[row]],
                "disagrees": unlike.get(slide),
                "probabilities": predictions.by_level(row),
            }
            for row, slide in enumerate(predictions.names)
        ],
    }


def _counts(predictions: SlidePredictions) -> None:
    from pams_mil.report.page import readable_rows

    names, (_, rows) = predictions.hierarchy.names(), readable_rows(predictions.hierarchy)
    calls = Counter(names[call] for call in predictions.calls().tolist())
    shown = ", ".join(f"{row} {sum(calls[name] for name in classes)}" for row, classes in rows.items())
    output.print(f"{counted(len(predictions), 'slide')}, least urgent first: {shown}")


def _disagreements(predictions: SlidePredictions, written: list[Path]) -> None:
    unlike = predictions.disagreements()
    if unlike:
        shown = ", ".join(f"{slide} ({opinion})" for slide, opinion in list(unlike.items())[:3])
        listed = next(path.name for path in written if path.stem.endswith("_review"))
        print_result(
            f"On {len(unlike)} of {len(predictions)} slides a coarser level says otherwise, e.g. {shown}. The finest "
            f"level decides; {listed} lists them."
        )


def _each(predictions: SlidePredictions) -> None:
    """Every slide's probabilities at every level, for a handful of slide files."""
    names, called = predictions.hierarchy.names(), predictions.calls().tolist()
    for row, slide in enumerate(predictions.names):
        output.print(f"{slide}: {names[called[row]]}", style="bold")
        for level, probabilities in enumerate(predictions.probabilities):
            labels = list(zip(predictions.hierarchy.names(level), probabilities[row].tolist(), strict=True))
            rest = len(labels) - MOST_SHOWN
            if rest > 0:
                labels = sorted(labels, key=lambda pair: -pair[1])[:MOST_SHOWN]
            shown = "  ".join(f"{label} {value:.3f}" for label, value in labels)
            more = f"  and {rest} less probable" if rest > 0 else ""
            output.print(f"{slide}, {predictions.hierarchy.level_names[level]}: {shown}{more}")
