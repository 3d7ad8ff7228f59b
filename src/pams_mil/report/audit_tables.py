"""Tables of an audit, of its readers, findings and orders of urgency."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from markupsafe import Markup

from pams_mil.evaluate.audit import Audit, ModelAudit
from pams_mil.evaluate.committee import CommitteeAudit
from pams_mil.evaluate.compare import Comparison
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.operating_points import OperatingPoints
from pams_mil.evaluate.orders import DisputedPair, OrderAudit
from pams_mil.evaluate.readers import ReaderAudit
from pams_mil.evaluate.scores import FindingScores, LevelScores
from pams_mil.evaluate.subgroups import SubgroupAudit
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import FALSE_ALARMS, KAPPAS, METRICS, MISSES, PARTIAL, missed_key, own_metrics
from pams_mil.report import charts
from pams_mil.report.charts import verdict_chart
from pams_mil.report.page import (
    READABLE,
    Column,
    Mark,
    ReportTable,
    TableCell,
    format_interval,
    format_p,
    format_value,
    fragment,
)

MOST_LISTED = 500
"""Slides with missed urgency that the page lists without scripts; the CSV has them all."""
SUMMARY = ("acc", "balanced_acc", "auc", "ascc", "asmc", "risk", "missed_rate", "false_alarm_rate")
RADAR = ("acc", "balanced_acc", "auc", "ascc", "asmc", "emc")


def score_table(audit: Audit, level: int) -> ReportTable:
    """Every model's scores at a level with intervals, the leader bold."""
    scored = any(_has_auc(model.levels[level]) for model in audit.models)
    keys = [key for key in (*SUMMARY, *own_metrics()) if key != "auc" or scored]
    rows: list[tuple[str, LevelScores, set[str]]] = []
    for number, model in enumerate(audit.models):
        leads = {key for key in keys if _leader(audit, level, key) == number}
        rows.append((model.name, model.levels[level], leads))
        if model.subset is not None:
            rows.append((model.subset.name, model.subset_levels[level], set()))

    def score(row: tuple[str, LevelScores, set[str]], key: str) -> TableCell:
        return metric_cell(row[1], key, "best" if key in row[2] else "")

    return ReportTable.of(rows, [
        Column("model", itemgetter(0)),
        Column("slides", lambda row: row[1].n),
        *(Column.of(key, partial(score, key=key)) for key in keys),
        Column("Missed, count ↓", lambda row: score(row, "severe_errors").text, METRICS["severe_errors"].meaning),
    ])  # fmt: skip


def metric_cell(scores: LevelScores, key: str, mark: Mark = "") -> TableCell:
    """A metric with its interval; a dash where it is not known."""
    value = scores.values.get(key, math.nan)
    return TableCell(format_value(value, key), format_interval(scores.intervals.get(key), key), mark)


def metric_columns(keys: Iterable[str], level: int) -> list[Column]:
    """Columns of metrics for items that have scores by level."""
    return [Column.of(key, partial(lambda key, item: metric_cell(item.levels[level], key), key)) for key in keys]


REACHES = (
    "urgency_auc", "partial_urgency_auc", *map(missed_key, FALSE_ALARMS),
    *(f"false_alarms_at_{100 * share:.0f}" for share in MISSES),
)  # fmt: skip


def reach_table(audit: Audit, level: int) -> ReportTable:
    """What each curve reaches."""
    rows = [(model.name, model.levels[level]) for model in audit.models if model.points[level] is not None]
    return ReportTable.of(rows, [
        Column("model", itemgetter(0)),
        *(Column.of(key, partial(lambda key, row: row[1].scores[key], key)) for key in REACHES),
        Column("Worklist ↑", lambda row: row[1].points.worklist,
               "share of pairs of slides that are read in the right order when sorted by urgency"),
        Column.of("rps", lambda row: _decimal(row[1].scores["rps"].value, 3)),
        Column.of("nll", lambda row: _decimal(row[1].scores["nll"].value, 2)),
    ])  # fmt: skip


def matched_table(comparison: Comparison) -> ReportTable:
    """Two models at the same operating point, level by level."""
    rows: list[tuple[str, str, Contrast]] = []
    for level, match in reversed(comparison.matched.items()):
        own = comparison.levels[level]
        rows += [
            (level, f"missed at {100 * match.at_false_alarms:.1f} % false alarms", match.missed),
            ("", f"false alarms at {100 * match.at_missed:.1f} % missed", match.false_alarms),
            ("", "urgency AUC", own["urgency_auc"]),
            ("", f"urgency AUC up to {100 * PARTIAL:.0f} % false alarms", own["partial_urgency_auc"]),
        ]
    # Long names of files may break after these signs.
    names = [re.sub(r"([/_.-])", "\\1\u200b", name) for name in (comparison.reference, comparison.candidate)]
    return ReportTable.of(rows, [
        Column("level", itemgetter(0)),
        Column("quantity", itemgetter(1)),
        Column(names[0], lambda row: row[2].reference),
        Column(names[1], lambda row: row[2].candidate),
        Column("difference", lambda row: format_value(row[2].difference, signed=True)),
        Column("95 % interval", lambda row: format_interval(row[2].shown_interval)),
        Column("p", lambda row: format_p(row[2].p)),
    ], text=(0, 1))  # fmt: skip


def difference_table(comparison: Comparison, hierarchy: ClassHierarchy, keys: Sequence[str] = SUMMARY) -> ReportTable:
    """Differences of the scores at the finest level, and of metrics of one's own."""
    differences = comparison.levels[hierarchy.level_names[-1]]
    return ReportTable.of([(key, differences[key]) for key in (*keys, *own_metrics()) if key in differences], [
        Column("metric", lambda row: TableCell(METRICS[row[0]].label, meaning=METRICS[row[0]].meaning)),
        Column("difference", lambda row: TableCell(
            format_value(row[1].difference, row[0]), mark="" if row[1].better is None else "best")),
        Column("95 % interval", lambda row: format_interval(row[1].shown_interval, row[0])),
        Column("p (Holm)", lambda row: format_p(row[1].p)),
    ])  # fmt: skip


def boundary_table(points: OperatingPoints) -> ReportTable:
    """Calibration and net benefit at every boundary of urgency."""
    meaning = "true alarms minus weighted false ones at this cost ratio; small print: acting on every slide"

    def benefit(at: int, row: tuple[Any, Any]) -> TableCell:
        return TableCell(f"{row[1].model[at]:.3f}", f"{row[1].always[at]:.3f}")

    return ReportTable.of(zip(points.calibration, points.net_benefit, strict=True), [
        Column("at least", lambda row: row[0].at_least),
        Column("predicted", lambda row: row[0].predicted[0],
               "mean probability of being at least so urgent"),
        Column("observed (95 %)", lambda row: TableCell(
            format_value(row[0].observed[0]), format_interval((row[0].low[0], row[0].high[0]))),
               "share of the slides that are at least so urgent"),
        *(Column(f"net benefit, κ = {kappa:g}", partial(benefit, at), meaning) for at, kappa in enumerate(KAPPAS)),
    ])  # fmt: skip


def subgroup_table(audit: SubgroupAudit) -> ReportTable:
    """The groups of one column with intervals."""
    meaning = "with the model's overall error rates and this group's mix of classes"
    return ReportTable.of(audit.groups, [
        Column(audit.by, "name"),
        Column("slides", "slides"),
        Column("patients", lambda group: TableCell(str(group.patients), "too few" if group.too_small else "")),
        Column("missed ↓", "missed.share",
               "share of the group's slides that are called less urgent than they are"),
        Column("expected", lambda group: group.missed.expected / group.slides, f"misses {meaning}"),
        Column("false alarms ↓", "false_alarms.share",
               "share of the group's slides that are called more urgent than they are"),
        Column("expected", lambda group: group.false_alarms.expected / group.slides,
               f"false alarms {meaning}"),
    ])  # fmt: skip


def class_tables(scores: LevelScores, hierarchy: ClassHierarchy) -> list[tuple[str, ReportTable]]:
    """Every class by itself, group by group, where there are too many for a matrix; else nothing."""
    if len(scores.classes) <= READABLE:
        return []
    cells, severe, display = scores.confusion, hierarchy.outranks(), hierarchy.display
    wrong = np.where(np.eye(len(cells), dtype=bool), 0, cells)
    columns = [
        Column("class", lambda index: display(scores.classes[index])),
        Column("slides", lambda index: int(cells[index].sum())),
        Column("right", lambda index: int(cells[index, index])),
        Column("missed ↓", lambda index: int(cells[index, severe[index]].sum())),
        Column("false alarms ↓", lambda index: int(cells[index, severe[:, index]].sum())),
        Column("most often mistaken for",
               lambda index: display(scores.classes[wrong[index].argmax()]) if wrong[index].any() else "–"),
    ]  # fmt: skip
    groups: dict[str, list[int]] = {}
    for index in range(len(cells)):
        name = "All classes" if hierarchy.num_levels < 2 else hierarchy.names(0)[hierarchy.groups(0)[index]]
        groups.setdefault(display(name), []).append(index)
    return [
        (f"{group}: {len(own)} classes", ReportTable.of(own, columns, text=(0, 5))) for group, own in groups.items()
    ]


def member_table(committee: CommitteeAudit) -> ReportTable:
    """Every member alone, the committee without it, and what it adds; the committee itself last."""
    area, missed = "urgency_auc", committee.missed_key
    at = f"missed at {100 * committee.false_alarms:.0f} % false alarms"
    members = ReportTable.of(committee.members, [
        Column("member", lambda member: TableCell(member.name, member.recipe)),
        Column("alone: urgency AUC ↑", lambda member: member.alone[area],
               "how well the member by itself tells urgent slides from others"),
        Column(f"alone: {at} ↓", lambda member: member.alone[missed],
               "of the member by itself, read off its curve"),
        Column("without it: urgency AUC", lambda member: member.without[area],
               "of the mean of all other members"),
        Column(f"without it: {at}", lambda member: member.without[missed],
               "of the mean of all other members"),
        Column("it adds: urgency AUC ↑", lambda member: TableCell.of(member.adds[area], signed=True),
               "the committee minus the committee without the member, in points"),
        Column("it adds: missed ↓", lambda member: TableCell.of(member.adds[missed], signed=True),
               "the same of the misses; below 0 the member helps"),
    ])  # fmt: skip
    own = [TableCell.of(committee.scores[key]) for key in (area, missed)]
    return replace(members, rows=[*members.rows, [TableCell(committee.name, mark="best"), *own, *["–"] * 4]])


def severe_table(model: ModelAudit, hierarchy: ClassHierarchy, pages: Mapping[str, str]) -> ReportTable | None:
    """The missed slides, gravest first; None where nothing was missed."""
    if not model.severe:
        return None
    columns = [
        Column("slide", lambda error: TableCell(error.slide_id, address=pages.get(error.slide_id, ""))),
        Column("patient", "patient_id"),
        Column("true", lambda error: hierarchy.display(error.true)),
        Column("called", lambda error: hierarchy.display(error.predicted)),
        Column("gravity W", lambda error: f"{error.gravity:g}",
               "1 + distance between the classes + the penalty of missed urgency"),
    ]  # fmt: skip
    if model.severe[0].probability_of_true is not None:
        columns.append(Column("probability of the true class", lambda error: f"{error.probability_of_true:.3f}"))
    return ReportTable.of(model.severe[:MOST_LISTED], columns, text=(0, 1, 2, 3))


def _decimal(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _has_auc(scores: LevelScores) -> bool:
    return not math.isnan(scores.values["auc"])


def _leader(audit: Audit, level: int, key: str) -> int | None:
    """Which model leads, for bold print; None when there is one model or a tie."""
    values = [model.levels[level].values[key] for model in audit.models]
    if len(values) < 2 or any(map(math.isnan, values)):
        return None
    top = max(values) if METRICS[key].higher_is_better else min(values)
    # Bold print for one of two equal models would be a claim.
    return values.index(top) if values.count(top) == 1 else None


def metric_radar(audit: Audit) -> Markup:
    """The metrics of all models at a glance; without AUC where a file has no probabilities."""
    keys = [key for key in RADAR if key != "auc" or all(_has_auc(model.finest) for model in audit.models)]
    series = [(model.name, [model.finest.values[key] for key in keys]) for model in audit.models]
    return charts.radar([METRICS[key].label for key in keys], series)


def reader_table(result: ReaderAudit) -> ReportTable:
    """Every reader's rates with intervals, and the model's misses at the reader's false alarms beside them."""
    columns = [
        Column("reader", "name"),
        Column("slides", "slides"),
        Column.of("missed_rate", "missed"),
        Column.of("false_alarm_rate", "false_alarms"),
    ]
    if result.model:
        meaning = "misses of the model at this reader's false alarms minus this reader's misses"
        columns.append(Column(
            f"{result.model} misses more by", lambda one: TableCell.of(one.model_misses_more, signed=True), meaning
        ))  # fmt: skip
    return ReportTable.of(result.readers, columns)


def agreement_table(result: ReaderAudit) -> ReportTable:
    """Cohen's kappa of every pair of readers."""
    return ReportTable.of(result.agreement, [
        Column("readers", lambda pair: f"{pair.first}, {pair.second}"),
        Column("slides", "slides"),
        Column("same class", "same"),
        Column("Cohen's kappa ↑", lambda pair: _decimal(pair.cohen_kappa, 2),
               "agreement beyond chance with quadratic weights; 1 is complete"),
    ])  # fmt: skip


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
