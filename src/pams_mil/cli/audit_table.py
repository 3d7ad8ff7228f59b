"""The audit's scores in a terminal: metrics down, models across, as many side by side as there is room for.

Every value keeps its interval: beside it where there is room, else beneath it. More models than fit are shown in
further tables, so that no name and no number is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pams_mil.evaluate.audit import Audit, ModelAudit
    from pams_mil.evaluate.scores import LevelScores

    Row = tuple[str, LevelScores]

COLUMNS = ("acc", "auc", "ascc", "asmc", "risk", "under_call_rate", "over_call_rate")
_HEAD_WIDTH, _STACKED_WIDTH, _BESIDE_WIDTH = 18, 16, 25


def score_tables(result: Audit, level: int, width: int) -> list[Table]:
    """The tables of one level for a terminal of this many columns; the first has the title."""
    hierarchy = result.hierarchy
    rows = [row for model in result.models for row in _rows(model, level)]
    room = width - _HEAD_WIDTH
    beside = len(rows) * _BESIDE_WIDTH <= room
    most = len(rows) if beside else max(1, room // _STACKED_WIDTH)
    title: Text | None = Text(f"{hierarchy.level_names[level]}: {hierarchy.order(level)}")
    tables = []
    for start in range(0, len(rows), most):
        tables.append(_table(rows[start : start + most], rows, title, beside=beside))
        title = None
    return tables


def _table(shown: Sequence[Row], rows: Sequence[Row], title: Text | None, *, beside: bool) -> Table:
    from pams_mil.metrics.table import FACTS

    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for label, _ in shown:
        table.add_column(Text(label, overflow="fold"), justify="right")
    table.add_row("Slides", *(f"{scores.n:,}" for _, scores in shown))
    table.add_row("Errors", *(f"{scores.errors:,}" for _, scores in shown))
    table.add_row("Severe errors ↓", *(f"{scores.values['severe_errors']:,.0f}" for _, scores in shown))
    for key in COLUMNS:
        if key == "auc" and all(scores.values["auc"] != scores.values["auc"] for _, scores in rows):
            continue  # no model of the audit has probabilities
        head = f"{FACTS[key].label} {'↑' if FACTS[key].higher_is_better else '↓'}"
        table.add_row(head, *(_cell(scores, key, "  " if beside else "\n") for _, scores in shown))
    return table


def _rows(model: ModelAudit, level: int) -> list[Row]:
    whole = [(model.name, model.levels[level])]
    return whole if model.subset is None else [*whole, (model.subset.name, model.subset_levels[level])]


def _cell(scores: LevelScores, key: str, between: str) -> Text:
    from pams_mil.report.page import format_interval, format_value

    bracket = format_interval(scores.intervals.get(key), key)
    value = Text(format_value(scores.values[key], key))
    return value + Text(f"{between}[{bracket}]".replace(" to ", "\u00a0to\u00a0"), style="dim") if bracket else value
