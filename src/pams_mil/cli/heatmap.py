"""`pams heatmap`: where on the slide a trained run looks, and what speaks for which class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import errors, output
from pams_mil.cli.out_option import out_folder

if TYPE_CHECKING:
    from torch import Tensor

    from pams_mil.data.bags.dataset import BagSample
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions
    from pams_mil.wsi.heatmap import Heatmap
    from pams_mil.wsi.overview import Overview


def heatmap(
    run: Path = typer.Argument(..., help="Run folder or checkpoint."),
    slide: Path = typer.Argument(..., help="The slide."),
    out: Path = typer.Option(
        ..., "--out", callback=out_folder, help="Folder for the pictures, heatmap.geojson and the features."
    ),
    features: Path | None = typer.Option(None, "--features", help="Folder with the slide's bag, if extracted already."),
    encoder: str | None = typer.Option(None, "--encoder", help="Where the run's encoder is, if its name does not say."),
    weights: Path | None = typer.Option(None, "--weights", help="Weight file of the encoder, for use offline."),
    mpp_of_slide: float | None = typer.Option(None, "--mpp-of-slide", help="If the slide does not state it."),
    mpp: float = typer.Option(4.0, "--picture-mpp", help="Microns per pixel of the pictures."),
    opacity: float = typer.Option(0.5, "--opacity", min=0.0, max=1.0, help="How strongly colors cover the slide."),
    trust_code: bool = typer.Option(False, "--trust-code", help="Allow a run that names your own method or model."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, ..."),
) -> None:
    """Draw attention and per-class evidence over a slide, for every level the run was trained on.

    Writes attention_LEVEL.png, evidence_LEVEL_CLASS.png and heatmap.geojson, which QuPath opens.

    Example: pams heatmap runs/pams-abmil-seed0 slide.svs --out heat
    """
    from pams_mil.engine.prediction.evidence import measure
    from pams_mil.engine.prediction.predict import load_run, predict
    from pams_mil.wsi.overview import read_overview
    from pams_mil.wsi.slide import Slide

    loaded = load_run(run, trusted=trust_code)
    ready = _bags(slide, out, features, dict(loaded.blueprint.encoder), encoder, weights, device, mpp_of_slide)
    seen: list[tuple[BagSample, list[Tensor]]] = []
    found = predict(
        [run], ready[0], features=ready[1], labels=False, trusted=trust_code, device=device,
        attend=lambda sample, attention: seen.append((sample, attention)),
    )  # fmt: skip
    sample, attention = seen[0]
    tiles = _tiles(sample, ready[1])
    with Slide(slide, mpp_of_slide=mpp_of_slide) as opened:
        overview = read_overview(opened, mpp=mpp)
    measured = measure(loaded.learner, sample.features, attention, sample.slide_id)
    _write(out, overview, tiles, measured, opacity)
    _show(found, out)


def _bags(
    slide: Path,
    out: Path,
    features: Path | None,
    made: dict[str, Any],
    encoder: str | None,
    weights: Path | None,
    device: str,
    mpp_of_slide: float | None,
) -> tuple[Path, Path]:
    from pams_mil import atomic
    from pams_mil.wsi.encoders.encoder import EncoderOptions
    from pams_mil.wsi.slide_sources import find_slides
    from pams_mil.wsi.slides_for_run import bags_for_run

    sources = find_slides([slide], mpp_of_slide=mpp_of_slide)
    if features is not None:
        table = out / "slides.csv"
        atomic.write_csv(table, ["slide_id"], [[sources[0].slide_id]])
        return table, features
    ready = bags_for_run(
        sources, out / "features", made, encoder=encoder, options=EncoderOptions(device=device, weights=weights),
        announce=lambda text: errors.print(f"Notice: {text}", highlight=False, markup=False, soft_wrap=True),
    )  # fmt: skip
    return ready.manifest, ready.features


def _tiles(sample: BagSample, features: Path) -> Heatmap:
    from pams_mil.data import read_bag
    from pams_mil.data.bags.locate import FeatureFolder
    from pams_mil.data.manifest.manifest import SlideRecord
    from pams_mil.errors import BagError
    from pams_mil.wsi.heatmap import Heatmap

    record = SlideRecord(slide_id=sample.slide_id, patient_id=sample.patient_id, label="")
    side = read_bag(FeatureFolder(features).find(record)).info.tile_px0
    if sample.coords_px0 is None or side is None:
        raise BagError(
            f"The bag of {sample.slide_id!r} does not say where its tiles lie; extract it with 'pams extract'."
        )
    return Heatmap(sample.coords_px0.numpy(), side)


def _write(out: Path, overview: Overview, tiles: Heatmap, measured: dict[str, Any], opacity: float) -> None:
    from pams_mil.data.bags.filenames import file_names
    from pams_mil.wsi.heatmap import overlay, ranked, symmetric, write_geojson, write_png

    names = file_names(measured)
    for name, (kind, values) in measured.items():
        shades, colors = (ranked(values), "inferno") if kind == "rank" else (symmetric(values), "coolwarm")
        picture = overlay(overview, tiles, shades, colors=colors, opacity=opacity)
        write_png(out / f"{names[name].replace(' ', '_')}.png", picture)
    write_geojson(out / "heatmap.geojson", tiles, {name: values for name, (_, values) in measured.items()})


def _show(found: SlidePredictions, out: Path) -> None:
    for level, probabilities in enumerate(found.probabilities):
        labels = found.hierarchy.names(level)
        shown = ", ".join(f"{label} {p:.3f}" for label, p in zip(labels, probabilities[0].tolist(), strict=True))
        output.print(f"{found.hierarchy.level_names[level]}: {shown}", highlight=False, markup=False, soft_wrap=True)
    output.print(f"Heatmaps: {out}", highlight=False, markup=False, soft_wrap=True)
