"""The table of a benchmark, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.cli.console import output

if TYPE_CHECKING:
    from pams_mil.report.bench import Bench

_SHOWN = ("acc", "auc", "ascc", "asmc", "missed_rate")


def show(result: Bench) -> None:
    """Print the table for people."""
    from pams_mil.cli.audit_table import page_table, show_orders
    from pams_mil.report.bench_page import score_table
    from pams_mil.report.page import ReportTable

    for level in reversed(range(result.hierarchy.num_levels)):
        output.print()
        title = f"{result.hierarchy.level_names[level]}: {result.hierarchy.order(level)}"
        table = score_table(result, level, 1, _SHOWN, networks=False)  # 80 columns have no room for them
        if len(result.models) == 1:  # every row would name it
            table = ReportTable(table.head[1:], [row[1:] for row in table.rows])
        output.print(page_table(table, title, small=False))
    several = max(len(row.repetitions) for row in result.rows) > 1
    what = "Mean ± sd over seeds" if several else "One network each"
    output.print(f"{what}, in percent; best bold, second underlined.", style="dim")
    for model, orders in result.orders.items():
        show_orders(orders, model if len(result.models) > 1 else "")
    for sentence in result.sentences or result.verdicts:  # one per model; the page has one per comparison
        output.print()
        output.print(sentence, style="bold")
    subjects: dict[str, list[str]] = {}
    for row in result.rows:
        if row.comparison is not None:
            subjects.setdefault(row.comparison.subject, []).append(row.name)
    if result.sentences:
        for subject, names in subjects.items():
            output.print(subject if len(subjects) == 1 else f"{', '.join(names)}: {subject}", style="dim")
