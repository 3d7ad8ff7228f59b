"""The audit as a page: a live first screen, and the statistics folded out of the way."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from pams_mil import atomic
from pams_mil.evaluate.audit import Audit
from pams_mil.evaluate.committee import CommitteeAudit
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.readers import ReaderAudit
from pams_mil.evaluate.scores import LevelScores
from pams_mil.evaluate.subgroups import SubgroupAudit
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import FALSE_ALARMS, KAPPAS, METRICS, MISSES, PARTIAL, own_metrics
from pams_mil.report import charts
from pams_mil.report.charts import CurveSeries, curve_chart
from pams_mil.report.first_screen import curve_series, first_screen, matrix_cells
from pams_mil.report.live import Links, ScreenModel, write_slides
from pams_mil.report.order_section import finding_table, order_section, share_cell
from pams_mil.report.page import (
    READABLE,
    ReportTable,
    TableCell,
    TableHead,
    format_interval,
    format_p,
    format_share,
    format_shares,
    format_value,
    readable_level,
    render,
)

MOST_LISTED = 500
"""Slides with missed urgency that the page lists without scripts; the CSV has them all."""
SUMMARY = ("acc", "balanced_acc", "auc", "ascc", "asmc", "risk", "missed_rate", "false_alarm_rate")
RADAR = ("acc", "balanced_acc", "auc", "ascc", "asmc", "emc")


def audit_page(audit: Audit, links: Mapping[str, Links] | None = None) -> str:
    """The audit as one HTML page; `links` by the names of models."""
    hierarchy, levels = audit.hierarchy, range(audit.hierarchy.num_levels - 1, -1, -1)
    predictions = [model.predictions for model in audit.models]
    shown = readable_level(hierarchy)  # hundreds of boundaries would fill screens; scores.json has all of them
    shown = hierarchy.num_levels - 1 if shown is None else shown

    def bands(level: int) -> list[Any]:
        return [getattr(model.points[level], "band", None) for model in audit.models]

    models = screen_models(audit, links)
    return render(
        "audit.html.j2",
        audit=audit,
        hierarchy=hierarchy,
        screen=first_screen(models, bands=bands(-1), penalty=audit.penalty),
        curves=[
            (hierarchy.level_names[level], curve_chart(curve_series(predictions, bands(level), level)))
            for level in levels[1:]
        ],
        scores=[(level, score_table(audit, level)) for level in levels],
        reaches=[(level, reach_table(audit, level)) for level in levels if any(m.points[level] for m in audit.models)],
        matched=[(comparison, matched_table(comparison)) for comparison in audit.comparisons if comparison.matched],
        differences=[(comparison, difference_table(comparison, hierarchy)) for comparison in audit.comparisons],
        boundaries=[(m.name, boundary_table(at), at) for m in audit.models if (at := m.points[shown])],
        boundary_level=hierarchy.level_names[shown],
        charts=[charts.model_charts(model.finest, hierarchy) for model in audit.models],
        subgroups=[(groups, subgroup_table(groups)) for groups in audit.subgroups],
        order_section=order_section,
        severe=[
            severe_table(model, hierarchy, one.links.pages) for model, one in zip(audit.models, models, strict=True)
        ],
        members=None if audit.committee is None else member_table(audit.committee),
        radar=_radar(audit),
        findings=[finding_table(m.name, m.findings) for m in audit.models if m.findings is not None],
        matrix=matrix_cells,
        readable=READABLE,
        by_class=[class_tables(model.finest, hierarchy) for model in audit.models],
        most_listed=MOST_LISTED, kappas=KAPPAS,
    )  # fmt: skip


def screen_models(audit: Audit, links: Mapping[str, Links] | None) -> list[ScreenModel]:
    """What the first screen counts: all models, with the links of those that have some."""
    return [ScreenModel.of(model.predictions, (links or {}).get(model.name)) for model in audit.models]


def write_audit(audit: Audit, out: Path, links: Mapping[str, Links] | None = None) -> None:
    """Write report.html, scores.json and severe_errors.csv into `out`, and the slides of a large audit beside them."""
    # Rendered before anything is written, and written last: a page that is there finds what it links to.
    page = audit_page(audit, links)
    rows = [
        [model.name, e.slide_id, e.patient_id, e.true, e.predicted, e.gravity, e.probability_of_true]
        for model in audit.models
        for e in model.severe
    ]
    header = ["model", "slide_id", "patient_id", "true", "predicted", "gravity", "probability_of_true"]
    atomic.write_json(out / "scores.json", audit.to_json())
    atomic.write_csv(out / "severe_errors.csv", header, rows)
    write_slides(screen_models(audit, links), out)
    atomic.write_text(out / "report.html", page)


def score_table(audit: Audit, level: int) -> ReportTable:
    """Every model's scores at a level with intervals, the leader bold."""
    scored = any(_has_auc(model.levels[level]) for model in audit.models)
    keys = [key for key in (*SUMMARY, *own_metrics()) if key != "auc" or scored]
    best = _best(audit, level)
    rows: list[list[str | TableCell]] = []
    for number, model in enumerate(audit.models):
        subset = [] if model.subset is None else [(model.subset.name, model.subset_levels[level])]
        for name, scores in [(model.name, model.levels[level]), *subset]:
            leads = {key for key in keys if best.get(key) == number and name == model.name}
            cells = [
                TableCell(
                    format_value(scores.values[key], key),
                    format_interval(scores.intervals.get(key), key),
                    "best" if key in leads else "",
                )
                for key in keys
            ]
            rows.append([name, str(scores.n), *cells, format_value(scores.values["severe_errors"], "severe_errors")])
    heads = [*map(metric_head, keys), TableHead("Missed, count ↓", METRICS["severe_errors"].meaning)]
    return ReportTable(["model", "slides", *heads], rows)


def reach_table(audit: Audit, level: int) -> ReportTable:
    """What each curve reaches."""
    head: list[str | TableHead] = [
        "model",
        TableHead(
            "urgency AUC ↑", "how well urgent slides are told from others at all operating points; 50 % is chance"
        ),
        TableHead(f"up to {100 * PARTIAL:.0f} % false alarms ↑", "the same, of the part of the curve that is usable"),
        *(TableHead(f"missed at {100 * s:.0f} % false alarms ↓", "read off the curve") for s in FALSE_ALARMS),
        *(TableHead(f"false alarms at {100 * s:.0f} % missed ↓", "read off the curve") for s in MISSES),
        TableHead("worklist ↑", "share of pairs of slides that are read in the right order when sorted by urgency"),
        TableHead("RPS ↓", "ranked probability score: distance of the probabilities from the truth, in order"),
        TableHead("NLL ↓", "negative log-likelihood of the true class"),
    ]
    rows: list[list[str | TableCell]] = []
    for model in audit.models:
        points = model.points[level]
        if points is None:
            continue
        estimates = [points.scores[key] for key in ("urgency_auc", "partial_urgency_auc")]
        estimates += [*points.missed_at.values(), *points.false_alarms_at.values()]
        cells = [TableCell(format_share(one.value), format_shares(one.interval)) for one in estimates]
        rps, nll = (points.scores[key].value for key in ("rps", "nll"))
        last = "–" if math.isnan(rps) else f"{rps:.3f}", f"{nll:.2f}"
        rows.append([model.name, *cells, format_share(points.worklist), *last])
    return ReportTable(head, rows)


def matched_table(comparison: Any) -> ReportTable:
    """Two models at the same operating point, level by level."""
    rows: list[list[str | TableCell]] = []
    for level, match in reversed(list(comparison.matched.items())):
        lines = [
            (f"missed at {100 * match.at_false_alarms:.1f} % false alarms", match.missed),
            (f"false alarms at {100 * match.at_missed:.1f} % missed", match.false_alarms),
            ("urgency AUC", comparison.levels[level]["urgency_auc"]),
            (f"urgency AUC up to {100 * PARTIAL:.0f} % false alarms", comparison.levels[level]["partial_urgency_auc"]),
        ]
        rows += [
            [
                level if not number else "", what, format_share(gap.reference), format_share(gap.candidate),
                format_share(gap.difference, True), format_shares(gap.shown_interval), format_p(gap.p),
            ]
            for number, (what, gap) in enumerate(lines)
        ]  # fmt: skip
    # Long names of files may break after these signs.
    names = [re.sub(r"([/_.-])", "\\1\u200b", name) for name in (comparison.reference, comparison.candidate)]
    head = ["level", "quantity", *names, "difference", "95 % interval", "p"]
    return ReportTable(head, rows, text=(0, 1))


def difference_table(comparison: Any, hierarchy: ClassHierarchy, keys: Sequence[str] = SUMMARY) -> ReportTable:
    """Differences of the scores at the finest level, and of metrics of one's own."""
    differences = comparison.levels[hierarchy.level_names[-1]]
    rows: list[list[str | TableCell]] = [
        [
            TableCell(METRICS[key].label, meaning=METRICS[key].meaning),
            TableCell(format_value(d.difference, key), mark="" if d.better is None else "best"),
            format_interval(d.shown_interval, key),
            format_p(d.p),
        ]
        for key, d in ((key, differences[key]) for key in (*keys, *own_metrics()) if key in differences)
    ]
    return ReportTable(["metric", "difference", "95 % interval", "p (Holm)"], rows)


def boundary_table(points: Any) -> ReportTable:
    """Calibration and net benefit at every boundary of urgency."""
    rows: list[list[str | TableCell]] = []
    for boundary, benefit in zip(points.calibration, points.net_benefit, strict=True):
        rows.append(
            [
                boundary.at_least,
                format_share(boundary.predicted[0]),
                TableCell(format_share(boundary.observed[0]), format_shares((boundary.low[0], boundary.high[0]))),
                *(TableCell(f"{b:.3f}", f"{a:.3f}") for b, a in zip(benefit.model, benefit.always, strict=True)),
            ]
        )
    meaning = "true alarms minus weighted false ones at this cost ratio; small print: acting on every slide"
    heads = [TableHead(f"net benefit, κ = {kappa:g}", meaning) for kappa in KAPPAS]
    shares = [
        TableHead("predicted", "mean probability of being at least so urgent"),
        TableHead("observed (95 %)", "share of the slides that are at least so urgent"),
    ]
    return ReportTable(["at least", *shares, *heads], rows)


def subgroup_table(audit: SubgroupAudit) -> ReportTable:
    """The groups of one column with intervals."""
    head: list[str | TableHead] = [
        audit.by,
        "slides",
        "patients",
        TableHead("missed ↓", "share of the group's slides that are called less urgent than they are"),
        TableHead("expected", "misses with the model's overall error rates and this group's mix of classes"),
        TableHead("false alarms ↓", "share of the group's slides that are called more urgent than they are"),
        TableHead("expected", "false alarms with the model's overall error rates and this group's mix of classes"),
    ]
    rows: list[list[str | TableCell]] = []
    for group in audit.groups:
        rates: list[str | TableCell] = []
        for rate in (group.missed, group.false_alarms):
            rates += [share_cell(rate.share)]
            rates += [format_share(rate.expected / group.slides)]
        patients = TableCell(str(group.patients), "too few" if group.too_small else "")
        rows.append([group.name, str(group.slides), patients, *rates])
    return ReportTable(head, rows)


def class_tables(scores: LevelScores, hierarchy: ClassHierarchy) -> list[tuple[str, ReportTable]]:
    """Every class by itself, group by group, where there are too many for a matrix; else nothing."""
    if len(scores.classes) <= READABLE:
        return []
    cells, severe, names = scores.confusion, hierarchy.outranks(), scores.classes
    rows: dict[str, list[list[str | TableCell]]] = {}
    for index, name in enumerate(names):
        row = cells[index]
        group = "All classes" if hierarchy.num_levels < 2 else hierarchy.names(0)[hierarchy.groups(0)[index]]
        elsewhere = np.where(np.arange(len(row)) == index, 0, row)
        wrong = hierarchy.display(names[int(elsewhere.argmax())]) if elsewhere.any() else "–"
        rows.setdefault(hierarchy.display(group), []).append(
            [
                hierarchy.display(name), str(int(row.sum())), str(int(row[index])), str(int(row[severe[index]].sum())),
                str(int(row[severe[:, index]].sum())), wrong,
            ]
        )  # fmt: skip
    head: list[str | TableHead] = ["class", "slides", "right", "missed ↓", "false alarms ↓", "most often mistaken for"]
    return [(f"{group}: {len(lines)} classes", ReportTable(head, lines, text=(0, 5))) for group, lines in rows.items()]


def member_table(committee: CommitteeAudit) -> ReportTable:
    """Every member alone, the committee without it, and what it adds; the committee itself last."""
    keys = ("urgency_auc", committee.missed_key)
    at = f"missed at {100 * committee.false_alarms:.0f} % false alarms"
    heads = [
        TableHead("alone: urgency AUC ↑", "how well the member by itself tells urgent slides from others"),
        TableHead(f"alone: {at} ↓", "of the member by itself, read off its curve"),
        TableHead("without it: urgency AUC", "of the mean of all other members"),
        TableHead(f"without it: {at}", "of the mean of all other members"),
        TableHead("it adds: urgency AUC ↑", "the committee minus the committee without the member, in points"),
        TableHead("it adds: missed ↓", "the same of the misses; below 0 the member helps"),
    ]

    def score(one: Contrast) -> TableCell:
        return TableCell(format_share(one.value), format_shares(one.interval))

    rows: list[list[str | TableCell]] = [
        [
            TableCell(member.name, member.recipe),
            *(score(one[key]) for one in (member.alone, member.without) for key in keys),
            *(
                TableCell(
                    format_share(member.adds[key].difference, True), format_shares(member.adds[key].shown_interval)
                )
                for key in keys
            ),
        ]
        for member in committee.members
    ]
    rows.append([TableCell(committee.name, mark="best"), *(score(committee.scores[key]) for key in keys), *["–"] * 4])
    return ReportTable(["member", *heads], rows)


def severe_table(model: Any, hierarchy: ClassHierarchy, pages: Mapping[str, str]) -> ReportTable | None:
    """The missed slides, gravest first; None where nothing was missed."""
    if not model.severe:
        return None
    rows = [
        [
            TableCell(error.slide_id, address=pages.get(error.slide_id, "")),
            error.patient_id,
            hierarchy.display(error.true),
            hierarchy.display(error.predicted),
            f"{error.gravity:g}",
            *([] if error.probability_of_true is None else [f"{error.probability_of_true:.3f}"]),
        ]
        for error in model.severe[:MOST_LISTED]
    ]
    gravity = TableHead("gravity W", "1 + distance between the classes + the penalty of missed urgency")
    last = [] if model.severe[0].probability_of_true is None else ["probability of the true class"]
    return ReportTable(["slide", "patient", "true", "called", gravity, *last], rows, text=(0, 1, 2, 3))


def metric_head(key: str) -> TableHead:
    """The head of a metric's column: its name, its good direction, and its meaning."""
    return TableHead(f"{METRICS[key].label} {'↑' if METRICS[key].higher_is_better else '↓'}", METRICS[key].meaning)


def _has_auc(scores: LevelScores) -> bool:
    return not math.isnan(scores.values["auc"])


def _best(audit: Audit, level: int) -> dict[str, int]:
    """Metric -> which model leads, for bold print; nothing when there is one model or a tie."""
    best = {}
    for key in (*SUMMARY, *own_metrics()):
        values = [model.levels[level].values[key] for model in audit.models]
        if len(values) < 2 or any(map(math.isnan, values)):
            continue
        top = max(values) if METRICS[key].higher_is_better else min(values)
        # Bold print for one of two equal models would be a claim.
        if values.count(top) == 1:
            best[key] = values.index(top)
    return best


def _radar(audit: Audit) -> Any:
    keys = [key for key in RADAR if key != "auc" or all(_has_auc(model.finest) for model in audit.models)]
    series = [(model.name, [model.finest.values[key] for key in keys]) for model in audit.models]
    return charts.radar([METRICS[key].label for key in keys], series)


def reader_page(result: ReaderAudit) -> str:
    """The readers as one HTML page."""
    return render(
        "readers.html.j2",
        result=result,
        chart=reader_chart(result),
        readers=reader_table(result),
        agreement=agreement_table(result),
    )


def reader_chart(result: ReaderAudit) -> Markup | None:
    """The model's curve with every reader as a point; None without a model, or without one reference for all."""
    model = result.curve
    if model is None:
        return None
    points = ((one.name, (one.missed.value, one.false_alarms.value)) for one in result.readers)
    readers = [CurveSeries(*point, model.shares) for point in points]
    return curve_chart([CurveSeries(result.model, model.decided, model.shares, model.curve), *readers])


def reader_table(result: ReaderAudit) -> ReportTable:
    """Every reader's rates with intervals, and the model's misses at the reader's false alarms beside them."""
    head: list[str | TableHead] = ["reader", "slides", *map(metric_head, ("missed_rate", "false_alarm_rate"))]
    if result.model:
        meaning = "misses of the model at this reader's false alarms minus this reader's misses"
        head.append(TableHead(f"{result.model} misses more by", meaning))
    rows: list[list[str | TableCell]] = []
    for one in result.readers:
        gap = [] if one.model_misses_more is None else [share_cell(one.model_misses_more, signed=True)]
        rows.append([one.name, str(one.slides), share_cell(one.missed), share_cell(one.false_alarms), *gap])
    return ReportTable(head, rows)


def agreement_table(result: ReaderAudit) -> ReportTable:
    """Cohen's kappa of every pair of readers."""
    kappa = TableHead("Cohen's kappa ↑", "agreement beyond chance with quadratic weights; 1 is complete")
    rows: list[list[str | TableCell]] = [
        [
            f"{pair.first}, {pair.second}", str(pair.slides), format_share(pair.same),
            "–" if pair.cohen_kappa != pair.cohen_kappa else f"{pair.cohen_kappa:.2f}",
        ]
        for pair in result.agreement
    ]  # fmt: skip
    return ReportTable(["readers", "slides", "same class", kappa], rows)
