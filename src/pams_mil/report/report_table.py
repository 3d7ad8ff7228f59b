"""One table for every page and file: cells with small print and marks, as HTML and Markdown.

On a narrow screen each row of the HTML becomes a card, with the heads beside the cells: no column is ever cut.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

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
    """Text, small print below it, and whether it is the best or second of its kind."""

    text: str
    small: str = ""
    mark: Mark = ""
    address: str = ""

    def html(self) -> Markup:
        """The content of the table cell."""
        shown = escape(self.text)
        if self.address:
            shown = Markup('<a href="{}">{}</a>').format(self.address, self.text)
        return shown + (Markup("<small>{}</small>").format(self.small) if self.small else Markup(""))


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
