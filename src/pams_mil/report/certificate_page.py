"""The page of a certificate: what is promised, what it costs, and what could not be promised."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from pams_mil.errors import ParameterError
from pams_mil.evaluate.certify.calls import Dial, dial_of
from pams_mil.evaluate.certify.certificate import NOT_A_GUARANTEE, Certificate
from pams_mil.evaluate.certify.make import calibration_digest, rates
from pams_mil.evaluate.certify.miss_losses import Unit, miss_losses
from pams_mil.evaluate.predictions import Predictions
from pams_mil.report.page import environment

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
    return (
        environment()
        .get_template("certificate.html.j2")
        .render(
            certificate=certificate,
            hierarchy=certificate.hierarchy,
            not_a_guarantee=NOT_A_GUARANTEE,
            chart=_chart(certificate, points, dial),
            infinite=math.isinf(certificate.kappa),
            percent=percent,
        )
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
    weight = np.ones(len(counted.rank)) if unit == "rate" else counted.weight
    beyond = np.concatenate([counted.reach, np.full((len(counted.reach), 1), np.inf)], axis=1)
    exceed = beyond[np.arange(len(beyond)), counted.rank + 1]
    order = np.argsort(exceed, kind="stable")
    alarms = np.append(0.0, np.cumsum(weight[order])) / weight.sum()
    kappas = np.unique(np.concatenate([[0.0, 1.0], misses.kappa, exceed]))
    kappas = kappas[np.isfinite(kappas)]
    if len(kappas) > MOST_POINTS:
        kappas = kappas[np.linspace(0, len(kappas) - 1, MOST_POINTS).astype(int)]
    high = alarms[np.searchsorted(exceed[order], kappas, side="right")]
    low = misses.total(kappas) / misses.mass
    return list(zip(kappas.tolist(), high.tolist(), low.tolist(), strict=True))


def _chart(certificate: Certificate, points: Sequence[Point], dial: Dial) -> Markup:
    """Missed urgency over false alarms along the dial, with the certified point and the model's own call."""
    left, right, top, bottom, width, height = 56, 24, 16, 44, 520, 360
    most_x = _round_up(max([certificate.certified.false_alarms, *(x for _, x, _ in points)]))
    most_y = _round_up(max(y for _, _, y in points))

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x / most_x * (width - left - right), height - bottom - y / most_y * (height - top - bottom)

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="missed urgency over false alarms">']
    for step in range(5):
        x, _ = at(step / 4 * most_x, 0)
        _, y = at(0, step / 4 * most_y)
        parts.append(f'<path d="M{x:.1f} {top}V{height - bottom}M{left} {y:.1f}H{width - right}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 17}" class="mid dim">{25 * step * most_x:.0f}</text>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" class="end dim">{25 * step * most_y:.0f}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 8}" class="mid">false alarms, %</text>')
    parts.append(f'<text transform="translate(14 {height / 2}) rotate(-90)" class="mid">missed urgency, %</text>')
    whole = next((promise.alpha for promise in certificate.promises if promise.name is None), None)
    if whole is not None and whole <= most_y:
        _, y = at(0, whole)
        parts.append(f'<path d="M{left} {y:.1f}H{width - right}" stroke="var(--severe)" stroke-dasharray="5 4"/>')
        parts.append(f'<text x="{width - right}" y="{y - 5:.1f}" class="end severe-text">α = {100 * whole:g} %</text>')
    line = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for _, x, y in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="var(--s0)" stroke-width="2"/>')
    for kappa in MARKED:
        x, y = at(*_at_kappa(dial, kappa, certificate.unit))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="var(--dim)"/>')
        parts.append(f'<text x="{x + 6:.1f}" y="{y - 5:.1f}" class="dim">{kappa:g}</text>')
    x, y = at(certificate.certified.false_alarms, certificate.certified.missed)
    label = "κ = ∞" if math.isinf(certificate.kappa) else f"certified, κ = {certificate.kappa:.3g}"
    side = "end" if x > 0.6 * width else ""
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" class="severe"/>')
    parts.append(f'<text x="{x + (-11 if side else 11):.1f}" y="{y - 24:.1f}" class="{side}">{escape(label)}</text>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  numbers and escaped text only


def _round_up(share: float) -> float:
    """The end of an axis whose quarters are whole percents."""
    return min(1.0, 0.2 * max(1, math.ceil(share / 0.2 - 1e-9)))


def _at_kappa(dial: Dial, kappa: float, unit: Unit) -> tuple[float, float]:
    found = rates(dial, kappa, unit)
    return found.false_alarms, found.missed
