"""The benchmark at equal false alarms: what every method misses there, beside what it does as decided.

One row per method, as text; the page and `table.md` lay it out. Urgency AUC and the share of the least
urgent slides that are called so are means over runs, with their deviation: how far a result depends on the seed.
Everything else is of all runs put together under one dial.
"""

from __future__ import annotations

import math

from pams_mil.evaluate.matched import Gap
from pams_mil.report.bench import Bench, Row
from pams_mil.report.text_tables import markdown_row, markdown_text, matched_head, matched_reference, spread_text

CALIBRATED = "Calibrated, Bayes rule for AsCC: missed / false alarms; AsCC"


def heads(bench: Bench) -> list[str]:
    """The columns after the method's name."""
    least = bench.hierarchy.levels[-1].names[0]
    return [
        "Urgency AUC ↑",
        matched_head(bench),
        "difference (95 %), p",
        "at 10 / 20 / 30 % ↓",
        "As decided: missed / false alarms",
        f"{least} right ↑",
        *((CALIBRATED,) if _any_calibrated(bench) else ()),
    ]


def cells(bench: Bench, row: Row) -> list[str]:
    """One method's numbers in percent; a dash where a file has no probabilities."""
    last = [_calibrated(row)] if _any_calibrated(bench) else []
    if row.points is None or row.urgency_auc is None:
        return ["–"] * 4 + [_pair(*_decided(row)), spread_text(row.least_urgent_right, "acc", digits=1), *last]
    finest = bench.hierarchy.level_names[-1]
    gap = None if row.comparison is None else row.comparison.matched.get(finest)
    reference = matched_reference(bench, row.model, finest) if row.method == bench.reference else None
    missed = reference if gap is None else gap.missed.candidate
    return [
        spread_text(row.urgency_auc, "acc", digits=1),
        "–" if missed is None else f"{100 * missed:.1f}",
        "" if gap is None else _difference(gap.missed),
        " / ".join(f"{100 * found.value:.1f}" for found in row.points.missed_at.values()),
        _pair(*row.points.decided),
        spread_text(row.least_urgent_right, "acc", digits=1),
        *last,
    ]


def operating_rows(bench: Bench, model: str) -> list[list[str]]:
    """The head, then one row per method of a model."""
    return [["method", *heads(bench)], *([row.method, *cells(bench, row)] for row in bench.of_model(model))]


def operating_markdown(bench: Bench) -> str:
    """The table of every model, in Markdown."""
    parts = ["All operating points, in percent of the test slides; dials are chosen on the slides that are scored.", ""]
    for model in bench.models:
        head, *rows = operating_rows(bench, model)
        parts += [
            f"**{markdown_text(model)}**",
            "",
            *(markdown_row(row) for row in (head, ["---"] * len(head), *rows)),
            "",
        ]
    return "\n".join([*parts, ""])


def _any_calibrated(bench: Bench) -> bool:
    return any(row.calibrated is not None for row in bench.rows)


def _calibrated(row: Row) -> str:
    if row.calibrated is None:
        return "–"
    values = row.calibrated.values
    return f"{_pair(values['missed_rate'], values['false_alarm_rate'])}; {100 * values['ascc']:.1f}"


def _decided(row: Row) -> tuple[float, float]:
    values = row.pooled[-1].values
    return values["missed_rate"], values["false_alarm_rate"]


def _pair(missed: float, false_alarms: float) -> str:
    return f"{100 * missed:.1f} / {100 * false_alarms:.1f}"


def _difference(gap: Gap) -> str:
    low, high = gap.interval
    between = "" if math.isnan(low) else f" ({100 * low:.1f} to {100 * high:.1f})"
    return f"{100 * gap.difference:+.1f}{between}" + ("" if gap.p is None else f", p {gap.p:.2g}")
