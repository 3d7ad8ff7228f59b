"""What several orders of urgency make of the same calls, as part of a page: sentences, verdicts and rates by order.

Also the table of several findings per slide.
"""

from __future__ import annotations

import math
from functools import partial
from operator import itemgetter

from markupsafe import Markup

from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.orders import DisputedPair, OrderAudit, OrderedComparison
from pams_mil.evaluate.scores import FindingScores
from pams_mil.report import svg
from pams_mil.report.page import READABLE, Column, ReportTable, TableCell, fragment


def order_section(audit: OrderAudit) -> Markup:
    """The section of one audit: of many disputed pairs the first."""
    display = audit.orders.first.display

    def more_urgent(pair: DisputedPair, name: str) -> str:
        return display(pair.more_urgent[name]) if pair.more_urgent[name] else "equally"

    pairs = [
        Column("pair", lambda pair: f"{display(pair.first)}, {display(pair.second)}"),
        *(Column(name, partial(more_urgent, name=name)) for name in audit.orders.names),
    ]
    return fragment(
        "orders.html.j2",
        audit=audit,
        charts=[(f"{one.candidate} against {one.reference}", verdict_chart(one)) for one in audit.comparisons],
        rates=rate_table(audit),
        pairs=ReportTable.of(audit.orders.disputed_pairs[:READABLE], pairs, text=range(len(pairs))),
    )


def rate_table(audit: OrderAudit) -> ReportTable:
    """Misses and false alarms by order, under all and under at least one."""
    kinds = {"missed_rate": "missed ↓", "false_alarm_rate": "false alarms ↓"}
    rows = [(model, words, rates[key]) for model, rates in audit.rates.items() for key, words in kinds.items()]
    return ReportTable.of(rows, [
        Column("model", itemgetter(0)),
        Column("rate", itemgetter(1)),
        *(Column(name, partial(lambda name, row: row[2].by_order[name].estimate, name)) for name in audit.orders.names),
        Column("undisputed", lambda row: row[2].undisputed, "a miss (a false alarm) by every order"),
        Column("with disputed", lambda row: row[2].with_disputed, "a miss (a false alarm) by at least one order"),
    ], text=(0, 1))  # fmt: skip


def verdict_chart(comparison: OrderedComparison) -> Markup:
    """One row per order: how much more the candidate misses, with its interval, and which model is safer.

    Misses are compared at equal false alarms where both models have probabilities, else as decided.
    """
    row, left, width, top = 30, 104, 216, 30
    gaps = {order: _gap(comparison, order) for order in comparison.by_order}
    ends = [
        abs(value) for gap in gaps.values() for value in (gap.difference, *gap.shown_interval) if math.isfinite(value)
    ]
    most = svg.ticks(0.0, max([0.01, *ends]), 2)[-1]
    middle, height = left + width / 2, top + row * len(gaps)

    def x(value: float) -> float:
        return middle + value / most * width / 2

    parts = []
    for value in (-most, -most / 2, 0.0, most / 2, most):
        parts.append(svg.line((x(value), top - 6), (x(value), height), "whisker" if not value else "grid"))
        parts.append(svg.text(x(value), height + 16, f"{100 * value:+.3g}" if value else "0", "mid dim"))
    parts.append(svg.text(middle - 10, 14, "misses less", "end dim"))
    parts.append(svg.text(middle + 10, 14, "misses more", "dim"))
    for number, (order, gap) in enumerate(gaps.items()):
        y, safer = top + row * number + row / 2, comparison.safer[order]
        css = {comparison.reference: "s0", comparison.candidate: "s1", None: "s5"}[safer]
        parts.append(svg.text(left - 10, y + 4, svg.short(order, 14), "end"))
        low, high = gap.shown_interval
        if math.isfinite(low) and math.isfinite(high):
            parts.append(svg.line((x(low), y), (x(high), y), f"curve {css}"))
        if math.isfinite(gap.difference):
            parts.append(svg.dot((x(gap.difference), y), 6, css, f"{100 * gap.difference:+.1f} points"))
        words = "not settled" if safer is None else f"{svg.short(safer, 14)} is safer"
        parts.append(svg.text(left + width + 10, y + 4, words, "dim" if safer is None else "bold"))
    parts.append(
        svg.text(
            middle,
            height + 34,
            f"{svg.short(comparison.candidate, 24)} − {svg.short(comparison.reference, 24)}, points of missed urgency",
            "mid dim",
        )
    )
    return svg.picture(left + width + 140, height + 42, "which model is safer, by order of urgency", parts)


def _gap(comparison: OrderedComparison, order: str) -> Contrast:
    one = comparison.by_order[order]
    level = list(one.levels)[-1]
    return one.matched[level].missed if level in one.matched else one.levels[level]["missed_rate"]


def finding_table(name: str, scores: FindingScores) -> ReportTable:
    """Every finding of one model at one κ by itself, and what the called sets are worth."""
    recall, ascc = (
        f"{cell.text} [{cell.small}]" if cell.small else cell.text
        for cell in map(TableCell.of, (scores.weighted_recall, scores.set_ascc))
    )
    caption = f"Findings of {name} at κ = {scores.kappa:g}: recall over all findings {recall}, AsCC of sets {ascc}"
    return ReportTable.of(scores.findings, [
        Column("finding", "name"),
        Column("slides", "slides"),
        Column("sensitivity ↑", "sensitivity", "share of the slides with the finding on which it is called"),
        Column("specificity ↑", "specificity", "share of the slides without it on which it is not called"),
        Column("AUC ↑", "auc", "chance that a slide with the finding has the higher probability of it"),
    ], caption=caption)  # fmt: skip
