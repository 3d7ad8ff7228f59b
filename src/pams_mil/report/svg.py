"""Parts of inline SVG pictures that follow the page's light or dark colors through CSS classes.

All text is escaped here, and nowhere else; no scripts, no network, no fonts to load.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup, escape

Place = tuple[float, float]
"""x to the right, y downward."""
_COLORS = """<style>
svg { font: 12px system-ui, sans-serif; --ink: #1b1f24; --dim: #667079; --line: #dfe3e8; background: #fff; }
text { fill: var(--ink); } .dim { fill: var(--dim); } .mid { text-anchor: middle; } .end { text-anchor: end; }
.grid { stroke: var(--line); } .grid-shape { fill: none; stroke: var(--line); }
.s0 { fill: #1f6fb2; stroke: #1f6fb2; } .s1 { fill: #c4420a; stroke: #c4420a; } .s2 { fill: #1a8a6b; stroke: #1a8a6b; }
.s3 { fill: #8c4fa3; stroke: #8c4fa3; } .s4 { fill: #a07a00; stroke: #a07a00; } .s5 { fill: #5b6770; stroke: #5b6770; }
.series { fill-opacity: .12; stroke-width: 2; } .again { stroke-dasharray: 7 4; }
.chance { fill: none; stroke: var(--dim); stroke-dasharray: 5 4; }
</style>"""


@dataclass(frozen=True)
class Plane:
    """Axes of shares: where in a picture of this size a point lies.

    Attributes:
        width: Of the picture.
        height: Of the picture.
        x: The shares at the left and the right end of the axis.
        y: The shares at the lower and the upper end.
    """

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    left: ClassVar[int] = 60
    right: ClassVar[int] = 26
    top: ClassVar[int] = 16
    bottom: ClassVar[int] = 46

    def at(self, x: float, y: float) -> Place:
        """The place of a point.

        >>> Plane(186, 162, (0.0, 1.0), (0.0, 1.0)).at(1.0, 0.5)
        (160.0, 66.0)
        """
        across = (x - self.x[0]) / (self.x[1] - self.x[0]) * (self.width - self.left - self.right)
        up = (y - self.y[0]) / (self.y[1] - self.y[0]) * (self.height - self.top - self.bottom)
        return self.left + across, self.height - self.bottom - up

    def axes(
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        names: tuple[str, str],
        *,
        css: tuple[str, str] = ("", ""),
        digits: int = 0,
    ) -> list[str]:
        """Lines at these shares with percents beside them, and both axes' names; `css` are classes of the names."""
        low, parts = self.height - self.bottom, []
        for share in xs:
            at, _ = self.at(share, self.y[0])
            parts += [line((at, self.top), (at, low)), text(at, low + 17, f"{100 * share:.{digits}f}", "mid dim")]
        for share in ys:
            _, at = self.at(self.x[0], share)
            parts.append(line((self.left, at), (self.width - self.right, at)))
            parts.append(text(self.left - 8, at + 4, f"{100 * share:.{digits}f}", "end dim"))
        parts.append(text((self.left + self.width - self.right) / 2, self.height - 8, names[0], f"mid {css[0]}"))
        x, y = 15.0, (self.top + low) / 2
        parts.append(text(x, y, names[1], f"mid {css[1]}", f' transform="rotate(-90 {x:.1f} {y:.1f})"'))
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
    return head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + ">" + _COLORS + rest


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


def polyline(places: Iterable[Place], css: str, title: str = "") -> str:
    """Places joined by lines."""
    return f'<polyline points="{_points(places)}" class="{css}">{_titled(title)}</polyline>'


def polygon(places: Iterable[Place], css: str, title: str = "") -> str:
    """Places joined by lines, and the area within."""
    return f'<polygon points="{_points(places)}" class="{css}">{_titled(title)}</polygon>'


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


def _points(places: Iterable[Place]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _titled(title: str) -> str:
    return f"<title>{escape(title)}</title>" if title else ""
