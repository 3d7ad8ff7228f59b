"""How `pams audit --readers` shows and writes readers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pams_mil.cli.console import make_table, output, print_json, print_note

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
        heads = ["reader", "slides", "missed ↓", "false alarms ↓"]
        heads += [f"{result.model} misses more by"] if result.model else []
        rows = [
            [one.name, f"{one.slides:,}", str(one.missed), str(one.false_alarms),
             *([] if one.model_misses_more is None else [str(one.model_misses_more)])]
            for one in result.readers
        ]  # fmt: skip
        output.print(make_table(heads, rows, title=f"Readers against {result.reference}"))
        pairs = [
            (f"{one.first}, {one.second}", f"{one.slides:,}", f"{100 * one.same:.1f} %", f"{one.cohen_kappa:.2f}")
            for one in result.agreement
        ]
        heads = ["readers", "slides", "same class", "Cohen's kappa (quadratic)"]
        output.print(make_table(heads, pairs, title="Agreement of two readers"))
        for sentence in result.sentences:
            output.print(sentence, style="bold")
    if out is not None:
        print_note(f"Report: {out / 'readers.html'}")
