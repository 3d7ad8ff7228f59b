"""The page of a certificate: the bounds, what they cost at every κ, and the smallest bounds possible.

A certificate for several orders of urgency is the same page: every order is counted at the common κ, as a model of its
own on the curve and a row of every table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter

import numpy as np

from pams_mil.class_checks import SEPARATOR, names_by_rank
from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify.apply import apply_certificate
from pams_mil.evaluate.certify.certificate import NOT_A_GUARANTEE, BoundaryLimit, Certificate, percent
from pams_mil.evaluate.certify.make import calibration_digest, rates, views_by_order
from pams_mil.evaluate.certify.miss_losses import SlideReach, boundaries
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import DecisionPath
from pams_mil.report.first_screen import Counts, first_screen
from pams_mil.report.live import Links, ScreenModel
from pams_mil.report.page import READABLE, Column, ReportTable, readable_level, render

MOST_ANSWERS = 12
"""Answers that the page of several orders lists, most frequent first."""


def certificate_page(certificate: Certificate, predictions: Predictions, *, command: str = "") -> str:
    """The certificate as one HTML page, with the calibration patients it was made from.

    `command` is the command line that made it; with `--kappa` it counts the patients as the page does.
    """
    views, kappa = _views(certificate, predictions), certificate.kappa
    by_order, answers = len(views) > 1, Counter[str]()
    if by_order:
        calls = apply_certificate(certificate, np.asarray(predictions.probabilities), predictions.patients)
        answers.update(calls.columns()["certified"])
    # A line of Python decides by one order only.
    links = Links(command, "") if by_order else Links(command)
    whole = next((bound.alpha for bound in certificate.bounds if bound.at is None and not bound.findings), None)
    return render(
        "certificate.html.j2",
        certificate=certificate,
        by_order=by_order,
        orders={name: view.hierarchy for name, view in views.items()},
        not_a_guarantee=NOT_A_GUARANTEE,
        screen=first_screen(
            [replace(_patients(certificate, view, kappa), links=links) for view in views.values()],
            bound=whole, file=None, rule="--kappa ", needed=needed_kappas(certificate),
        ),
        cost=_cost_table(certificate, views),
        bounds=_bound_table(certificate, by_order=by_order),
        limits=ReportTable.of(shown_limits(certificate), [
            Column("at or above", "name"),
            Column("calibration patients", "n"),
            _SMALLEST,
        ]),
        answers=ReportTable(
            ["answer", "calibration slides"], [[name, str(count)] for name, count in answers.most_common(MOST_ANSWERS)]
        ),
        several=sum(count for answer, count in answers.items() if SEPARATOR in answer) / len(predictions),
        percent=percent,
    )  # fmt: skip


def counts_at(certificate: Certificate, predictions: Predictions, kappa: float) -> dict[str, Counts]:
    """The calibration patients, called at one κ and counted as in the bound, by order."""
    views = _views(certificate, predictions)
    return {name: Counts.of(_patients(certificate, view, kappa)) for name, view in views.items()}


def needed_kappas(certificate: Certificate) -> dict[str, float]:
    """The smallest κ that meets all bounds of an order, by its name, which is empty where there is one."""
    orders = dict.fromkeys(bound.order for bound in certificate.bounds if bound.order) or {"": None}
    return {order: max(bound.kappa for bound in certificate.bounds if bound.order in (order, "")) for order in orders}


def _views(certificate: Certificate, predictions: Predictions) -> dict[str, Predictions]:
    """The calibration patients under every order of a certificate; other patients are refused."""
    if calibration_digest(predictions) != certificate.calibration:
        raise ParameterError("The predictions are not those that the certificate was calibrated on.")
    views = views_by_order(predictions.with_orders(certificate.hierarchy))
    return {
        order: replace(view, name=f"{view.name} under {order}" if order else view.name) for order, view in views.items()
    }


def bounds_sentence(needed: Mapping[str, float], kappa: float) -> str:
    """Whether a κ meets the bounds of all orders, which need these; in the words of the page."""
    short, several = [name for name, least in needed.items() if kappa < least], len(needed) > 1
    if not short:
        return f"Meets the bounds{' of every order' if several else ''}."
    under = f" under {', '.join(short)}" if several else ""
    return f"Does not meet the bounds{under}: they need κ = {max(needed.values()):.4g}."


def _cost_table(certificate: Certificate, views: Mapping[str, Predictions]) -> ReportTable:
    """What the model's own call and the certified one miss and raise, under every order."""
    kappas = {"the model's own call (κ = 1)": 1.0, "the certified call": certificate.kappa}
    calls = [
        (order, call, rates(SlideReach.of(view), kappa, certificate.unit))
        for order, view in views.items()
        for call, kappa in kappas.items()
    ]
    share = f"share of the {'patients' if certificate.unit == 'case' else 'slides'} that are called"
    columns = [
        Column("call", itemgetter(1)),
        Column("missed urgency", lambda row: percent(row[2].missed_rate), f"{share} less urgent than they are"),
        Column("false alarms", lambda row: percent(row[2].false_alarm_rate), f"{share} more urgent than they are"),
    ]
    if len(views) == 1:
        return ReportTable.of(calls, columns)
    return ReportTable.of(calls, [Column("order", itemgetter(0)), *columns], text=(0, 1))


_SMALLEST = Column(
    "smallest α possible",
    lambda bound: percent(bound.smallest_alpha),
    "what this number of patients can certify without a single miss",
)


def _bound_table(certificate: Certificate, *, by_order: bool) -> ReportTable:
    columns = [
        Column("patients", "who"),
        Column("at most", lambda bound: percent(bound.alpha), "α: the certified upper bound on missed urgency"),
        Column("κ needed", lambda bound: f"{bound.kappa:.4g}", "the smallest κ that meets this bound"),
        Column("calibration patients", "n", "those that this bound is about"),
        Column("missed among them", lambda bound: percent(bound.observed),
               "share of these patients that are missed at the κ needed"),
        _SMALLEST,
        Column("90 % of systems", lambda bound: f"{percent(bound.spread.low)} to {percent(bound.spread.high)}",
               "miss rates of systems calibrated on as many other patients"),
    ]  # fmt: skip
    if not by_order:
        return ReportTable.of(certificate.bounds, columns)
    return ReportTable.of(certificate.bounds, [Column("order", "order"), *columns], text=(0, 1))


def shown_limits(certificate: Certificate) -> list[BoundaryLimit]:
    """What can be certified at each boundary; of hundreds, at those between groups, or at some of them."""
    limits, tree = list(certificate.boundaries), certificate.hierarchy
    if len(limits) <= READABLE:
        return limits
    level = readable_level(tree)
    if level is None:
        return [limits[place] for place in np.linspace(0, len(limits) - 1, READABLE).round().astype(int)]
    by_rank = {rank: limit for (_, rank), limit in zip(boundaries(tree), limits, strict=True)}
    ranks = tree.ranks()
    first = ranks[np.searchsorted(tree.groups(level), np.arange(tree.num_classes(level)))]
    named = zip(tree.names(level), first.tolist(), strict=True)
    return [replace(by_rank[rank], name=tree.display(name)) for name, rank in named if rank in by_rank]


def _either(names: list[str]) -> str:
    """Equally urgent classes as one; hundreds of them are counted."""
    return " or ".join(names if len(names) < 5 else [*names[:2], f"{len(names) - 2} more"])


def _patients(certificate: Certificate, view: Predictions, kappa: float) -> ScreenModel:
    """The calibration patients, or their slides, called at every κ; as decided is at the given one."""
    counted, tree, by_case = SlideReach.of(view).as_unit(certificate.unit), view.hierarchy, certificate.unit == "case"
    names = [_either([*map(tree.display, labels)]) for labels in names_by_rank(tree.names(), tree.ranks())]
    ranks = ClassHierarchy.flat(names, name=tree.name)
    return ScreenModel(
        name=view.name,
        hierarchy=ranks,
        ids=list(dict.fromkeys(view.patients)) if by_case else view.slide_ids,
        target=counted.rank,
        decided=counted.called(kappa),
        path=DecisionPath(counted.reach, ranks.ranks()),
        patients=None if by_case else view.patients,
        # Slides of one patient share its weight, as in the bound.
        weight=1.0 if by_case else counted.weight,
        decided_by=f"certified, κ = {'∞' if math.isinf(kappa) else f'{kappa:.4g}'}",
        noun="patient",
    )
