"""The files of one heatmap: pictures to show, tiles for QuPath, and the page that joins them with the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from pams_mil import atomic
from pams_mil.arrays import Pixels
from pams_mil.class_checks import SEPARATOR
from pams_mil.cli.console import encode_slides
from pams_mil.data import BagSample, SlideRecord, read_bag
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.bags.store import FeatureFolder
from pams_mil.engine.prediction.predict import LoadedRun, predict
from pams_mil.engine.prediction.slide_predictions import SlidePredictions
from pams_mil.engine.prediction.tiles import TileLayer, mean_layers, measure
from pams_mil.errors import BagError, SlideError, counted
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.slide_page import LevelCall, PictureLayer, TileStrip, slide_page
from pams_mil.wsi.encoders.encoder import EncoderOptions
from pams_mil.wsi.extract import tile_side_px0
from pams_mil.wsi.heat_figure import Legend, compose, readable_overview, top_tiles, with_scale_bar
from pams_mil.wsi.heatmap import Heatmap, encoded, overlay, ranked, symmetric, write_geojson, write_png
from pams_mil.wsi.physical_pixels import Overview
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.slide_sources import SlideSource

_PAGE_PX, _THUMBNAIL_PX = 1200, 144
_COLORS = {"rank": "inferno", "sign": "coolwarm", "probability": "inferno"}


def draw_slide(
    loaded: Sequence[LoadedRun],
    source: SlideSource,
    out: Path,
    origin: Mapping[str, Any],
    *,
    features: Path | None,
    encoder: str | None,
    options: EncoderOptions,
    **drawing: Any,
) -> tuple[SlidePredictions, Path]:
    """Predict a slide and write its heatmaps below `out`; of several runs, such as a committee's, the mean of them.

    Its bag lies in `features`, or is made as `origin` says; `drawing` are the options of `write_heatmaps`.
    """
    folder = out / FileNames()[source.slide_id]
    if features is None:
        manifest, features = encode_slides(
            source.slide_id, [source], out, origin=origin, encoder=encoder, options=options
        )
    else:
        manifest = folder / "slides.csv"
        atomic.write_csv(manifest, ["slide_id"], [[source.slide_id]])
    seen: list[tuple[BagSample, list[Tensor]]] = []
    predictions = predict(
        loaded, manifest, features=features, labels=False, device=options.device,
        attend=lambda sample, attention: seen.append((sample, attention)),
    )  # fmt: skip
    if not seen:
        raise SlideError("; ".join(predictions.failures.values()) or f"{source.slide_id!r} could not be predicted.")
    sample, attention = seen[0]
    layers = mean_layers([measure(one.learner, sample.features, attention, sample.slide_id) for one in loaded])
    with Slide(source.path, mpp_of_slide=source.mpp, mpp_is_certain=source.mpp_is_certain) as slide:
        record = SlideRecord(slide_id=sample.slide_id, patient_id=sample.patient_id, label="")
        bag = read_bag(FeatureFolder(features).find(record), level0_mpp=slide.mpp)  # places may be in microns
        side = tile_side_px0(bag.info, origin, slide.mpp)
        if bag.coords_px0 is None:
            raise BagError(
                f"The bag of {sample.slide_id!r} has no coordinates, so there is no heatmap; extract it again."
            )
        if side is None:
            raise BagError(
                f"Neither the bag of {sample.slide_id!r} nor the run says how large its tiles are. State it with --mpp "
                "and --tile-px."
            )
        tiles = Heatmap(np.asarray(bag.coords_px0), side)
        return predictions, write_heatmaps(folder, slide, tiles, layers, predictions, **drawing)


def write_heatmaps(
    folder: Path,
    slide: Slide,
    tiles: Heatmap,
    layers: Sequence[TileLayer],
    predictions: SlidePredictions,
    *,
    model: str,
    opacity: float,
    longest_px: int,
) -> Path:
    """Write everything about one slide and return its page, which is written last."""
    overview = readable_overview(slide, longest_px=longest_px)
    mpp = overview.scale * slide.mpp
    names = FileNames(layer.name for layer in layers)
    pictures = [PictureLayer("Slide", _jpeg(with_scale_bar(overview.pixels, mpp), _PAGE_PX))]
    levels = _calls(predictions)
    findings = ", ".join(map(predictions.hierarchy.display, _called(predictions)))
    sets = [f"findings: {findings}"] if findings else []
    lines = [f"{level.name}: {level.classes[level.called][0]}, probability {level.classes[level.called][1]:.3f}"
             for level in reversed(levels)]  # fmt: skip
    for layer in layers:
        legend = _legend(layer, predictions.hierarchy)
        picture = with_scale_bar(_colored(overview, tiles, layer, opacity), mpp)
        write_png(
            folder / f"{names[layer.name].replace(' ', '_')}.png",
            compose(picture, legend, title=predictions.names[0], lines=[*lines, *sets, f"Model: {model}"]),
        )
        pictures.append(PictureLayer(legend.title, _jpeg(picture, _PAGE_PX), layer.scale, legend.bottom, legend.top))
    write_geojson(folder / "heatmap.geojson", tiles, {layer.name: layer.values for layer in layers})
    size, scale = f"{slide.width:,} x {slide.height:,} pixels", f"{slide.mpp:.3g} µm per pixel"
    page = slide_page(
        predictions.names[0], model=model, facts=[size, scale, counted(len(tiles.coords_px0), "tile"), *sets],
        levels=levels, layers=pictures, strips=_strips(slide, tiles, layers, predictions),
    )  # fmt: skip
    # For lists of slides: the evidence for the call, or the first layer where there is none.
    call = predictions.hierarchy.names()[int(predictions.calls(-1)[0])]
    shown = next((layer for layer in layers if layer.kind == "evidence" and layer.label == call), layers[0])
    atomic.write_bytes(folder / "thumbnail.jpg", _jpeg(_colored(overview, tiles, shown, opacity), _THUMBNAIL_PX))
    atomic.write_text(folder / "slide.html", page)
    return folder / "slide.html"


def _called(predictions: SlidePredictions) -> list[str]:
    """The findings that are called on the first slide, most urgent first; none where slides have one class each."""
    several = predictions.sample.finding_probabilities is not None
    return predictions.called_findings()[0].split(f"{SEPARATOR} ")[::-1] if several else []


def _calls(predictions: SlidePredictions) -> list[LevelCall]:
    display = predictions.hierarchy.display
    return [
        LevelCall(name, [(display(label), p) for label, p in shares.items()], int(predictions.calls(level)[0]))
        for level, (name, shares) in enumerate(predictions.by_level(0).items())
    ]


def _colored(overview: Overview, tiles: Heatmap, layer: TileLayer, opacity: float) -> Pixels:
    shade = {"rank": ranked, "sign": symmetric}.get(layer.scale)
    shades = layer.values if shade is None else shade(layer.values)
    return overlay(overview, tiles, shades, colors=_COLORS[layer.scale], opacity=opacity)


def _legend(layer: TileLayer, hierarchy: ClassHierarchy) -> Legend:
    colors = _COLORS[layer.scale]
    if layer.label is None:
        return Legend(f"Attention {layer.level}", colors, "most", "least", "by rank")
    label = hierarchy.display(layer.label)
    if layer.kind == "urgency":
        return Legend(f"At least {label} ({layer.level}), tile by tile", colors, "probability 1", "0", "½")
    reach = float(abs(layer.values).max())
    title = f"Evidence for {label} ({layer.level})"
    if layer.kind == "finding":
        title = f"Evidence that {label} is present"
    return Legend(title, colors, f"for: +{reach:.2g}", f"against: −{reach:.2g}", "0")


def _strips(
    slide: Slide, tiles: Heatmap, layers: Sequence[TileLayer], predictions: SlidePredictions
) -> list[TileStrip]:
    """Tiles of the finest level: the most attended, the most urgent, and those that say most for the called class."""
    hierarchy = predictions.hierarchy
    names, ranks = hierarchy.names(), hierarchy.ranks().tolist()
    index = int(predictions.calls()[0])
    finest, called = hierarchy.level_names[-1], names[index]
    # Layers of urgency are named after the first class of a rank; tied classes share one.
    as_urgent = names[ranks.index(ranks[index])]
    wanted = [
        (("attention", finest, None), "The tiles with most attention, and their share of it", "{:.2%}"),
        (("urgency", finest, as_urgent), f"The tiles likeliest at least {hierarchy.display(as_urgent)}", "{:.1%}"),
        (("evidence", finest, called), f"The tiles that say most for {hierarchy.display(called)}", "{:+.3g}"),
    ]
    for label in _called(predictions):
        title = f"The tiles that say most for the presence of {hierarchy.display(label)}"
        wanted.append((("finding", finest, label), title, "{:+.3g}"))
    strips = []
    by_key = {layer.key: layer for layer in layers}
    for key, title, text in wanted:
        if key in by_key:
            shown = [
                (_jpeg(one.pixels), f"{text.format(one.value).replace('%', ' %')} at ({one.x}, {one.y})")
                for one in top_tiles(slide, tiles, by_key[key].values)
            ]
            strips.append(TileStrip(title, shown))
    return strips


def _jpeg(pixels: Pixels, longest_px: int | None = None) -> bytes:
    image = Image.fromarray(pixels)
    if longest_px is not None:
        image.thumbnail((longest_px, longest_px))
    return encoded(image, "JPEG")
