"""How `pams audit --readers` shows and writes readers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from pams_mil.cli.console import output, print_json, print_note

if TYPE_CHECKING:
    from pams_mil.evaluate.readers import ReaderAudit


def show_readers(result: ReaderAudit, out: Path | None, *, json: bool) -> None:
    """Print readers and their agreement, and write readers.json and readers.html into `out`."""
    from pams_mil import atomic
    from pams_mil.report.audit_html import reader_page

    if out is not None:
        page = reader_page(result)
        atomic.write_json(out / "readers.json", result.to_json())
        atomic.write_text(out / "readers.html", page)
    if json:
        print_json(result.to_json())
    else:
        table = Table(title=Text(f"Readers against {result.reference}"), title_justify="left", box=SIMPLE_HEAD)
        heads = ["reader", "slides", "missed ↓", "false alarms ↓"]
        heads += [f"{result.model} misses more by"] if result.model else []
        for head in heads:
            table.add_column(Text(head), justify="left" if head == "reader" else "right")
        for one in result.readers:
            gap = [] if one.model_misses_more is None else [str(one.model_misses_more)]
            table.add_row(Text(one.name), f"{one.slides:,}", str(one.missed), str(one.false_alarms), *gap)
        output.print(table)
        pairs = Table(title="Agreement of two readers", title_justify="left", box=SIMPLE_HEAD)
        for head in ("readers", "slides", "same class", "Cohen's kappa (quadratic)"):
            pairs.add_column(head, justify="left" if head == "readers" else "right")
        for pair in result.agreement:
            pairs.add_row(
                Text(f"{pair.first}, {pair.second}"), f"{pair.slides:,}", f"{100 * pair.same:.1f} %",
                f"{pair.cohen_kappa:.2f}",
            )  # fmt: skip
        output.print(pairs)
        for sentence in result.sentences:
            output.print(sentence, style="bold", highlight=False, markup=False)
    if out is not None:
        print_note(f"Report: {out / 'readers.html'}")
