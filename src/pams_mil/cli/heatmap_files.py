"""The files of one heatmap: pictures to show, tiles for QuPath, and the page that joins them with the scores."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pams_mil.arrays import Array, Pixels
    from pams_mil.engine.prediction.slide_predictions import SlidePredictions
    from pams_mil.report.slide_page import LevelCall, TileStrip
    from pams_mil.wsi.heat_figure import Legend
    from pams_mil.wsi.heatmap import Heatmap
    from pams_mil.wsi.physical_pixels import Overview
    from pams_mil.wsi.slide import Slide

    Measured = dict[str, tuple[str, Array]]

_PAGE_PX = 1200
_COLORS = {"rank": "inferno", "sign": "coolwarm", "probability": "inferno"}
_JPEG_QUALITY = 82


def write_heatmaps(
    folder: Path,
    slide: Slide,
    tiles: Heatmap,
    measured: Measured,
    found: SlidePredictions,
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
    names = FileNames(measured)
    layers = [PictureLayer("Slide", _jpeg(with_scale_bar(overview.pixels, mpp), _PAGE_PX))]
    levels = _calls(found)
    lines = [f"{level.name}: {level.classes[level.called][0]}, probability {level.classes[level.called][1]:.3f}"
             for level in reversed(levels)]  # fmt: skip
    for name, (kind, values) in measured.items():
        legend = _legend(name, kind, values, found)
        picture = with_scale_bar(_colored(overview, tiles, kind, values, opacity), mpp)
        write_png(
            folder / f"{names[name].replace(' ', '_')}.png",
            compose(picture, legend, title=found.names[0], lines=[*lines, f"Model: {model}"]),
        )
        low, high = (legend.bottom, legend.top)
        layers.append(PictureLayer(legend.title, _jpeg(picture, _PAGE_PX), kind, low, high))
    write_geojson(folder / "heatmap.geojson", tiles, {name: values for name, (_, values) in measured.items()})
    count = len(tiles.coords_px0)
    facts = [
        f"{slide.width:,} x {slide.height:,} pixels", f"{slide.mpp:.3g} µm per pixel",
        f"{count:,} {'tile' if count == 1 else 'tiles'}",
    ]  # fmt: skip
    page = slide_page(
        found.names[0], model=model, facts=facts, levels=levels, layers=layers,
        strips=_strips(slide, tiles, measured, found),
    )  # fmt: skip
    atomic.write_text(folder / "slide.html", page)
    return folder / "slide.html"


def _calls(found: SlidePredictions) -> list[LevelCall]:
    from pams_mil.report.slide_page import LevelCall

    hierarchy = found.hierarchy
    return [
        LevelCall(
            hierarchy.level_names[level],
            [
                (hierarchy.display(label), float(p))
                for label, p in zip(hierarchy.names(level), values[0].tolist(), strict=True)
            ],
            int(found.calls(level)[0]),
        )
        for level, values in enumerate(found.probabilities)
    ]


def _colored(overview: Overview, tiles: Heatmap, kind: str, values: Any, opacity: float) -> Pixels:
    from pams_mil.wsi.heatmap import overlay, ranked, symmetric

    shades = values if kind == "probability" else ranked(values) if kind == "rank" else symmetric(values)
    return overlay(overview, tiles, shades, colors=_COLORS[kind], opacity=opacity)


def _legend(name: str, kind: str, values: Any, found: SlidePredictions) -> Legend:
    from pams_mil.wsi.heat_figure import Legend

    what, _, where = name.partition(" ")
    if kind == "rank":
        return Legend(f"{what.capitalize()} {where}", _COLORS[kind], "most", "least", "by rank")
    # Names of levels and classes may hold spaces, so the pair is looked up instead of cut out.
    tree = found.hierarchy
    pairs = ((level, label) for number, level in enumerate(tree.level_names) for label in tree.names(number))
    level, label = next(pair for pair in pairs if where == " ".join(pair))
    if kind == "probability":
        shown = f"At least {tree.display(label)} ({level}), tile by tile"
        return Legend(shown, _COLORS[kind], "probability 1", "0", "½")
    reach = float(abs(values).max())
    shown = f"Evidence for {tree.display(label)} ({level})"
    return Legend(shown, _COLORS[kind], f"for: +{reach:.2g}", f"against: −{reach:.2g}", "0")


def _strips(slide: Slide, tiles: Heatmap, measured: Measured, found: SlidePredictions) -> list[TileStrip]:
    """Tiles of the finest level: the most attended, the most urgent, and those that say most for the called class."""
    from pams_mil.report.slide_page import TileStrip
    from pams_mil.wsi.heat_figure import top_tiles

    hierarchy = found.hierarchy
    names, ranks = hierarchy.names(), hierarchy.ranks().tolist()
    index = int(found.calls()[0])
    finest, called = hierarchy.level_names[-1], names[index]
    # Layers of urgency are named after the first class of a rank; tied classes share one.
    as_urgent = names[ranks.index(ranks[index])]
    wanted = [
        (f"attention {finest}", "The tiles with most attention, and their share of it", "{:.2%}"),
        (f"urgency {finest} {as_urgent}", f"The tiles likeliest at least {hierarchy.display(as_urgent)}", "{:.1%}"),
        (f"evidence {finest} {called}", f"The tiles that say most for {hierarchy.display(called)}", "{:+.3g}"),
    ]
    strips = []
    for name, title, text in wanted:
        if name in measured:
            best = top_tiles(slide, tiles, measured[name][1])
            shown = [
                (_jpeg(one.pixels), f"{text.format(one.value).replace('%', ' %')} at ({one.x}, {one.y})")
                for one in best
            ]
            strips.append(TileStrip(title, shown))
    return strips


def _jpeg(pixels: Pixels, longest_px: int | None = None) -> bytes:
    from PIL import Image

    image = Image.fromarray(pixels)
    if longest_px is not None:
        image.thumbnail((longest_px, longest_px))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()
