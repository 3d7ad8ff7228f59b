"""A heatmap to show: the slide at a readable size, whatever its own, with a scale bar, a legend and the call.

Beside it, the tiles with the highest values, as the slide shows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pams_mil.arrays import AnyArray, Pixels
from pams_mil.wsi.heatmap import Heatmap
from pams_mil.wsi.physical_pixels import Overview, read_overview, read_scaled
from pams_mil.wsi.slide import Slide

LONGEST_PX = 1600
_MARGIN, _LEGEND_PX, _NARROWEST = 24, 230, 900
_INK, _DIM, _PAPER = (27, 31, 36), (102, 112, 121), (255, 255, 255)


@dataclass(frozen=True)
class Legend:
    """What the colors mean: a colormap of matplotlib, and words at its upper end, its middle and its lower end."""

    title: str
    colors: str
    top: str
    bottom: str
    middle: str = ""


def readable_overview(slide: Slide, *, longest_px: int = LONGEST_PX) -> Overview:
    """The whole slide with its longer side `longest_px` long; a smaller slide is enlarged, so that it can be seen."""
    overview = read_overview(slide, mpp=slide.mpp, longest_px=longest_px)
    height, width = overview.pixels.shape[:2]
    zoom = longest_px / max(height, width)
    if zoom <= 1:
        return overview
    size = max(1, round(width * zoom)), max(1, round(height * zoom))
    enlarged = Image.fromarray(overview.pixels).resize(size, Image.Resampling.BICUBIC)
    return Overview(np.asarray(enlarged), overview.scale / zoom)


def bar_length_um(width_um: float) -> float:
    """The roundest length (1, 2 or 5 times a power of ten) of at most a quarter of the picture's width.

    >>> bar_length_um(1000.0), bar_length_um(79_000.0), bar_length_um(30.0)
    (200.0, 10000.0, 5.0)
    """
    most = width_um / 4
    # 1 times this power always fits, so there is a largest one.
    power = 10.0 ** math.floor(math.log10(most))
    return max(step * power for step in (1.0, 2.0, 5.0) if step * power <= most)


def length_text(um: float) -> str:
    """A length for people.

    >>> length_text(200.0), length_text(10_000.0), length_text(0.5)
    ('200 µm', '10 mm', '0.5 µm')
    """
    return f"{um / 1000:g} mm" if um >= 1000 else f"{um:g} µm"


def with_scale_bar(pixels: Pixels, mpp: float) -> Pixels:
    """The picture with a scale bar in its lower left corner; `mpp` is microns per pixel of the picture."""
    image = Image.fromarray(pixels)
    height, width = pixels.shape[:2]
    length = bar_length_um(width * mpp)
    text, bar = length_text(length), round(length / mpp)
    font = _font(max(13, round(max(width, height) / 64)))
    pen = ImageDraw.Draw(image)
    tall = font.getbbox(text)[3]
    pad = max(5, tall // 2)
    box = max(bar, round(font.getlength(text))) + 2 * pad
    left, top = pad, height - pad - (tall + 3 * pad)
    pen.rectangle((left, top, left + box, height - pad), fill=_PAPER)
    pen.text((left + pad, top + pad // 2), text, fill=_INK, font=font)
    pen.rectangle((left + pad, height - 2 * pad - pad // 2, left + pad + bar, height - 2 * pad), fill=_INK)
    return np.asarray(image)


def compose(picture: Pixels, legend: Legend, *, title: str, lines: Sequence[str]) -> Pixels:
    """The picture under a title and lines of text, with its legend beside it."""
    height, width = picture.shape[:2]
    large, small = _font(26, bold=True), _font(19)
    head = _MARGIN + 34 + 27 * len(lines) + _MARGIN // 2
    canvas_width = max(width + _LEGEND_PX + 2 * _MARGIN, _NARROWEST)
    canvas = Image.new("RGB", (canvas_width, head + max(height, 320) + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(canvas)
    room = canvas_width - 2 * _MARGIN
    pen.text((_MARGIN, _MARGIN), _fitting(title, large, room), fill=_INK, font=large)
    for number, line in enumerate(lines):
        pen.text((_MARGIN, _MARGIN + 36 + 27 * number), _fitting(line, small, room), fill=_DIM, font=small)
    canvas.paste(Image.fromarray(picture), (_MARGIN, head))
    _draw_legend(canvas, legend, _MARGIN + width + 20, head)
    return np.asarray(canvas)


def _draw_legend(canvas: Image.Image, legend: Legend, left: int, top: int) -> None:
    pen = ImageDraw.Draw(canvas)
    font, dim = _font(19, bold=True), _font(17)
    for line in _wrapped(legend.title, font, _LEGEND_PX - 10):
        pen.text((left, top), line, fill=_INK, font=font)
        top += 25
    top += 10
    tall = 200
    shades = matplotlib.colormaps[legend.colors](np.linspace(1, 0, tall))[:, :3]
    bar = np.repeat((255 * shades).astype(np.uint8)[:, None], 26, axis=1)
    canvas.paste(Image.fromarray(bar), (left, top))
    pen.rectangle((left, top, left + 25, top + tall - 1), outline=_DIM)
    for text, y in ((legend.top, top), (legend.middle, top + tall // 2 - 10), (legend.bottom, top + tall - 20)):
        pen.text((left + 36, y), _fitting(text, dim, _LEGEND_PX - 46), fill=_INK, font=dim)


def _wrapped(text: str, font: ImageFont.FreeTypeFont, room: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return [_fitting(line, font, room) for line in lines]


def _fitting(text: str, font: ImageFont.FreeTypeFont, room: float) -> str:
    """The text on one line, cut where there is no room for all of it."""
    shown = " ".join(text.split())
    if font.getlength(shown) <= room:
        return shown
    while shown and font.getlength(shown + "…") > room:
        shown = shown[:-1]
    return shown + "…"


@cache
def _font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """The font that comes with matplotlib, which knows most scripts."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


TILE_PX = 160


@dataclass(frozen=True)
class TopTile:
    """One tile: its picture, its value, and its corner in level-0 pixels."""

    pixels: Pixels
    value: float
    x: int
    y: int


def highest_rows(values: AnyArray, count: int) -> list[int]:
    """The rows of the highest values, highest first; of equal ones the earlier.

    >>> highest_rows(np.array([0.1, 0.7, 0.7, 0.2]), 3)
    [1, 2, 3]
    """
    rows: list[int] = np.argsort(-values, kind="stable")[:count].tolist()
    return rows


def top_tiles(slide: Slide, tiles: Heatmap, values: AnyArray, *, count: int = 8) -> list[TopTile]:
    """Pictures of the tiles with the highest values, highest first."""
    scale = tiles.tile_px0 / TILE_PX
    pictures = []
    for row in highest_rows(values, count):
        x, y = tiles.coords_px0[row].tolist()
        pixels = read_scaled(slide, float(x), float(y), scale, TILE_PX, TILE_PX)
        pictures.append(TopTile(pixels, float(values[row]), round(x), round(y)))
    return pictures
