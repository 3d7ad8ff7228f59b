"""`pams predict`: probabilities of any slides, from one run or the average of several."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Exit, Option

from pams_mil.cli import console
from pams_mil.cli.console import output, print_note, print_result
from pams_mil.cli.options import PatientsAreSlides, out_folder
from pams_mil.errors import ConfigError, counted

if TYPE_CHECKING:
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions

MOST_SHOWN = 20
"""Probabilities of one slide that are printed, the largest of more."""


def predict(
    paths: list[Path] = Argument(
        ...,
        metavar="RUN... MANIFEST|SLIDE...",
        help="Run folders, a cross-validation folder, or hf://owner/name; then the table of slides, or slide files.",
    ),
    features: Path | None = Option(None, help="Folder of feature files, or a pack."),
    split: str | None = Option(None, help="Only this split; default: all slides."),
    out: Path | None = Option(
        None, callback=out_folder, help="Folder for the predictions; default, of one run: RUN/predictions."
    ),
    attention: bool = Option(False, "--attention", help="Also write attention/<slide>.h5 for heat maps."),
    tiles: bool = Option(
        False, "--tiles", help="Also write tiles/<slide>.parquet: place, attention and evidence of every tile."
    ),
    into_stores: bool = Option(
        False, "--into-stores", help="Also add them as columns to the tiles of the LazySlide stores in --features."
    ),
    parquet: bool = Option(False, "--parquet", help="Also write the predictions as parquet."),
    calibrated: bool = Option(False, "--calibrated", help="Calibrated probabilities; see 'pams calibrate'."),
    labels: bool = Option(True, "--labels/--no-labels", help="Use the table's labels where it has them."),
    classes: str | None = Option(None, help="Refuse runs that were trained with other classes."),
    trust_code: bool = Option(False, "--trust-code", help="Allow runs that name your own methods or models."),
    device: str = Option("auto", help="auto, cpu, cuda, ..."),
    encoder: str | None = Option(
        None, help="For slide files: the run's encoder, if the run does not name it or where it is."
    ),
    mpp: float | None = Option(None, help="For slide files: the run's resolution, if it does not say."),
    tile_px: int | None = Option(None, help="For slide files: its tiles' side, if it does not say."),
    mpp_of_slide: float | None = Option(None, help="Scale of slides that do not state it."),
    certificate: Path | None = Option(
        None, help="Also write the calls that this certificate.json of 'pams certify' certifies."
    ),
    patients_are_slides: PatientsAreSlides = False,
    json: bool = Option(False, "--json", help="Print what was predicted and written as JSON."),
    decide: str = Option("argmax", help="argmax, ascc, risk, or kappa=3: a missed urgency costs 3 false alarms."),
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
    stated = None if classes is None else ClassHierarchy.load(classes)
    refuse_other_classes({run.path: run.spec.hierarchy for run in loaded}, stated)
    guarantee = None if certificate is None else certificate_for(certificate, loaded, calibrated=calibrated)
    home = RunFolder.at(runs[0])
    if manifest is None:
        from pams_mil.wsi.encoders.encoder import EncoderOptions
        from pams_mil.wsi.slide_sources import find_slides

        resolution = {"mpp": mpp, "tile_px": tile_px}
        origin = complete_origin(loaded[0].spec.encoder, resolution, where="The command", whose=f"the run {runs[0]}")
        sources = find_slides(slides, mpp_of_slide=mpp_of_slide)
        manifest, features = console.encode_slides(
            counted(len(sources), "slide"), sources, out or home.predictions, origin=origin, encoder=encoder,
            options=EncoderOptions(device),
        )  # fmt: skip
    kinds = [*(["calibrated"] if calibrated else []), *([] if decide == "argmax" else [str(rule)])]
    weights = tuple(identity_of(run, calibrated=calibrated) for run in loaded)
    place = Destination.prepared(out, home, manifest, split, kinds, weights)
    unwritten: dict[str, str] = {}
    writers = [attention_writer(place.side)] if attention else []
    if tiles or into_stores:
        learners = [run.learner for run in loaded]
        # The same bag feeds all writers, so a slide is read and predicted once.
        writers.append(
            tile_writer(learners, place.side if tiles else None, features if into_stores else None, unwritten)
        )
    with console.progress_bar() as progress:
        predictions = run_prediction(
            loaded, manifest, split=split, features=features, labels=labels, device=device, calibrated=calibrated,
            patients_are_slides=patients_are_slides, attend=one_after_the_other(writers) if writers else None,
            progress=partial(progress, "Predicting"),
        )  # fmt: skip
    predictions = predictions.decided(rule)
    if guarantee is not None:
        predictions = predictions.certified(guarantee, patients_are_slides=patients_are_slides)
    written = predictions.write(place.folder, name=place.name)
    if parquet:
        written += [csv_as_parquet(path) for path in written]
    for note in predictions.excluded:
        console.print_notice(note)
    _warn_of_seen_patients(predictions)
    names, unlike = predictions.hierarchy.names(), predictions.disagreements()
    calls = [names[call] for call in predictions.calls().tolist()]
    if json:
        rows = [
            {"slide_id": slide, "prediction": call, "disagrees": unlike.get(slide), "probabilities": shares}
            for slide, call, shares in zip(
                predictions.names, calls, map(predictions.by_level, range(len(calls))), strict=True
            )
        ]
        files = [str(path) for path in written]
        console.print_json({"runs": list(predictions.runs), "decided_by": str(rule), "files": files, "slides": rows})
    else:
        for path in written:
            print_result(f"Wrote {path}")
        _show(predictions, calls, unlike, written)
        if guarantee is not None:
            console.show_guarantee(guarantee)
        if slides:
            _show_each(predictions, calls)
    for slide, reason in unwritten.items():
        print_note(f"{slide}: {reason}", style="yellow")
    console.list_failures(predictions)
    if predictions.failures or unwritten:
        raise Exit(1)


def _warn_of_seen_patients(predictions: SlidePredictions) -> None:
    """Say how many slides are of patients that the model has seen: on those it looks better than it is."""
    from pams_mil.data.exposure import role_cell

    seen = Counter(role_cell(roles) for roles in predictions.sample.roles or () if roles)
    if seen:
        counts = ", ".join(f"{role} {count:,}" for role, count in seen.items())
        print_note(
            f"warning  {sum(seen.values()):,} of {len(predictions):,} slides are of patients that the model has seen "
            f"({counts}; column exposure). Do not judge it by them; a cross-validation has out-of-fold predictions.",
            style="yellow",
        )


def _show(predictions: SlidePredictions, calls: list[str], unlike: dict[str, str], written: list[Path]) -> None:
    """How many slides are called what, and on which of them levels disagree."""
    from pams_mil.report.page import readable_rows

    counts, (_, rows) = Counter(calls), readable_rows(predictions.hierarchy)
    shown = ", ".join(f"{row} {sum(counts[name] for name in classes)}" for row, classes in rows.items())
    output.print(f"{counted(len(predictions), 'slide')}, least urgent first: {shown}")
    if unlike:
        shown = ", ".join(f"{slide} ({opinion})" for slide, opinion in list(unlike.items())[:3])
        listed = next(path.name for path in written if path.stem.endswith("_review"))
        print_result(
            f"On {len(unlike)} of {len(predictions)} slides a coarser level says otherwise, e.g. {shown}. The finest "
            f"level decides; {listed} lists them."
        )


def _show_each(predictions: SlidePredictions, calls: list[str]) -> None:
    """Every slide's probabilities at every level, for a handful of slide files."""
    for row, (slide, call) in enumerate(zip(predictions.names, calls, strict=True)):
        output.print(f"{slide}: {call}", style="bold")
        for level, shares in predictions.by_level(row).items():
            rest = len(shares) - MOST_SHOWN
            labels = sorted(shares.items(), key=lambda pair: -pair[1] if rest > 0 else 0)[:MOST_SHOWN]
            shown = "  ".join(f"{label} {value:.3f}" for label, value in labels)
            more = f"  and {rest} less probable" if rest > 0 else ""
            output.print(f"{slide}, {level}: {shown}{more}")
