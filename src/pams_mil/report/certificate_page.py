"""The page of a certificate: the bounds, what they cost at every κ, and the smallest bounds possible."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from markupsafe import Markup

from pams_mil.class_checks import SEPARATOR, names_by_rank
from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify.apply import apply_certificate
from pams_mil.evaluate.certify.certificate import NOT_A_GUARANTEE, BoundaryLimit, Certificate
from pams_mil.evaluate.certify.make import calibration_digest, rates, views_by_order
from pams_mil.evaluate.certify.miss_losses import SlideReach, boundaries
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import DecisionPath
from pams_mil.report.charts import curve_chart
from pams_mil.report.first_screen import Counts, FirstScreen, curve_series, first_screen, rank_shares
from pams_mil.report.live import Again, ScreenModel
from pams_mil.report.page import READABLE, ReportTable, TableHead, readable_level, render, short_order

MOST_ANSWERS = 12
"""Answers that the page of several orders lists, most frequent first."""


def certificate_page(certificate: Certificate, predictions: Predictions, *, command: str = "") -> str:
    """The certificate as one HTML page.

    Args:
        certificate: The certificate.
        predictions: The calibration patients it was made from.
        command: The command line that made it; with `--kappa` it counts the patients as the page does.
    """
    if calibration_digest(predictions) != certificate.calibration:
        raise ParameterError("The predictions are not those that the certificate was calibrated on.")
    if certificate.hierarchy.other_orders:
        return _order_page(certificate, predictions.with_orders(certificate.hierarchy))
    return render(
        "certificate.html.j2",
        certificate=certificate,
        hierarchy=certificate.hierarchy,
        not_a_guarantee=NOT_A_GUARANTEE,
        screen=_screen(certificate, predictions, command),
        cost=_cost_table(certificate),
        bounds=_bound_table(certificate),
        limits=_limit_table(certificate),
        infinite=math.isinf(certificate.kappa),
        percent=percent,
    )


def _order_page(certificate: Certificate, predictions: Predictions) -> str:
    views = views_by_order(predictions)
    patients = predictions.slide_ids if predictions.patient_ids is None else predictions.patient_ids
    calls = apply_certificate(certificate, np.asarray(predictions.probabilities), patients)
    answers = Counter(calls.columns()["certified"])
    return render(
        "order_certificate.html.j2",
        certificate=certificate,
        not_a_guarantee=NOT_A_GUARANTEE,
        chart=_order_chart(certificate, views),
        by_order=_order_table(certificate, views),
        answers=_answer_table(answers),
        several=sum(count for answer, count in answers.items() if SEPARATOR in answer) / len(predictions),
        orders=[(name, short_order(view.hierarchy)) for name, view in views.items()],
        percent=percent,
    )


def _order_table(certificate: Certificate, views: Mapping[str, Predictions]) -> ReportTable:
    heads: list[str | TableHead] = [
        "order",
        TableHead("κ alone", "the smallest κ that meets this order's bounds"),
        "at most",
        TableHead("missed", "by this order's call at the common κ, among the calibration patients"),
        "false alarms",
    ]
    rows = []
    for name, view in views.items():
        own = [bound for bound in certificate.bounds if bound.order == name]
        alone, calls = (
            max(bound.kappa for bound in own),
            rates(SlideReach.of(view), certificate.kappa, certificate.unit),
        )
        bounds = "; ".join(f"{percent(bound.alpha)} of {bound.who}" for bound in own)
        rows.append([name, f"{alone:.4g}", bounds, percent(calls.missed_rate), percent(calls.false_alarm_rate)])
    return ReportTable(heads, rows, text=(0, 2))


def _answer_table(answers: Counter[str]) -> ReportTable:
    rows = [[answer, str(count)] for answer, count in answers.most_common(MOST_ANSWERS)]
    return ReportTable(["answer", "calibration slides"], rows, text=(0,))


def _order_chart(certificate: Certificate, views: Mapping[str, Predictions]) -> Markup:
    """Missed urgency over false alarms of every order's calls, each with its point at the common κ."""
    called = [replace(view, name=name, predicted=view.path.calls(certificate.kappa)) for name, view in views.items()]
    return curve_chart(curve_series(called, [None] * len(called)), rank_shares(called[0]))


def percent(share: float | None) -> str:
    """A share for people.

    >>> percent(0.1234), percent(0.00321), percent(None), percent(float("nan"))
    ('12.3 %', '0.321 %', '–', '–')
    """
    return "–" if share is None or math.isnan(share) else f"{100 * share:.3g} %"


def _cost_table(certificate: Certificate) -> ReportTable:
    calls = {"the model's own call (κ = 1)": certificate.own_call, "the certified call": certificate.certified_call}
    rows = [[name, percent(call.missed_rate), percent(call.false_alarm_rate)] for name, call in calls.items()]
    who = "patients" if certificate.unit == "case" else "slides"
    missed = TableHead("missed urgency", f"share of the {who} that are called less urgent than they are")
    alarms = TableHead("false alarms", f"share of the {who} that are called more urgent than they are")
    return ReportTable(["call", missed, alarms], rows)


def _bound_table(certificate: Certificate) -> ReportTable:
    heads: list[str | TableHead] = [
        "patients",
        TableHead("at most", "α: the certified upper bound on missed urgency"),
        TableHead("κ needed", "the smallest κ that meets this bound"),
        TableHead("calibration patients", "those that this bound is about"),
        TableHead("missed among them", "share of these patients that the certified call misses"),
        TableHead("smallest α possible", "what this number of patients can certify without a single miss"),
        TableHead("90 % of systems", "miss rates of systems calibrated on as many other patients"),
    ]
    return ReportTable(heads, [
        [
            bound.who, percent(bound.alpha), f"{bound.kappa:.4g}", f"{bound.n:,}", percent(bound.observed),
            percent(bound.smallest_alpha), f"{percent(bound.spread.low)} to {percent(bound.spread.high)}",
        ]
        for bound in certificate.bounds
    ])  # fmt: skip


def _limit_table(certificate: Certificate) -> ReportTable:
    rows = [[limit.name, f"{limit.n:,}", percent(limit.smallest_alpha)] for limit in shown_limits(certificate)]
    return ReportTable(
        [
            "at or above",
            "calibration patients",
            TableHead("smallest α possible", "what this number of patients can certify without a single miss"),
        ],
        rows,
    )


def shown_limits(certificate: Certificate) -> list[BoundaryLimit]:
    """What can be certified at each boundary; of hundreds, at those between groups, or at some of them."""
    limits, tree = list(certificate.boundaries), certificate.hierarchy
    if len(limits) <= READABLE:
        return limits
    level = readable_level(tree)
    if level is None:
        return [limits[place] for place in np.linspace(0, len(limits) - 1, READABLE).round().astype(int)]
    by_rank = {rank: limit for (_, rank), limit in zip(boundaries(tree), limits, strict=True)}
    ranks = np.unique(tree.ranks(), return_inverse=True)[1]
    first = ranks[np.searchsorted(tree.groups(level), np.arange(tree.num_classes(level)))]
    named = zip(tree.names(level), first.tolist(), strict=True)
    return [replace(by_rank[rank], name=tree.display(name)) for name, rank in named if rank in by_rank]


def _either(names: list[str]) -> str:
    """Equally urgent classes as one; hundreds of them are counted."""
    return " or ".join(names if len(names) < 5 else [*names[:2], f"{len(names) - 2} more"])


def counts_at(certificate: Certificate, predictions: Predictions, kappa: float) -> Counts:
    """The calibration patients, called at one κ and counted as in the bound."""
    model = _patients(certificate, predictions)
    if model.path is None:
        raise ParameterError("Without probabilities there is no call at another κ.")
    return Counts.of(replace(model, decided=model.path.calls(kappa)))


def _screen(certificate: Certificate, predictions: Predictions, command: str) -> FirstScreen:
    model = _patients(certificate, predictions)
    whole = next((bound.alpha for bound in certificate.bounds if bound.at is None and not bound.findings), None)
    return first_screen(
        [model], bound=whole, file=None, least_kappa=certificate.kappa, commands={model.name: Again(command)},
        rule="--kappa ",
    )  # fmt: skip


def _patients(certificate: Certificate, predictions: Predictions) -> ScreenModel:
    """The calibration patients, or their slides, called at every κ; as decided is as certified."""
    slides, tree = SlideReach.of(predictions), certificate.hierarchy
    counted, patients = slides.as_unit(certificate.unit), predictions.patient_ids or predictions.slide_ids
    names = [_either([*map(tree.display, labels)]) for labels in names_by_rank(tree.names(), tree.ranks())]
    ranks = ClassHierarchy.flat(names, name=tree.name)
    by_case, decided = certificate.unit == "case", counted.called(certificate.kappa)
    kappa = "∞" if math.isinf(certificate.kappa) else f"{certificate.kappa:.4g}"
    return ScreenModel(
        name=predictions.name,
        hierarchy=ranks,
        ids=list(dict.fromkeys(patients)) if by_case else predictions.slide_ids,
        target=counted.rank,
        decided=decided,
        path=DecisionPath(counted.reach, ranks.ranks()),
        patients=None if by_case else patients,
        # Slides of one patient share its weight, as in the bound.
        weight=1.0 if by_case else counted.weight,
        decided_by=f"certified, κ = {kappa}",
        noun="patient",
    )
