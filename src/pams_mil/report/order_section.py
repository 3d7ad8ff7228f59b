"""What several orders of urgency make of the same calls, as part of a page: sentences, verdicts and rates by order.

Also the table of several findings per slide.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter

from markupsafe import Markup

from pams_mil.evaluate.orders import DisputedPair, OrderAudit
from pams_mil.evaluate.scores import FindingScores
from pams_mil.report.charts import verdict_chart
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
