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
from typing import Any, Literal, NamedTuple

import jinja2
from markupsafe import Markup, escape

from pams_mil import __version__
from pams_mil.errors import counted
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS
from pams_mil.report import svg

_INLINE = re.compile(r"<(style|script)(?: [^>]*)?>(.*?)</\1>", re.DOTALL)
_DATA = '<script type="application/json"'


@cache  # compiled templates are kept in it
def environment() -> jinja2.Environment:
    """The templates, with autoescaping on and our number formats as filters."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("pams_mil", "report/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals.update(
        version=__version__,
        facts=METRICS,
        series=svg.series,
        static=static,
        term=term,
        report_table=ReportTable,
        classes_line=classes_line,
        short_order=short_order,
        infinity=math.inf,
    )
    env.filters.update(
        value=format_value,
        interval=format_interval,
        p=format_p,
        counted=counted,
        share=format_share,
        shares=format_shares,
        unbroken=unbroken,
    )
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


def format_value(value: float, key: str) -> str:
    """A metric for people: percent or plain, and words where there is no number.

    >>> format_value(0.92725, "ascc"), format_value(float("inf"), "asmc"), format_value(15.0, "severe_errors")
    ('92.7 %', 'no errors', '15')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "no errors"
    if key == "severe_errors":
        return f"{value:.0f}"
    return f"{100 * value:.1f} %" if METRICS[key].percent else f"{value:.2f}"


def format_interval(pair: tuple[float, float] | None, key: str) -> str:
    """A 95 % interval in the units of its metric."""
    if pair is None or not all(map(math.isfinite, pair)):
        return ""
    scale = 100 if METRICS[key].percent else 1
    digits = 1 if METRICS[key].percent else 2
    return f"{scale * pair[0]:.{digits}f} to {scale * pair[1]:.{digits}f}"


def unbroken(text: str) -> str:
    """The text with percentages that no line break parts from their sign."""
    return text.replace(" %", "\u00a0%")


def format_share(value: float, signed: bool = False) -> str:
    """A share in percent, or a difference of shares in points.

    >>> format_share(0.195), format_share(-0.02, True), format_share(float("nan"))
    ('19.5 %', '-2.0', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f} %"


def format_shares(pair: tuple[float, float]) -> str:
    """The bounds of an interval of shares, in percent."""
    return "" if not all(map(math.isfinite, pair)) else f"{100 * pair[0]:.1f} to {100 * pair[1]:.1f}"


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


@dataclass(frozen=True)
class TableHead:
    """A column's head; `meaning` explains it in one line on hover, focus and tap."""

    label: str
    meaning: str = ""

    def html(self) -> Markup:
        """The label, as something that can be pointed at where there is an explanation."""
        return term(self.label, self.meaning)


@dataclass(frozen=True)
class TableCell:
    """Text, small print below it, whether it is the best or second of its kind, where it leads and what it means."""

    text: str
    small: str = ""
    mark: Mark = ""
    address: str = ""
    meaning: str = ""

    def html(self) -> Markup:
        """The content of the table cell."""
        shown = term(self.text, self.meaning)
        if self.address:
            shown = Markup('<a href="{}">{}</a>').format(self.address, self.text)
        return shown + (Markup("<small>{}</small>").format(self.small) if self.small else Markup(""))


class Column(NamedTuple):
    """A column: its head, what stands in it for an item, and what that means in one line."""

    label: str
    cell: Callable[[Any], str | TableCell]
    meaning: str = ""


@dataclass(frozen=True, repr=False)
class ReportTable:
    r"""Heads and rows; columns in `text` are words, set to the left and wrapped, all others numbers.

    >>> head = ["model", TableHead("ACC", "share of slides called right")]
    >>> table = ReportTable(head, [["a|b", TableCell("90 %", mark="best")]])
    >>> print(table.markdown())
    | model | ACC |
    | --- | --- |
    | a\|b | **90 %** |
    """

    head: Sequence[str | TableHead]
    rows: Sequence[Sequence[str | TableCell]]
    text: Collection[int] = (0,)
    caption: str = ""

    @classmethod
    def of(
        cls, items: Iterable[Any], columns: Sequence[Column], text: Collection[int] = (0,), caption: str = ""
    ) -> ReportTable:
        """One row for every item."""
        rows = [[column.cell(item) for column in columns] for item in items]
        return cls([TableHead(column.label, column.meaning) for column in columns], rows, text, caption)

    @property
    def heads(self) -> list[TableHead]:
        """All heads with their explanations."""
        return [head if isinstance(head, TableHead) else TableHead(head) for head in self.head]

    @property
    def cells(self) -> list[list[TableCell]]:
        """All cells."""
        return [[cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row] for row in self.rows]

    def __html__(self) -> Markup:
        """The table as HTML; everything is escaped."""
        caption = Markup("<caption>{}</caption>").format(self.caption) if self.caption else Markup("")
        heads = Markup("").join(
            Markup('<th scope="col"{}>{}</th>').format(self._css(column), head.html())
            for column, head in enumerate(self.heads)
        )
        rows = Markup("").join(Markup("<tr>{}</tr>\n").format(self._row(row)) for row in self.cells)
        return Markup(
            '<div class="scroll"><table class="data">{}<thead><tr>{}</tr></thead><tbody>\n{}</tbody></table></div>'
        ).format(caption, heads, rows)

    def _repr_html_(self) -> str:
        return str(self.__html__())

    def __str__(self) -> str:
        """Aligned columns for a terminal, small print behind its value."""
        shown = [[f"{cell.text} [{cell.small}]" if cell.small else cell.text for cell in row] for row in self.cells]
        lines = [[head.label for head in self.heads], *shown]
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
        lines = [[markdown_text(head.label) for head in self.heads], ["---"] * len(self.head)]
        lines += [[_MARKDOWN[cell.mark].format(markdown_text(cell.text)) for cell in row] for row in self.cells]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def _row(self, row: Sequence[TableCell]) -> Markup:
        return Markup("").join(
            Markup('<td{} data-label="{}">{}</td>').format(self._css(column, cell.mark), head.label, cell.html())
            for column, (cell, head) in enumerate(zip(row, self.heads, strict=True))
        )

    def _css(self, column: int, mark: Mark = "") -> Markup:
        names = " ".join(filter(None, ["text" if column in self.text else "", mark]))
        return Markup(' class="{}"').format(names) if names else Markup("")


def term(label: str, meaning: str) -> Markup:
    """A word of the field with its one-line explanation; only the word where there is none."""
    if not meaning:
        return escape(label)
    return Markup('<button type="button" class="term" title="{}">{}</button>').format(meaning, label)


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
