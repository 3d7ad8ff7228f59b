"""The benchmark at equal false alarms: what every method misses there, beside what it does as decided.

One row per method, as text; the page and `table.md` lay it out. All rows are compared at one stated share of false
alarms, so that they compare with one another too. Behind ± the deviation over seeds; intervals and p-values are
adjusted for the rows of the table and take networks as chance where there are several seeds.
"""

from __future__ import annotations

import math

from pams_mil.evaluate.contrast import Contrast
from pams_mil.report.bench import Bench, Row
from pams_mil.report.text_tables import markdown_row, markdown_text, matched_head, spread_text

CALIBRATED = "Calibrated, Bayes rule for AsCC: missed / false alarms; AsCC"


def heads(bench: Bench) -> list[str]:
    """The columns after the method's name."""
    least = bench.hierarchy.levels[-1].names[0]
    return [
        "Urgency AUC ↑",
        "Severity AUC ↑",
        matched_head(bench),
        "difference (95 %), adjusted p",
        "at 5 / 10 / 20 / 30 % ↓",
        "As decided: missed / false alarms",
        f"{least} recognized ↑",
        *((CALIBRATED,) if _any_calibrated(bench) else ()),
    ]


def cells(bench: Bench, row: Row) -> list[str]:
    """One method's numbers in percent; a dash where a file has no probabilities."""
    last = [_calibrated(row)] if _any_calibrated(bench) else []
    values, scores = row.levels[-1].values, row.levels[-1].scores
    decided = _pair(values["missed_rate"], values["false_alarm_rate"])
    least = spread_text(scores["least_urgent_recall"], "least_urgent_recall", digits=1)
    if row.points is None:
        return ["–"] * 5 + [decided, least, *last]
    key, finest = bench.missed_key(), bench.hierarchy.level_names[-1]
    contrast = None if row.comparison is None else row.comparison.levels[finest].get(key)
    return [
        spread_text(row.points.urgency_auc, "urgency_auc", digits=1),
        spread_text(row.points.severity_auc, "severity_auc", digits=1),
        spread_text(scores[key], key, digits=1),
        "" if contrast is None else _difference(contrast),
        " / ".join(f"{100 * missed.estimate:.1f}" for missed in row.points.missed_at.values()),
        decided,
        least,
        *last,
    ]


def operating_rows(bench: Bench, model: str) -> list[list[str]]:
    """The head, then one row per method of a model."""
    return [["method", *heads(bench)], *([row.method, *cells(bench, row)] for row in bench.of_model(model))]


def operating_markdown(bench: Bench) -> str:
    """The table of every model, in Markdown."""
    parts = [
        "Operating points, in percent of the test slides; they are chosen on the slides that are scored.",
        "",
    ]
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


def _pair(missed: float, false_alarms: float) -> str:
    return f"{100 * missed:.1f} / {100 * false_alarms:.1f}"


def _difference(contrast: Contrast) -> str:
    low, high = contrast.shown_interval
    between = "" if math.isnan(low) else f" ({100 * low:.1f} to {100 * high:.1f})"
    return f"{100 * contrast.difference:+.1f}{between}" + ("" if contrast.p is None else f", p {contrast.p:.2g}")
