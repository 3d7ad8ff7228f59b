"""HTML pages that need nothing else: styles, charts and data in one file, everything escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2
import numpy as np

from pams_mil import __version__
from pams_mil.errors import counted
from pams_mil.evaluate.audit import Audit
from pams_mil.evaluate.operating_points import FALSE_ALARMS, KAPPAS, MISSES, PARTIAL
from pams_mil.evaluate.scores import LevelScores
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.operating import class_shares
from pams_mil.report import charts, curve_chart, svg

MOST_LISTED = 500
"""Slides with missed urgency shown on the page; the CSV has them all."""

SUMMARY = ("acc", "balanced_acc", "auc", "ascc", "asmc", "risk", "missed_rate", "false_alarm_rate")
RADAR = ("acc", "balanced_acc", "auc", "ascc", "asmc", "emc")


@cache  # compiled templates are kept in it
def environment() -> jinja2.Environment:
    """The templates, with autoescaping on and our number formats as filters."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("pams_mil", "report/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals.update(version=__version__, facts=METRICS, series=svg.series)
    env.filters.update(
        value=format_value,
        interval=format_interval,
        p=format_p,
        counted=counted,
        share=format_share,
        shares=format_shares,
    )
    return env


def render(template: str, **content: Any) -> str:
    """A page from its template."""
    return environment().get_template(template).render(**content)


def audit_page(audit: Audit, *, pages: Mapping[str, str] | None = None) -> str:
    """The audit as one HTML page; `pages` are addresses of pages about single slides, by slide id."""
    return render(
        "audit.html.j2",
        audit=audit,
        hierarchy=audit.hierarchy,
        summary=[key for key in SUMMARY if key != "auc" or any(_has_auc(m.levels[-1]) for m in audit.models)],
        best=_best(audit),
        charts=[_model_charts(audit.hierarchy, model.levels) for model in audit.models],
        radar=_radar(audit),
        most_listed=MOST_LISTED,
        matrix=_matrix,
        curves=[_curve(audit, level) for level in range(audit.hierarchy.num_levels)],
        false_alarms=FALSE_ALARMS,
        misses=MISSES,
        kappas=KAPPAS,
        partial=PARTIAL,
        pages=dict(pages or {}),
    )


def format_value(value: float, key: str) -> str:
    """A metric for people: percent or plain, and words where there is no number.

    >>> format_value(0.92725, "ascc"), format_value(float("inf"), "asmc"), format_value(15.0, "severe_errors")
    ('92.7 %', 'no errors', '15')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "no errors"
    if key == "severe_errors":
        return f"{value:.0f}"
    return f"{100 * value:.1f} %" if METRICS[key].percent else f"{value:.2f}"


def format_interval(pair: tuple[float, float] | None, key: str) -> str:
    """A 95 % interval in the units of its metric."""
    if pair is None or not all(map(math.isfinite, pair)):
        return ""
    scale = 100 if METRICS[key].percent else 1
    digits = 1 if METRICS[key].percent else 2
    return f"{scale * pair[0]:.{digits}f} to {scale * pair[1]:.{digits}f}"


def format_share(value: float, signed: bool = False) -> str:
    """A share in percent, or a difference of shares in points.

    >>> format_share(0.195), format_share(-0.02, True), format_share(float("nan"))
    ('19.5 %', '-2.0', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f} %"


def format_shares(pair: tuple[float, float]) -> str:
    """The bounds of an interval of shares, in percent."""
    return "" if not all(map(math.isfinite, pair)) else f"{100 * pair[0]:.1f} to {100 * pair[1]:.1f}"


def format_p(p: float | None) -> str:
    """A p-value for people.

    >>> format_p(0.0123), format_p(0.00002), format_p(None)
    ('0.012', '< 0.001', '–')
    """
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def _has_auc(scores: LevelScores) -> bool:
    return not math.isnan(scores.values["auc"])


def _best(audit: Audit) -> dict[tuple[int, str], int]:
    """(level, metric) -> which model leads, for bold print; nothing when there is one model or a tie."""
    best = {}
    for level in range(audit.hierarchy.num_levels):
        for key in SUMMARY:
            values = [model.levels[level].values[key] for model in audit.models]
            if len(values) < 2 or any(map(math.isnan, values)):
                continue
            top = max(values) if METRICS[key].higher_is_better else min(values)
            # Bold print for one of two equal models would be a claim.
            if values.count(top) == 1:
                best[level, key] = values.index(top)
    return best


def _model_charts(hierarchy: ClassHierarchy, levels: list[LevelScores]) -> dict[str, Any]:
    finest = levels[-1]
    severe, distance = hierarchy.outranks(), hierarchy.distance()
    steps = range(1, finest.confusion.shape[0])
    under = [int(finest.confusion[severe & (distance == step)].sum()) for step in steps]
    over = [int(finest.confusion[severe.T & (distance == step)].sum()) for step in steps]
    return {
        "bars": charts.diverging_bars(under, over),
        "expected": None
        if finest.expected_class is None
        else charts.expected_class(
            finest.classes, finest.expected_class.tolist(), hierarchy.ranks().tolist(),
            finest.confusion.sum(1).tolist(), [hierarchy.display(label) for label in finest.classes],
        ),
        "tied": int(finest.confusion[~severe & ~severe.T & (distance > 0)].sum()),
        "absent": [
            hierarchy.display(label)
            for label, count in zip(finest.classes, finest.confusion.sum(1).tolist(), strict=True)
            if not count
        ],
    }  # fmt: skip


def _radar(audit: Audit) -> Any:
    keys = [key for key in RADAR if key != "auc" or all(_has_auc(model.finest) for model in audit.models)]
    series = [(model.name, [model.finest.values[key] for key in keys]) for model in audit.models]
    return charts.radar([METRICS[key].label for key in keys], series)


def _curve(audit: Audit, level: int) -> Any:
    """The operating curves of all models at a level."""
    series = []
    for model in audit.models:
        values = model.levels[level].values
        decided = (values["missed_rate"], values["false_alarm_rate"])
        series.append(curve_chart.CurveSeries(model.name, decided, model.points[level]))
    target = audit.models[0].predictions.at(level)[0]
    shares = class_shares(target, np.ones(len(target)), audit.hierarchy.ranks(level))
    return curve_chart.curve_chart(series, shares.tolist())


def _matrix(hierarchy: ClassHierarchy, scores: LevelScores) -> list[list[dict[str, Any]]]:
    """Cells of a confusion matrix with their kind and shade: a share of the true class, by row."""
    severe = hierarchy.outranks(scores.level)
    totals = np.maximum(1, scores.confusion.sum(1, keepdims=True))
    share = scores.confusion / totals
    kinds = np.where(severe, "severe", np.where(severe.T, "over", "tied"))
    np.fill_diagonal(kinds, "right")
    return [
        [
            {"count": int(scores.confusion[t, r]), "share": float(share[t, r]), "kind": str(kinds[t, r])}
            for r in range(len(scores.classes))
        ]
        for t in range(len(scores.classes))
    ]
