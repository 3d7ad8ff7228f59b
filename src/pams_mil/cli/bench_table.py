"""The table of a benchmark, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.cli.console import make_table, output

if TYPE_CHECKING:
    from rich.table import Table

    from pams_mil.report.bench import Bench

_SHOWN = ("acc", "auc", "ascc", "asmc", "missed_rate")


def show(result: Bench) -> None:
    """Print the table for people."""
    from pams_mil.cli.audit_table import show_orders

    for level in reversed(range(result.hierarchy.num_levels)):
        output.print()
        output.print(_table(result, level))
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


def _table(result: Bench, level: int) -> Table:
    from rich.text import Text

    from pams_mil.metrics.metric import METRICS
    from pams_mil.report.bench_page import matched_head, matched_text, spread_text

    title = f"{result.hierarchy.level_names[level]}: {result.hierarchy.order(level)}"
    several = len(result.models) > 1
    heads = [*(["model"] if several else []), "method"]
    left = len(heads)
    heads += [f"{METRICS[key].label} {'↑' if METRICS[key].higher_is_better else '↓'}" for key in _SHOWN]
    rows: list[list[str | Text]] = []
    styles = {"best": "bold", "second": "underline"}
    for row in result.rows:
        cells = []
        for key in _SHOWN:
            text = spread_text(row.spreads[level, key], key, digits=1).replace(" ", "\u00a0")  # numbers never break
            cells.append(Text(text, style=styles.get(result.mark(row, level, key), "")))
        cells.append(Text(matched_text(result, row, level).replace(" ", "\u00a0")))
        rows.append([*([row.model] if several else []), row.method, *cells])
    return make_table([*heads, matched_head(result, level)], rows, title=title, left=left)
