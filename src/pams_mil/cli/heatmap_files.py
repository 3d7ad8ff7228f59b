"""The files of one heatmap: pictures to show, tiles for QuPath, and the page that joins them with the scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pams_mil.arrays import Pixels
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions
    from pams_mil.engine.prediction.tiles import TileLayer
    from pams_mil.hierarchy import ClassHierarchy
    from pams_mil.report.slide_page import LevelCall, TileStrip
    from pams_mil.wsi.heat_figure import Legend
    from pams_mil.wsi.heatmap import Heatmap
    from pams_mil.wsi.physical_pixels import Overview
    from pams_mil.wsi.slide import Slide

_PAGE_PX, _THUMBNAIL_PX = 1200, 144
_COLORS = {"rank": "inferno", "sign": "coolwarm", "probability": "inferno"}


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
    from pams_mil import atomic
    from pams_mil.data.bags.filenames import FileNames
    from pams_mil.report.slide_page import PictureLayer, slide_page
    from pams_mil.wsi.heat_figure import compose, readable_overview, with_scale_bar
    from pams_mil.wsi.heatmap import write_geojson, write_png

    overview = readable_overview(slide, longest_px=longest_px)
    mpp = overview.scale * slide.mpp
    names = FileNames(layer.name for layer in layers)
    pictures = [PictureLayer("Slide", _jpeg(with_scale_bar(overview.pixels, mpp), _PAGE_PX))]
    levels = _calls(predictions)
    findings = [] if predictions.findings is None else map(predictions.hierarchy.display, _called(predictions))
    sets = [f"findings: {', '.join(called)}"] if (called := list(findings)) else []
    lines = [f"{level.name}: {level.classes[level.called][0]}, probability {level.classes[level.called][1]:.3f}"
             for level in reversed(levels)]  # fmt: skip
    for layer in layers:
        legend = _legend(layer, predictions.hierarchy)
        picture = with_scale_bar(_colored(overview, tiles, layer, opacity), mpp)
        write_png(
            folder / f"{names[layer.name].replace(' ', '_')}.png",
            compose(picture, legend, title=predictions.names[0], lines=[*lines, *sets, f"Model: {model}"]),
        )
        low, high = (legend.bottom, legend.top)
        pictures.append(PictureLayer(legend.title, _jpeg(picture, _PAGE_PX), layer.scale, low, high))
    write_geojson(folder / "heatmap.geojson", tiles, {layer.name: layer.values for layer in layers})
    count = len(tiles.coords_px0)
    facts = [
        f"{slide.width:,} x {slide.height:,} pixels", f"{slide.mpp:.3g} µm per pixel",
        f"{count:,} {'tile' if count == 1 else 'tiles'}", *sets,
    ]  # fmt: skip
    page = slide_page(
        predictions.names[0], model=model, facts=facts, levels=levels, layers=pictures,
        strips=_strips(slide, tiles, layers, predictions),
    )  # fmt: skip
    # For lists of slides: the evidence for the call, or the first layer where there is none.
    call = predictions.hierarchy.names()[int(predictions.calls(-1)[0])]
    shown = next((layer for layer in layers if layer.kind == "evidence" and layer.label == call), layers[0])
    atomic.write_bytes(folder / "thumbnail.jpg", _jpeg(_colored(overview, tiles, shown, opacity), _THUMBNAIL_PX))
    atomic.write_text(folder / "slide.html", page)
    return folder / "slide.html"


def _called(predictions: SlidePredictions) -> list[str]:
    """The findings that are called on the first slide, most urgent first."""
    from pams_mil.class_checks import SEPARATOR

    return list(reversed(predictions.called_findings()[0].split(f"{SEPARATOR} ")))


def _calls(predictions: SlidePredictions) -> list[LevelCall]:
    from pams_mil.report.slide_page import LevelCall

    hierarchy = predictions.hierarchy
    return [
        LevelCall(
            hierarchy.level_names[level],
            [
                (hierarchy.display(label), float(p))
                for label, p in zip(hierarchy.names(level), values[0].tolist(), strict=True)
            ],
            int(predictions.calls(level)[0]),
        )
        for level, values in enumerate(predictions.probabilities)
    ]


def _colored(overview: Overview, tiles: Heatmap, layer: TileLayer, opacity: float) -> Pixels:
    from pams_mil.wsi.heatmap import overlay, ranked, symmetric

    shade = {"rank": ranked, "sign": symmetric}.get(layer.scale)
    shades = layer.values if shade is None else shade(layer.values)
    return overlay(overview, tiles, shades, colors=_COLORS[layer.scale], opacity=opacity)


def _legend(layer: TileLayer, hierarchy: ClassHierarchy) -> Legend:
    from pams_mil.wsi.heat_figure import Legend

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
    from pams_mil.report.slide_page import TileStrip
    from pams_mil.wsi.heat_figure import top_tiles

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
    if predictions.findings is not None:
        wanted += [
            (
                ("finding", finest, label),
                f"The tiles that say most for the presence of {hierarchy.display(label)}",
                "{:+.3g}",
            )
            for label in _called(predictions)
        ]
    strips = []
    by_key = {layer.key: layer for layer in layers}
    for key, title, text in wanted:
        if key in by_key:
            best = top_tiles(slide, tiles, by_key[key].values)
            shown = [
                (_jpeg(one.pixels), f"{text.format(one.value).replace('%', ' %')} at ({one.x}, {one.y})")
                for one in best
            ]
            strips.append(TileStrip(title, shown))
    return strips


def _jpeg(pixels: Pixels, longest_px: int | None = None) -> bytes:
    from PIL import Image

    from pams_mil.wsi.heatmap import encoded

    image = Image.fromarray(pixels)
    if longest_px is not None:
        image.thumbnail((longest_px, longest_px))
    return encoded(image, "JPEG")
