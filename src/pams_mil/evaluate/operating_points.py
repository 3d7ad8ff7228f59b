"""One model at all its operating points: the curve, what it reaches, and how far patients would move it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics.benefit import NetBenefit, net_benefit, normalized_cost
from pams_mil.metrics.bootstrap import RESAMPLES, interval, multiplicities
from pams_mil.metrics.confusion import count_cells
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.metrics.operating import (
    CurveResampler,
    OperatingCurve,
    class_shares,
    curve_auc,
    missed_at,
    missed_at_each,
)
from pams_mil.metrics.proper import BoundaryCalibration, boundary_calibration, brier, nll, rps, worklist_c_index

FALSE_ALARMS = (0.1, 0.2, 0.3)
"""At these shares of false alarms the misses are reported."""
MISSES = (0.05, 0.1)
"""At these shares of misses the false alarms are reported."""
PARTIAL = 0.3
"""The partial urgency AUC looks at the curve up to this share of false alarms."""
KAPPAS = (1.0, 2.0, 3.0, 5.0, 10.0)
"""Where expected cost and net benefit are reported."""
MOST_POINTS = 1000
"""A longer curve is thinned to about as many points in reports; everything is computed on all of them."""
BAND_POINTS = 101
_BLOCK_ENTRIES = 1 << 19


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval over patients (NaN without resamples)."""

    value: float
    interval: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        """Value and interval."""
        return {"value": self.value, "ci": list(self.interval)}


@dataclass(frozen=True)
class Band:
    """Where 95 % of the resampled curves pass, pointwise: missed from `low` to `high` at given false alarms."""

    false_alarms: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class OperatingPoints:
    """What one model can do at one level, over all dials.

    `decided` is (missed, false alarms) of the calls in the file.
    """

    level: str
    n: int
    curve: OperatingCurve
    band: Band | None
    decided: tuple[float, float]
    urgency_auc: Estimate
    partial_urgency_auc: Estimate
    missed_at: dict[float, Estimate]
    false_alarms_at: dict[float, Estimate]
    normalized_cost: Array
    net_benefit: list[NetBenefit]
    calibration: list[BoundaryCalibration]
    worklist: float
    nll: float
    brier: float
    rps: float

    @property
    def argmax(self) -> tuple[float, float]:
        """(missed, false alarms) of the most probable class."""
        return self.curve.at(1.0)

    def to_json(self) -> dict[str, Any]:
        """What `pams audit --json` adds to a level."""
        thin = thinned(self.curve)
        return {
            "urgency_auc": self.urgency_auc.value,
            "urgency_auc_ci": list(self.urgency_auc.interval),
            "partial_urgency_auc": {"max_false_alarms": PARTIAL, **self.partial_urgency_auc.to_json()},
            "missed_at": {f"{share:g}": found.value for share, found in self.missed_at.items()},
            "missed_at_ci": {f"{share:g}": list(found.interval) for share, found in self.missed_at.items()},
            "false_alarms_at": {f"{share:g}": found.value for share, found in self.false_alarms_at.items()},
            "false_alarms_at_ci": {f"{share:g}": list(found.interval) for share, found in self.false_alarms_at.items()},
            "curve": {
                "kappa": thin.kappa.tolist(),
                "missed": thin.missed.tolist(),
                "false_alarms": thin.false_alarms.tolist(),
            },
            "curve_points": len(self.curve.kappa),
            "argmax": {"missed": self.argmax[0], "false_alarms": self.argmax[1]},
            "decided": {"missed": self.decided[0], "false_alarms": self.decided[1]},
            "normalized_cost": {f"{k:g}": float(v) for k, v in zip(KAPPAS, self.normalized_cost, strict=True)},
            "net_benefit": [
                {
                    "at_least": found.at_least,
                    "prevalence": found.prevalence,
                    "kappa": list(KAPPAS),
                    "model": found.model.tolist(),
                    "always": found.always.tolist(),
                }
                for found in self.net_benefit
            ],
            "boundary_calibration": [found.to_json() for found in self.calibration],
            "worklist_c_index": self.worklist,
            "nll": self.nll,
            "brier": self.brier,
            "rps": self.rps,
        }


def operating_points(
    predictions: Predictions,
    level: int = -1,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    progress: Callable[[float], None] | None = None,
) -> OperatingPoints | None:
    """The curve of a model at a level with 95 % intervals over patients; None for a file without probabilities."""
    hierarchy = predictions.hierarchy
    target, predicted, p = predictions.at(level)
    if p is None:
        return None
    resampler = CurveResampler(decision_path(p, hierarchy, level=level), target)
    ranks, once = hierarchy.ranks(level), np.ones(len(target))
    shares = class_shares(target, once, ranks)
    curve = resampler.curve(once)
    # Up to where this curve ends, with everything called most urgent.
    grid = np.linspace(0.0, float(curve.false_alarms[-1]), BAND_POINTS)

    observed = summary(*resampler(once[None]), shares[None])[0]
    drawn, bands = [np.empty((0, len(observed)))], [np.empty((0, BAND_POINTS))]
    for weights in patient_draws(predictions.patient, seed, resamples, progress):
        missed, alarms = resampler(weights)
        drawn.append(summary(missed, alarms, class_shares(target, weights, ranks)))
        bands.append(np.stack([missed_at(*pair, grid) for pair in zip(missed, alarms, strict=True)]))
    samples = np.concatenate(drawn)
    estimates = [Estimate(float(value), interval(samples[:, at])) for at, value in enumerate(observed)]
    confusion = count_cells(target, predicted, hierarchy.num_classes(level)) / len(target)
    outranks = hierarchy.outranks(level)
    return OperatingPoints(
        level=hierarchy.level_names[hierarchy.level(level)],
        n=len(target),
        curve=curve,
        band=Band(grid, *np.percentile(np.concatenate(bands), [2.5, 97.5], axis=0)) if resamples else None,
        decided=(float(confusion[outranks].sum()), float(confusion[outranks.T].sum())),
        urgency_auc=estimates[0],
        partial_urgency_auc=estimates[1],
        missed_at=dict(zip(FALSE_ALARMS, estimates[2 : 2 + len(FALSE_ALARMS)], strict=True)),
        false_alarms_at=dict(zip(MISSES, estimates[2 + len(FALSE_ALARMS) :], strict=True)),
        normalized_cost=normalized_cost(curve, shares, KAPPAS),
        net_benefit=net_benefit(target, p, hierarchy, KAPPAS, level),
        calibration=boundary_calibration(target, p, hierarchy, level),
        worklist=worklist_c_index(target, p, hierarchy, level),
        nll=nll(target, p, hierarchy, level),
        brier=brier(target, p, hierarchy, level),
        rps=rps(target, p, hierarchy, level),
    )


def summary(missed: Array, alarms: Array, shares: Array) -> Array:
    """Urgency AUC, its partial form, misses at FALSE_ALARMS and false alarms at MISSES, of curves [B, K]; [B, 7]."""
    columns = [curve_auc(missed, alarms, shares), curve_auc(missed, alarms, shares, PARTIAL)]
    columns += [missed_at_each(missed, alarms, share) for share in FALSE_ALARMS]
    columns += [missed_at_each(alarms[:, ::-1], missed[:, ::-1], share) for share in MISSES]
    return np.stack(columns, axis=1)


def patient_draws(
    patient: Ints, seed: int, resamples: int, progress: Callable[[float], None] | None = None
) -> Iterator[Ints]:
    """How often each row counts in resamples of patients, in blocks [b, n] so that memory stays small."""
    rng, patients = np.random.default_rng(seed), int(patient.max()) + 1
    for size in _blocks(resamples, len(patient), progress):
        # one by one: the draws must not depend on the size of the blocks
        yield np.stack([multiplicities(rng, patients) for _ in range(size)])[:, patient]


def patient_coins(
    patient: Ints, seed: int, swaps: int, progress: Callable[[float], None] | None = None
) -> Iterator[Ints]:
    """0 or 1 for each row, the same for all rows of a patient, in blocks [b, n]."""
    rng, patients = np.random.default_rng(seed), int(patient.max()) + 1
    for size in _blocks(swaps, len(patient), progress):
        yield rng.integers(0, 2, (size, patients))[:, patient]


def _blocks(count: int, rows: int, progress: Callable[[float], None] | None) -> Iterator[int]:
    step = max(1, _BLOCK_ENTRIES // rows)
    for start in range(0, count, step):
        yield min(step, count - start)
        if progress is not None:
            progress(min(start + step, count) / count)


def thinned(curve: OperatingCurve) -> OperatingCurve:
    """At most about MOST_POINTS points of a curve, evenly along it, with both ends and κ = 1."""
    count = len(curve.kappa)
    if count <= MOST_POINTS:
        return curve
    kept = np.linspace(0, count - 1, MOST_POINTS).round().astype(np.int64)
    # κ = 1 is always a point of the curve, and reports mark it.
    kept = np.union1d(kept, np.searchsorted(curve.kappa, 1.0))
    return OperatingCurve(curve.kappa[kept], curve.missed[kept], curve.false_alarms[kept])
