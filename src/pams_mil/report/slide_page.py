"""One page per slide: what the model says, where it looks, and the tiles that say most, in one file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from pams_mil.report.page import render


class LevelCall(NamedTuple):
    """The probabilities of one level: (shown name, probability) from least to most urgent, and which was called."""

    name: str
    classes: Sequence[tuple[str, float]]
    called: int

    @property
    def lines(self) -> list[dict[str, object]]:
        """Every class as a bar."""
        return [
            {"name": name, "percent": 100 * p, "text": f"{100 * p:.1f} %", "called": place == self.called}
            for place, (name, p) in enumerate(self.classes)
        ]


class PictureLayer(NamedTuple):
    """A picture of the slide as JPEG, with words for the ends of its colors: rank, sign, probability or plain."""

    name: str
    jpeg: bytes
    kind: str = "plain"
    low: str = ""
    high: str = ""


class TileStrip(NamedTuple):
    """The tiles that rank highest in something: JPEG and caption each."""

    title: str
    tiles: Sequence[tuple[bytes, str]]


def slide_page(
    slide_id: str,
    *,
    model: str,
    facts: Sequence[str],
    levels: Sequence[LevelCall],
    layers: Sequence[PictureLayer],
    strips: Sequence[TileStrip],
) -> str:
    """The page; the attention of the finest level is shown first."""
    first = max((number for number, layer in enumerate(layers) if layer.kind == "rank"), default=0)
    return render(
        "slide.html.j2", slide_id=slide_id, model=model, facts=facts, levels=levels, layers=layers, strips=strips,
        first=first, embedded=_embedded,
    )  # fmt: skip


def _embedded(jpeg: bytes) -> Markup:
    return Markup("data:image/jpeg;base64,") + base64.b64encode(jpeg).decode("ascii")
