"""Parts of inline SVG pictures that follow the page's light or dark colors through CSS classes.

All text is escaped here, and nowhere else; no scripts, no network, no fonts to load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import ClassVar

from markupsafe import Markup, escape

Place = tuple[float, float]
"""x to the right, y downward."""
SERIES = ("#1b65a3", "#b93c07", "#14755a", "#84469b", "#866600", "#5b6770")
"""The light colors of series, as in `static/page.css`; a test compares the two."""
COLOR_NAMES = ("blue", "orange", "green", "purple", "ochre", "gray")
KINDS = {"tied": "#7d6234", "severe": "#b93c07", "over": "#1b65a3", "right": "#5b6770"}
"""The light colors of calls: equally urgent, missed urgency, false alarm, right."""


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from at most `low` to at least `high`, in the finest even steps that are no more than `most`.

    >>> ticks(0.0, 0.43), ticks(0.912, 0.938, 5), ticks(3, 3)
    ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [0.91, 0.92, 0.93, 0.94], [3.0, 3.1])
    """
    span = high - low if high > low else 1.0
    power = math.floor(math.log10(span / most))
    for step in (size * 10.0**exponent for exponent in (power, power + 1) for size in (1, 2, 2.5, 5)):
        # The tiny share keeps 0.3 / 0.1 from counting as more than 3 steps.
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= most:
            return [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]
    return [low, high]


@dataclass(frozen=True)
class Plane:
    """Axes from their first tick (left, below) to their last, and where in a picture of this size a point lies."""

    width: float
    height: float
    xs: Sequence[float]
    ys: Sequence[float]
    left: ClassVar[int] = 60
    right: ClassVar[int] = 26
    top: ClassVar[int] = 16
    bottom: ClassVar[int] = 46

    def at(self, x: float, y: float) -> Place:
        """The place of a point.

        >>> Plane(186, 162, (0.0, 1.0), (0.0, 1.0)).at(1.0, 0.5)
        (160.0, 66.0)
        """
        across = (x - self.xs[0]) / (self.xs[-1] - self.xs[0]) * (self.width - self.left - self.right)
        up = (y - self.ys[0]) / (self.ys[-1] - self.ys[0]) * (self.height - self.top - self.bottom)
        return self.left + across, self.height - self.bottom - up

    def axes(self, names: tuple[str, str], *, css: tuple[str, str] = ("", ""), x_scale: float = 100) -> list[str]:
        """Lines at the ticks with percents beside them, and both axes' names; `css` are classes of the names."""
        low, parts = self.height - self.bottom, []
        for share in self.xs:
            at, _ = self.at(share, self.ys[0])
            parts += [line((at, self.top), (at, low)), text(at, low + 17, f"{x_scale * share:.6g}", "mid dim")]
        for share in self.ys:
            _, at = self.at(self.xs[0], share)
            parts.append(line((self.left, at), (self.width - self.right, at)))
            parts.append(text(self.left - 8, at + 4, f"{100 * share:.6g}", "end dim"))
        parts.append(text((self.left + self.width - self.right) / 2, self.height - 8, names[0], f"mid {css[0]}"))
        x, y = 15.0, (self.top + low) / 2
        parts.append(text(x, y, names[1], f"mid {css[1]}", f' transform="rotate(-90 {x:.1f} {y:.1f})"'))
        return parts

    def to_json(self) -> dict[str, object]:
        """What a script needs to find the place of a point."""
        names = ("width", "height", "left", "right", "top", "bottom")
        ends = {"x": [self.xs[0], self.xs[-1]], "y": [self.ys[0], self.ys[-1]]}
        return {**{name: getattr(self, name) for name in names}, **ends}


@dataclass(frozen=True)
class Rows:
    """Rows of a height below one another on one scale, `width` wide and from its first tick to its last.

    The scale begins at `left`; the names of the rows stand before it.
    """

    ticks: Sequence[float]
    names: Sequence[str]
    left: float
    width: float
    row: float
    top: ClassVar[int] = 32

    def at(self, value: float, place: int) -> Place:
        """The place of a value in the middle of a row."""
        across = (value - self.ticks[0]) / max(1e-9, self.ticks[-1] - self.ticks[0]) * self.width
        return self.left + across, self.top + self.row * (place + 0.5)

    @property
    def bottom(self) -> float:
        """Where the last row ends."""
        return self.top + self.row * len(self.names)

    def axes(self, labels: Iterable[str], css: Sequence[str] = ()) -> list[str]:
        """A line at every tick with its label above, and the names of the rows, with classes of their own."""
        parts = []
        for tick, label in zip(self.ticks, labels, strict=True):
            x, _ = self.at(tick, 0)
            parts += [line((x, self.top - 6), (x, self.bottom)), text(x, self.top - 12, label, "mid dim")]
        for place, (name, own) in enumerate(zip(self.names, css or [""] * len(self.names), strict=True)):
            most = int(self.left / 6.4)  # characters that fit
            parts.append(text(self.left - 12, self.at(0, place)[1] + 4, short(name, most), f"end {own}".strip()))
        return parts


def picture(width: float, height: float, label: str, parts: Iterable[str]) -> Markup:
    """The parts as one picture; `label` is what a screen reader says."""
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
    return Markup("".join([head, *parts, "</svg>"]))  # noqa: S704  text is escaped below


def standalone(drawn: Markup) -> str:
    """The picture as a file of its own, with the colors that a light page would give it.

    >>> standalone(picture(8, 6, "a & b", []))[:66]
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 6" role="im'
    """
    # The first ">" ends the opening tag: in its label every other one is escaped.
    head, _, rest = str(drawn).partition(">")
    return (
        head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + f"><style>{_light_style()}</style>{rest}"
    )


def _light_style() -> str:
    """The page's style sheet without its dark colors, which would fall on white paper, and without its tables."""
    sheet = (resources.files("pams_mil.report") / "static" / "page.css").read_text("utf-8")
    colors, charts = sheet[: sheet.index("@media")], sheet[sheet.index("/* charts */") : sheet.index("/* live */")]
    return f"{colors}{charts}svg {{ background: #fff; }}"


def text(x: float, y: float, content: str, css: str = "", more: str = "") -> str:
    """Words; `more` are further attributes.

    >>> text(1, 2, "a < b", "mid")
    '<text x="1.0" y="2.0" class="mid">a &lt; b</text>'
    """
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}"{more}>{escape(content)}</text>'


def line(start: Place, end: Place, css: str = "grid", more: str = "") -> str:
    """A straight line."""
    (x1, y1), (x2, y2) = start, end
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" class="{css}"{more}/>'


def bar(x: float, y: float, width: float, height: float, css: str) -> str:
    """A filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:g}" rx="2" class="{css}"/>'


def dot(place: Place, radius: float, css: str, title: str = "") -> str:
    """A filled circle; the title is shown under the pointer."""
    return f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{radius:g}" class="{css}">{_titled(title)}</circle>'


def square(place: Place, side: float, css: str, title: str = "") -> str:
    """A filled square around a place."""
    x, y = place[0] - side / 2, place[1] - side / 2
    return f'<path d="M{x:.1f} {y:.1f} h{side:g} v{side:g} h-{side:g} z" class="{css}">{_titled(title)}</path>'


def polyline(places: Iterable[Place], css: str, title: str = "", *, tag: str = "polyline") -> str:
    """Places joined by lines."""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<{tag} points="{points}" class="{css}">{_titled(title)}</{tag}>'


polygon = partial(polyline, tag="polygon")
"""Places joined by lines, and the area within."""


def series(number: int) -> str:
    """The classes of a series' color: six colors, then the same ones dashed.

    >>> series(1), series(7)
    ('s1', 's1 again')
    """
    return f"s{number % 6}" + (" again" if number >= 6 else "")


def short(content: str, most: int) -> str:
    """Text cut to `most` characters.

    >>> short("Adenocarcinoma", 8)
    'Adenoca…'
    """
    return content if len(content) <= most else content[: most - 1] + "…"


def _titled(title: str) -> str:
    return f"<title>{escape(title)}</title>" if title else ""
