"""The page of a certificate: what is promised, what it costs, and what could not be promised."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify.calls import Dial, dial_of
from pams_mil.evaluate.certify.certificate import NOT_A_GUARANTEE, Certificate
from pams_mil.evaluate.certify.make import calibration_digest, rates
from pams_mil.evaluate.certify.miss_losses import Unit, miss_losses
from pams_mil.evaluate.predictions import Predictions
from pams_mil.report import svg
from pams_mil.report.page import render

Point = tuple[float, float, float]
"""κ, false alarms, missed urgency."""
MARKED = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
MOST_POINTS = 1500


def certificate_page(certificate: Certificate, predictions: Predictions) -> str:
    """The certificate as one HTML page; `predictions` are the calibration patients it was made from."""
    if calibration_digest(predictions) != certificate.calibration:
        raise ParameterError("The predictions are not those that the certificate was calibrated on.")
    dial = dial_of(predictions)
    points = operating_points(dial, certificate.unit)
    return render(
        "certificate.html.j2",
        certificate=certificate,
        hierarchy=certificate.hierarchy,
        not_a_guarantee=NOT_A_GUARANTEE,
        chart=_chart(certificate, points, dial),
        infinite=math.isinf(certificate.kappa),
        percent=percent,
    )


def percent(share: float | None) -> str:
    """A share for people.

    >>> percent(0.1234), percent(0.00321), percent(None), percent(float("nan"))
    ('12.3 %', '0.321 %', '–', '–')
    """
    return "–" if share is None or math.isnan(share) else f"{100 * share:.3g} %"


def operating_points(dial: Dial, unit: Unit) -> list[Point]:
    """False alarms and missed urgency of the calibration patients wherever either changes, least urgent dial first."""
    counted = dial.as_unit(unit)
    misses = miss_losses(dial.reach, dial.rank, dial.patient, unit=unit)
    weight = counted.weight(unit)
    # exceed: the κ from which on a unit is called above its true rank; never (∞) where it has the highest.
    beyond = np.concatenate([counted.reach, np.full((len(counted.reach), 1), np.inf)], axis=1)
    exceed = beyond[np.arange(len(beyond)), counted.rank + 1]
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


def _chart(certificate: Certificate, points: Sequence[Point], dial: Dial) -> Markup:
    """Missed urgency over false alarms along the dial, with the certified point and the model's own call."""
    most_x = max(1e-3, certificate.certified.false_alarms, *(x for _, x, _ in points))
    plane = svg.Plane(520, 360, svg.ticks(0.0, most_x, 10), svg.ticks(0.0, max(1e-3, *(y for _, _, y in points)), 10))
    parts = plane.axes(("false alarms, %", "missed urgency, %"))
    whole = next((promise.alpha for promise in certificate.promises if promise.name is None), None)
    if whole is not None and whole <= plane.ys[-1]:
        start, (x, y) = plane.at(0, whole), plane.at(plane.xs[-1], whole)
        parts.append(svg.line(start, (x, y), "severe-line", ' stroke-dasharray="5 4"'))
        parts.append(svg.text(x, y - 5, f"α = {100 * whole:g} %", "end severe-text"))
    parts.append(svg.polyline([plane.at(x, y) for _, x, y in points], "curve s0"))
    for kappa in MARKED:
        found = rates(dial, kappa, certificate.unit)
        x, y = plane.at(found.false_alarms, found.missed)
        parts += [svg.dot((x, y), 3, "dim"), svg.text(x + 6, y - 5, f"{kappa:g}", "dim")]
    x, y = plane.at(certificate.certified.false_alarms, certificate.certified.missed)
    label = "κ = ∞" if math.isinf(certificate.kappa) else f"certified, κ = {certificate.kappa:.3g}"
    side, shift = ("end", -11) if x > 0.6 * plane.width else ("", 11)
    parts += [svg.dot((x, y), 7, "severe"), svg.text(x + shift, y - 24, label, side)]
    return svg.picture(plane.width, plane.height, "missed urgency over false alarms", parts)
