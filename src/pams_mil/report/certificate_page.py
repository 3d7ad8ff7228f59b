"""The page of a certificate: the bounds, what they cost, and the smallest bounds possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify.certificate import NOT_A_GUARANTEE, Certificate
from pams_mil.evaluate.certify.make import calibration_digest, rates
from pams_mil.evaluate.certify.miss_losses import SlideReach, Unit
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.report import svg
from pams_mil.report.page import render
from pams_mil.report.report_table import ReportTable, TableHead

Point = tuple[float, float, float]
"""κ, false alarms, missed urgency."""
MARKED = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
MOST_POINTS = 1500
_LETTER, _LINE = 6.6, 14.0
"""Size of text in a picture, generously."""


def certificate_page(certificate: Certificate, predictions: Predictions) -> str:
    """The certificate as one HTML page; `predictions` are the calibration patients it was made from."""
    if calibration_digest(predictions) != certificate.calibration:
        raise ParameterError("The predictions are not those that the certificate was calibrated on.")
    slides = SlideReach.of(predictions)
    return render(
        "certificate.html.j2",
        certificate=certificate,
        hierarchy=certificate.hierarchy,
        not_a_guarantee=NOT_A_GUARANTEE,
        chart=_chart(certificate, slides),
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
    return ReportTable(["", "missed urgency", "false alarms"], rows)


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


def operating_points(slides: SlideReach, unit: Unit) -> list[Point]:
    """False alarms and missed urgency of the calibration patients wherever either changes, smallest κ first."""
    counted, misses = slides.as_unit(unit), slides.miss_losses(unit)
    weight, exceed = counted.weight, counted.exceed
    order = np.argsort(exceed, kind="stable")
    # alarms[k]: the share of weight among the first k units in this order, so alarms[0] is 0.
    alarms = np.append(0.0, np.cumsum(weight[order])) / weight.sum()
    kappas = np.unique(np.concatenate([[0.0, 1.0], misses.kappa, exceed]))
    kappas = kappas[np.isfinite(kappas)]
    if len(kappas) > MOST_POINTS:
        kappas = kappas[np.linspace(0, len(kappas) - 1, MOST_POINTS).astype(int)]
    # side="right": at κ itself the call has changed already.
    high = alarms[np.searchsorted(exceed[order], kappas, side="right")]
    low = misses.total(kappas) / misses.mass
    return list(zip(kappas.tolist(), high.tolist(), low.tolist(), strict=True))


def _chart(certificate: Certificate, slides: SlideReach) -> Markup:
    """Missed urgency over false alarms for every κ, with the certified point and the model's own call."""
    points, chosen = operating_points(slides, certificate.unit), certificate.certified_call
    most_x = max(1e-3, chosen.false_alarm_rate, *(x for _, x, _ in points))
    plane = svg.Plane(520, 360, svg.ticks(0.0, most_x, 10), svg.ticks(0.0, max(1e-3, *(y for _, _, y in points)), 10))
    parts = plane.axes(("false alarms, %", "missed urgency, %"))
    labels = _Labels(plane)
    whole = next((bound.alpha for bound in certificate.bounds if bound.name is None and not bound.findings), None)
    parts.append(svg.polyline([plane.at(x, y) for _, x, y in points], "curve s0"))
    # The most important label first: later ones make room, and where there is none only the dot is drawn.
    place = plane.at(chosen.false_alarm_rate, chosen.missed_rate)
    text = "κ = ∞" if math.isinf(certificate.kappa) else f"certified, κ = {certificate.kappa:.3g}"
    parts += [svg.dot(place, 7, "severe", text), labels.beside(place, text, 10)]
    if whole is not None and whole <= plane.ys[-1]:
        start, end = plane.at(0, whole), plane.at(plane.xs[-1], whole)
        parts.append(svg.line(start, end, "severe-line", ' stroke-dasharray="5 4"'))
        parts.append(labels.beside((end[0], end[1]), f"α = {100 * whole:g} %", 2, "severe-text"))
    for kappa in MARKED:
        marked = rates(slides, kappa, certificate.unit)
        place = plane.at(marked.false_alarm_rate, marked.missed_rate)
        parts += [svg.dot(place, 3, "dim", f"κ = {kappa:g}"), labels.beside(place, f"{kappa:g}", 5, "dim")]
    return svg.picture(plane.width, plane.height, "missed urgency over false alarms", parts)


class _Labels:
    """Places labels beside points so that none lies on another or outside of the axes."""

    def __init__(self, plane: svg.Plane) -> None:
        self.plane = plane
        self.boxes: list[tuple[float, float, float, float]] = []

    def beside(self, place: svg.Place, content: str, gap: float, css: str = "") -> str:
        """The label at the first free corner of the place; nothing where all are taken."""
        width, (x, y) = _LETTER * len(content), place
        for across, up in ((1, 1), (-1, 1), (1, -1), (-1, -1)):
            left = x + gap if across > 0 else x - gap - width
            top = y - gap - _LINE if up > 0 else y + gap
            box = (left, top, left + width, top + _LINE)
            inside = (
                self.plane.left <= box[0]
                and box[2] <= self.plane.width
                and box[1] >= 0
                and box[3] <= self.plane.height - self.plane.bottom
            )
            if inside and not any(_overlap(box, other) for other in self.boxes):
                self.boxes.append(box)
                side = "" if across > 0 else "end "
                return svg.text(x + across * gap, box[3] - 4, content, f"{side}{css}")
        return ""


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
