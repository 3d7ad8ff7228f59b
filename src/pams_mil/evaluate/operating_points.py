"""One method at all its operating points: the curve, what it reaches, and how far patients would move it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.atomic import plain
from pams_mil.evaluate.contrast import Contrast
from pams_mil.evaluate.inference import Networks
from pams_mil.metrics.metric import KAPPAS
from pams_mil.metrics.operating import (
    NetBenefit,
    OperatingCurve,
    class_shares,
    exact_curve,
    missed_at,
    net_benefit,
    normalized_cost,
)
from pams_mil.metrics.probability import OrderedProbabilities
from pams_mil.metrics.proper import BoundaryCalibration, boundary_calibration, worklist_c_index
from pams_mil.metrics.slides import CurveView, Slides

MOST_POINTS = 1000
"""A longer curve is thinned to about as many points in reports; everything is computed on all of them."""
BAND_POINTS = 101


@dataclass(frozen=True)
class Band:
    """Where 95 % of the resampled curves pass, pointwise: missed from `low` to `high` at given false alarms."""

    false_alarms: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class OperatingPoints:
    """What one method can do at one level, over all operating points.

    `curve` is that of the network; of several networks it is their mean at equal false alarms and its κ are NaN.
    `argmax` is (missed, false alarms) of the most probable classes (κ = 1).
    """

    networks: int
    curve: OperatingCurve
    band: Band | None
    argmax: tuple[float, float]
    normalized_cost: Array
    net_benefit: list[NetBenefit]
    calibration: list[BoundaryCalibration]
    worklist: float

    def to_json(self) -> dict[str, Any]:
        """What `pams audit --json` adds to the scores of a level."""
        return {
            "curve": plain(thinned(self.curve)),
            "curve_points": len(self.curve.kappa),
            "networks": self.networks,
            "argmax": dict(zip(("missed", "false_alarms"), self.argmax, strict=True)),
            "normalized_cost": {f"{k:g}": float(v) for k, v in zip(KAPPAS, self.normalized_cost, strict=True)},
            "net_benefit": [{**plain(point), "kappa": list(KAPPAS)} for point in self.net_benefit],
            "boundary_calibration": plain(self.calibration),
            "worklist_c_index": self.worklist,
        }


def operating_points(networks: Networks, scores: dict[str, Contrast], band: Band | None) -> OperatingPoints:
    """The curve of a method's networks beside its scores."""
    slides = networks.slides
    hierarchy, level, target = slides.hierarchy, slides.level, slides.true
    ranks = hierarchy.ranks(level)
    shares = class_shares(target, np.ones(len(target)), ranks)
    p, costs = OrderedProbabilities(slides.scores), [scores[f"cost_at_{kappa:g}"].estimate for kappa in KAPPAS]
    return OperatingPoints(
        networks=sum(map(len, networks.networks)),
        curve=curve_of(networks),
        band=band,
        argmax=rates_of(slides.path.ranks[slides.path.calls(1.0)], ranks[target]),
        normalized_cost=normalized_cost(costs, shares, KAPPAS),
        net_benefit=net_benefit(target, p, hierarchy, KAPPAS, level),
        calibration=boundary_calibration(target, p, hierarchy, level),
        worklist=worklist_c_index(target, p, hierarchy, level),
    )


def false_alarm_grid(slides: Slides) -> Array:
    """False alarms from none to where everything is called most urgent."""
    ranks = slides.hierarchy.ranks(slides.level)
    return np.linspace(0.0, float(np.mean(ranks[slides.true] < ranks[-1])), BAND_POINTS)


def missed_on(view: CurveView, grid: Array) -> Array:
    """Missed on a grid of false alarms, curve by curve, [B, k]."""
    return np.stack([missed_at(*pair, grid) for pair in zip(view.missed, view.false_alarms, strict=True)])


def curve_of(networks: Networks) -> OperatingCurve:
    """The curve of a network, or the mean of several at equal false alarms by their slides, of those that have one."""
    slides, every = networks.slides, [rows for seed in networks.networks for rows in seed]
    if len(every) == 1:
        return exact_curve(slides.path, slides.target)
    grid, pieces = false_alarm_grid(slides), [slides.take(rows) for rows in every]
    usable = [one for one in pieces if len(np.unique(one.path.ranks[one.target])) > 1] or pieces
    curves = np.stack([exact_curve(one.path, one.target).missed_at(grid) for one in usable])
    missed = np.average(curves, axis=0, weights=[len(one) for one in usable])
    return OperatingCurve(np.full(len(grid), np.nan), missed, grid)


def rates_of(called: Ints, true: Ints) -> tuple[float, float]:
    """(missed, false alarms) of calls with these ranks."""
    return float(np.mean(called < true)), float(np.mean(called > true))


def thinned(curve: OperatingCurve) -> OperatingCurve:
    """At most about MOST_POINTS points of a curve, evenly along it, with both ends and κ = 1."""
    count = len(curve.kappa)
    if count <= MOST_POINTS:
        return curve
    rows = np.linspace(0, count - 1, MOST_POINTS).round().astype(np.int64)
    # κ = 1 is always a point of the curve, and reports mark it.
    rows = np.union1d(rows, np.searchsorted(curve.kappa, 1.0))
    return OperatingCurve(curve.kappa[rows], curve.missed[rows], curve.false_alarms[rows])
