"""HTML pages that need nothing else: styles, scripts, charts and data in one file, everything escaped.

Every page allows exactly the styles and scripts that it holds, by their hashes, and nothing from anywhere else.

There is one table for all of them, as HTML and Markdown. On a narrow screen each row becomes a card, with the heads
beside the cells: no column is ever cut.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jinja2
from markupsafe import Markup

from pams_mil import __version__
from pams_mil.errors import counted
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS
from pams_mil.report import svg

if TYPE_CHECKING:
    from pams_mil.evaluate.contrast import Contrast

_INLINE = re.compile(r"<(style|script)(?: [^>]*)?>(.*?)</\1>", re.DOTALL)
_DATA = '<script type="application/json"'


@cache  # compiled templates are kept in it
def environment() -> jinja2.Environment:
    """The templates, with autoescaping on."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("pams_mil", "report/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals.update(
        version=__version__,
        series=svg.series,
        static=static,
        report_table=ReportTable,
        classes_line=classes_line,
        short_order=short_order,
        infinity=math.inf,
    )
    # No line break parts a percentage from its sign.
    env.filters.update(counted=counted, unbroken=lambda text: text.replace(" %", "\u00a0%"))
    return env


@cache
def static(name: str) -> Markup:
    """A style sheet or script of ours, to stand inside a page."""
    return Markup((resources.files("pams_mil.report") / "static" / name).read_text("utf-8"))  # noqa: S704  ours


def render(template: str, **content: Any) -> str:
    """A page from its template, with the hashes of its styles and scripts in its Content-Security-Policy."""
    page = environment().get_template(template).render(**content)
    allowed: dict[str, list[str]] = {"style": [], "script": []}
    for block in _INLINE.finditer(page):
        if not block[0].startswith(_DATA):  # data is never run
            digest = base64.b64encode(hashlib.sha256(block[2].encode()).digest()).decode()
            allowed[block[1]].append(f"'sha256-{digest}'")
    # The first ones are in the head of the page, above everything that comes from files.
    for kind, hashes in allowed.items():
        page = page.replace(f"@{kind}-hashes@", " ".join(dict.fromkeys(hashes)) or "'none'", 1)
    return page


SHARE = "missed_rate"
"""A metric that is a share; all shares are written alike."""


def fragment(template: str, **content: Any) -> Markup:
    """Part of a page from its template, in which everything is escaped."""
    return Markup(environment().get_template(template).render(**content))  # noqa: S704


def format_value(value: float, key: str = SHARE, *, signed: bool = False) -> str:
    """A metric for people: percent or plain, points where it is the `signed` difference of two shares.

    Words where there is no number.

    >>> format_value(0.92725, "ascc"), format_value(float("inf"), "asmc"), format_value(15.0, "severe_errors")
    ('92.7 %', 'no errors', '15')
    >>> format_value(-0.02, signed=True), format_value(float("nan"))
    ('-2.0', '–')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "no errors"
    if key == "severe_errors":
        return f"{value:.0f}"
    if signed:
        return f"{100 * value:+.1f}"
    return f"{100 * value:.1f} %" if METRICS[key].percent else f"{value:.2f}"


def format_interval(pair: tuple[float, float] | None, key: str = SHARE) -> str:
    """A 95 % interval in the units of its metric."""
    if pair is None or not all(map(math.isfinite, pair)):
        return ""
    scale, digits = (100, 1) if METRICS[key].percent else (1, 2)
    return f"{scale * pair[0]:.{digits}f} to {scale * pair[1]:.{digits}f}"


def format_p(p: float | None) -> str:
    """A p-value for people.

    >>> format_p(0.0123), format_p(0.00002), format_p(None)
    ('0.012', '< 0.001', '–')
    """
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


Mark = Literal["", "best", "second"]
_MARKDOWN = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}


class TableCell(NamedTuple):
    """A cell or head: text, small print below it, whether it is the best or second of its kind, and where it leads.

    `meaning` explains it in one line on hover, focus and tap.
    """

    text: str
    small: str = ""
    mark: Mark = ""
    address: str = ""
    meaning: str = ""

    @classmethod
    def of(cls, score: Contrast, key: str = SHARE, *, signed: bool = False, mark: Mark = "") -> TableCell:
        """A score, or the `signed` difference of two shares, with the interval that belongs to its p-value."""
        interval = score.shown_interval if signed else score.interval
        return cls(format_value(score.estimate, key, signed=signed), format_interval(interval, key), mark)


class Column(NamedTuple):
    """A column: its head, what stands in it, and what that means in one line.

    What stands in it is an attribute of the row's item (dots lead on), what that holds under a key, or a function of
    the item: text, a count, a share, a score, or a cell as it is.
    """

    label: str
    cell: str | Callable[[Any], Any]
    meaning: str = ""

    @classmethod
    def of(cls, key: str, cell: str | Callable[[Any], Any]) -> Column:
        """The column of a metric, with its good direction."""
        metric = METRICS[key]
        return cls(f"{metric.label} {'↑' if metric.higher_is_better else '↓'}", cell, metric.meaning)

    def show(self, item: Any) -> str | TableCell:
        """The cell of an item."""
        value = attrgetter(self.cell)(item) if isinstance(self.cell, str) else self.cell(item)
        if isinstance(value, str | TableCell):
            return value
        if isinstance(value, int | float):
            return f"{value:,}" if isinstance(value, int) else format_value(value)
        return "–" if value is None else TableCell.of(value)


@dataclass(frozen=True, repr=False)
class ReportTable:
    r"""Heads and rows; columns in `text` are words, set to the left and wrapped, all others numbers.

    >>> head = ["model", TableCell("ACC", meaning="share of slides called right")]
    >>> table = ReportTable(head, [["a|b", TableCell("90 %", mark="best")]])
    >>> print(table.markdown())
    | model | ACC |
    | --- | --- |
    | a\|b | **90 %** |
    """

    head: Sequence[str | TableCell]
    rows: Sequence[Sequence[str | TableCell]]
    text: Collection[int] = (0,)
    caption: str = ""

    @classmethod
    def of(
        cls, items: Iterable[Any], columns: Sequence[Column], text: Collection[int] = (0,), caption: str = ""
    ) -> ReportTable:
        """One row for every item."""
        rows = [[column.show(item) for column in columns] for item in items]
        return cls([TableCell(column.label, meaning=column.meaning) for column in columns], rows, text, caption)

    @property
    def heads(self) -> list[TableCell]:
        """All heads with their explanations."""
        return [head if isinstance(head, TableCell) else TableCell(head) for head in self.head]

    @property
    def cells(self) -> list[list[TableCell]]:
        """All cells."""
        return [[cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row] for row in self.rows]

    def __html__(self) -> Markup:
        """The table as HTML; everything is escaped."""
        return fragment("table.html.j2", table=self)

    _repr_html_ = __html__

    def __str__(self) -> str:
        """Aligned columns for a terminal, small print behind its value."""
        rows = [self.heads, *self.cells]
        lines = [[f"{cell.text} [{cell.small}]" if cell.small else cell.text for cell in row] for row in rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        return "\n".join(
            "  ".join(
                text.ljust(width) if column in self.text else text.rjust(width)
                for column, (text, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    __repr__ = __str__

    def markdown(self) -> str:
        """The table as Markdown, without small print."""
        lines = [[markdown_text(head.text) for head in self.heads], ["---"] * len(self.head)]
        lines += [[_MARKDOWN[cell.mark].format(markdown_text(cell.text)) for cell in row] for row in self.cells]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown_text(text: str) -> str:
    """Text as a cell of a Markdown table, whatever it holds."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


READABLE = 40
"""Most classes of a matrix or an order that is shown at once; pages fold out more."""


LINE = 15
"""Most classes of an order that is one line at the head of a page."""


def readable_level(hierarchy: ClassHierarchy, level: int = -1, most: int = READABLE) -> int | None:
    """The finest level at or above `level` with at most so many classes; None where there is none."""
    levels = range(hierarchy.level(level), -1, -1)
    return next((one for one in levels if hierarchy.num_classes(one) <= most), None)


def readable_rows(hierarchy: ClassHierarchy) -> tuple[str, dict[str, list[str]]]:
    """What the rows of a table are and which classes each of them sums: classes, or groups where classes are too many.

    Hundreds of classes without groups are one row.
    """
    level = readable_level(hierarchy)
    if level is None:
        return hierarchy.level_names[-1], {f"{len(hierarchy)} classes": list(hierarchy.classes)}
    rows: dict[str, list[str]] = {name: [] for name in hierarchy.names(level)}
    for name, group in zip(hierarchy.classes, hierarchy.groups(level).tolist(), strict=True):
        rows[hierarchy.names(level)[group]].append(name)
    return hierarchy.level_names[level], rows


def classes_line(hierarchy: ClassHierarchy) -> Markup:
    """What is classified, by its name where it has one, and in which order."""
    name = Markup("") if hierarchy.name == "classes" else Markup(" <b>{}</b>").format(hierarchy.name)
    return Markup("Classes{}, least urgent first: {}").format(name, short_order(hierarchy, most=LINE))


def short_order(hierarchy: ClassHierarchy, level: int = -1, most: int = READABLE) -> str:
    """The order of a level; of too many classes their count, and the order of their groups.

    >>> short_order(ClassHierarchy.load("isup"))
    '0 ≺ 1 ≺ 2 ≺ 3 ≺ 4 ≺ 5'
    >>> short_order(ClassHierarchy.flat([f"c{i}" for i in range(419)]))
    '419 classes, c0 to c418'
    """
    readable, names = readable_level(hierarchy, level, most), hierarchy.names(level)
    if readable == hierarchy.level(level):
        return hierarchy.order(level)
    span = f"{names[0]} to {names[-1]}" if readable is None else f"in groups {hierarchy.order(readable)}"
    return f"{len(names)} classes, {span}"
