"""The page of a certificate: the bounds, what they cost at every κ, and the smallest bounds possible."""

from __future__ import annotations

import math

from pams_mil.class_checks import names_by_rank
from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify.certificate import NOT_A_GUARANTEE, Certificate
from pams_mil.evaluate.certify.make import calibration_digest
from pams_mil.evaluate.certify.miss_losses import SlideReach
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import DecisionPath
from pams_mil.report.first_screen import FirstScreen, first_screen
from pams_mil.report.live import ScreenModel
from pams_mil.report.page import ReportTable, TableHead, render, short_order


def certificate_page(certificate: Certificate, predictions: Predictions) -> str:
    """The certificate as one HTML page; `predictions` are the calibration patients it was made from."""
    if calibration_digest(predictions) != certificate.calibration:
        raise ParameterError("The predictions are not those that the certificate was calibrated on.")
    return render(
        "certificate.html.j2",
        certificate=certificate,
        hierarchy=certificate.hierarchy,
        not_a_guarantee=NOT_A_GUARANTEE,
        screen=_screen(certificate, predictions),
        order=short_order(certificate.hierarchy),
        cost=_cost_table(certificate),
        bounds=_bound_table(certificate),
        limits=_limit_table(certificate),
        infinite=math.isinf(certificate.kappa),
        percent=percent,
    )


def percent(share: float | None) -> str:
    """A share for people.

    >>> percent(0.1234), percent(0.00321), percent(None), percent(float("nan"))
    ('12.3 %', '0.321 %', '–', '–')
    """
    return "–" if share is None or math.isnan(share) else f"{100 * share:.3g} %"


def _cost_table(certificate: Certificate) -> ReportTable:
    calls = {"the model's own call (κ = 1)": certificate.own_call, "the certified call": certificate.certified_call}
    rows = [[name, percent(call.missed_rate), percent(call.false_alarm_rate)] for name, call in calls.items()]
    return ReportTable(["call", "missed urgency", "false alarms"], rows)


def _bound_table(certificate: Certificate) -> ReportTable:
    heads: list[str | TableHead] = [
        "patients",
        TableHead("at most", "α: the certified upper bound on missed urgency"),
        TableHead("κ needed", "the smallest κ that meets this bound"),
        TableHead("calibration patients", "those that this bound is about"),
        "missed among them",
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
    rows = [[limit.name, f"{limit.n:,}", percent(limit.smallest_alpha)] for limit in certificate.boundaries]
    return ReportTable(["at or above", "calibration patients", "smallest α possible"], rows)


def _screen(certificate: Certificate, predictions: Predictions) -> FirstScreen:
    """The calibration patients, or their slides, called at every κ; as decided is as certified."""
    slides, tree = SlideReach.of(predictions), certificate.hierarchy
    counted, patients = slides.as_unit(certificate.unit), predictions.patient_ids or predictions.slide_ids
    names = [" or ".join(map(tree.display, labels)) for labels in names_by_rank(tree.names(), tree.ranks())]
    ranks = ClassHierarchy.flat(names, name=tree.name)
    by_case, decided = certificate.unit == "case", counted.called(certificate.kappa)
    kappa = "∞" if math.isinf(certificate.kappa) else f"{certificate.kappa:.4g}"
    whole = next((bound.alpha for bound in certificate.bounds if bound.name is None and not bound.findings), None)
    model = ScreenModel(
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
    return first_screen([model], bound=whole, file=None, least_kappa=certificate.kappa)
