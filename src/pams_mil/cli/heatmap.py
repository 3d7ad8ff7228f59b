"""`pams heatmap`: where on the slide a trained run looks, and what speaks for which class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import errors, output, print_json, print_note, print_notice, print_result
from pams_mil.cli.options import out_folder
from pams_mil.errors import BagError, PamsError, SlideError

if TYPE_CHECKING:
    from torch import Tensor

    from pams_mil.data.bags.dataset import BagSample
    from pams_mil.engine.prediction.predict import LoadedRun
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions
    from pams_mil.wsi.heatmap import Heatmap
    from pams_mil.wsi.slide_sources import SlideSource


@dataclass(frozen=True)
class _Making:
    """How bags of new slides are made, or where they lie, and how pictures are drawn."""

    out: Path
    features: Path | None
    origin: dict[str, Any]
    encoder: str | None
    weights: Path | None
    device: str
    opacity: float
    picture_px: int


def heatmap(
    run: Path = typer.Argument(..., help="Run folder or checkpoint."),
    slides: list[Path] = typer.Argument(..., metavar="SLIDE...", help="Slide files, or folders to search for slides."),
    out: Path = typer.Option(..., "--out", callback=out_folder, help="Folder; every slide gets a folder inside."),
    features: Path | None = typer.Option(
        None, "--features", help="Folder with the slides' bags, if extracted already."
    ),
    encoder: str | None = typer.Option(
        None, "--encoder", help="The run's encoder, if the run does not name it or its name does not lead to it."
    ),
    mpp: float | None = typer.Option(None, "--mpp", help="Microns per pixel of the run's tiles, if it does not say."),
    tile_px: int | None = typer.Option(None, "--tile-px", help="Side of the run's tiles, if it does not say."),
    weights: Path | None = typer.Option(None, "--weights", help="Weight file of the encoder, for use offline."),
    mpp_of_slide: float | None = typer.Option(None, "--mpp-of-slide", help="If the slide does not state it."),
    picture_px: int = typer.Option(1600, "--picture-px", min=200, max=8192, help="Longer side of the pictures."),
    opacity: float = typer.Option(0.5, "--opacity", min=0.0, max=1.0, help="How strongly colors cover the slide."),
    trust_code: bool = typer.Option(False, "--trust-code", help="Allow a run that names your own method or model."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, ..."),
    json: bool = typer.Option(False, "--json", help="Print probabilities and files as JSON."),
) -> None:
    """Draw attention and per-class evidence over slides, for every level the run was trained on.

    Writes for every slide a folder with slide.html (all of it on one page), attention_LEVEL.png,
    evidence_LEVEL_CLASS.png (finding_LEVEL_CLASS.png where slides have several findings), and heatmap.geojson, which
    QuPath opens.

    Example: pams heatmap runs/pams-abmil-seed0 slides/case-17.svs --features features --out heat
    """
    from pams_mil.data.bags.feature_origin import complete_origin
    from pams_mil.engine.prediction.predict import load_runs
    from pams_mil.wsi.slide_sources import find_slides

    loaded = load_runs([run], trusted=trust_code, device=device)
    stated = {"mpp": mpp, "tile_px": tile_px}
    origin = complete_origin(loaded[0].spec.encoder, stated, where="The command", whose=f"the run {run}")
    making = _Making(out, features, origin, encoder, weights, device, opacity, picture_px)
    report: dict[str, Any] = {}
    failed = {}
    sources = find_slides(slides, mpp_of_slide=mpp_of_slide)
    for source in sources:
        try:
            report[source.slide_id] = _draw(loaded, source, making, model=str(run), quiet=json)
        except PamsError as error:
            if len(sources) == 1:
                raise
            failed[source.slide_id] = str(error)
            print_note(f"{source.slide_id}: {error}")
    if json:
        print_json({"slides": report, "failed": failed})
    if failed:
        raise typer.Exit(1)


def _draw(loaded: list[LoadedRun], source: SlideSource, making: _Making, *, model: str, quiet: bool) -> dict[str, Any]:
    """Draw a slide; of several runs, such as a committee's, the mean of their maps."""
    from pams_mil.data.bags.filenames import FileNames
    from pams_mil.engine.prediction.predict import predict
    from pams_mil.engine.prediction.tiles import mean_layers, measure
    from pams_mil.wsi.slide import Slide

    folder = making.out / FileNames()[source.slide_id]
    manifest, features = _bags(source, making, folder)
    seen: list[tuple[BagSample, list[Tensor]]] = []
    predictions = predict(
        loaded, manifest, features=features, labels=False, device=making.device,
        attend=lambda sample, attention: seen.append((sample, attention)),
    )  # fmt: skip
    if not seen:
        raise SlideError("; ".join(predictions.failures.values()) or f"{source.slide_id!r} could not be predicted.")
    sample, attention = seen[0]
    layers = mean_layers([measure(one.learner, sample.features, attention, sample.slide_id) for one in loaded])
    with Slide(source.path, mpp_of_slide=source.mpp, mpp_is_certain=source.mpp_is_certain) as slide:
        from pams_mil.cli.heatmap_files import write_heatmaps

        tiles = _tiles(sample, features, making.origin, slide.mpp)
        page = write_heatmaps(
            folder, slide, tiles, layers, predictions, model=model, opacity=making.opacity,
            longest_px=making.picture_px,
        )  # fmt: skip
    if not quiet:
        _show(predictions, page)
    return {"page": str(page), "probabilities": predictions.by_level(0)}


def _bags(source: SlideSource, making: _Making, folder: Path) -> tuple[Path, Path]:
    from rich.text import Text

    from pams_mil import atomic
    from pams_mil.wsi.encoders.encoder import EncoderOptions
    from pams_mil.wsi.extract import bags_for_run

    if making.features is not None:
        table = folder / "slides.csv"
        atomic.write_csv(table, ["slide_id"], [[source.slide_id]])
        return table, making.features
    with errors.status(Text(f"Encoding {source.slide_id}")):
        ready = bags_for_run(
            [source], making.out / "features", making.origin, encoder=making.encoder,
            options=EncoderOptions(device=making.device, weights=making.weights),
            announce=print_notice,
        )  # fmt: skip
    return ready.manifest, ready.features


def _tiles(sample: BagSample, features: Path, origin: dict[str, Any], mpp_of_slide: float) -> Heatmap:
    import numpy as np

    from pams_mil.data import read_bag
    from pams_mil.data.bags.store import FeatureFolder
    from pams_mil.data.manifest.manifest import SlideRecord
    from pams_mil.wsi.extract import tile_side_px0
    from pams_mil.wsi.heatmap import Heatmap

    record = SlideRecord(slide_id=sample.slide_id, patient_id=sample.patient_id, label="")
    bag = read_bag(FeatureFolder(features).find(record), level0_mpp=mpp_of_slide)  # places may be in microns
    side = tile_side_px0(bag.info, origin, mpp_of_slide)
    if bag.coords_px0 is None:
        raise BagError(f"The bag of {sample.slide_id!r} has no coordinates, so there is no heatmap; extract it again.")
    if side is None:
        raise BagError(
            f"Neither the bag of {sample.slide_id!r} nor the run says how large its tiles are. State it with --mpp and "
            "--tile-px."
        )
    return Heatmap(np.asarray(bag.coords_px0), side)


def _show(predictions: SlidePredictions, page: Path) -> None:
    output.print(f"{predictions.names[0]}:", style="bold")
    for level, probabilities in enumerate(predictions.probabilities):
        labels = predictions.hierarchy.names(level)
        shown = ", ".join(f"{label} {p:.3f}" for label, p in zip(labels, probabilities[0].tolist(), strict=True))
        print_result(f"{predictions.hierarchy.level_names[level]}: {shown}")
    if predictions.findings is not None:
        print_result(f"findings: {predictions.called_findings()[0]}")
    print_result(f"Page: {page}")
