"""Two models at the same operating point, so that a difference is one between models and not between dials.

A model can always miss less by raising more false alarms. So the candidate's dial is turned until it raises as many as
the reference (or misses as many), and what is left is compared. Both dials are chosen anew inside every resample of
patients; the p-value comes from swapping the two models' probabilities in random patients.

Dials turned on the slides that are scored describe the two curves. A comparison that could be deployed fixes κ
beforehand: one κ for both is `at_kappa`, a κ for each from validation slides is `fixed_dial`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.evaluate.operating_points import KAPPAS, PARTIAL, patient_coins, patient_draws
from pams_mil.evaluate.predictions import Predictions
from pams_mil.metrics.bootstrap import RESAMPLES, interval
from pams_mil.metrics.kappa_path import DecisionPath, decision_path
from pams_mil.metrics.operating import CurveResampler, class_shares, curve_auc, missed_at_each

SWAPS = 2000
"""Random swaps for a p-value; the smallest possible is one over this."""
_COST_GRID = np.geomspace(0.1, 100.0, 121)


@dataclass(frozen=True)
class Gap:
    """candidate − reference of one quantity at the same operating point."""

    reference: float
    candidate: float
    interval: tuple[float, float]
    p_value: float | None
    corrected_p: float | None = None

    @property
    def difference(self) -> float:
        """Candidate minus reference."""
        return self.candidate - self.reference

    @property
    def p(self) -> float | None:
        """The p-value, corrected where several models were compared."""
        return self.p_value if self.corrected_p is None else self.corrected_p

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "difference": self.difference,
            "ci": list(self.interval),
            "p": self.p_value,
            "p_holm": self.corrected_p,
        }


@dataclass(frozen=True)
class Matched:
    """Candidate against reference at one level.

    Attributes:
        at_false_alarms: The share of false alarms at which misses are compared, by default the reference's own.
        missed: Misses there.
        at_missed: The share of misses at which false alarms are compared, by default the reference's own.
        false_alarms: False alarms there.
        urgency_auc: The whole curves.
        partial_urgency_auc: The curves up to PARTIAL false alarms.
        at_kappa: Expected cost O + κ U of both at the same κ, for several κ.
        candidate_cheaper: Ranges of κ from 0.1 to 100 in which the candidate costs less than the reference.
    """

    at_false_alarms: float
    missed: Gap
    at_missed: float
    false_alarms: Gap
    urgency_auc: Gap
    partial_urgency_auc: Gap
    at_kappa: dict[float, Gap]
    candidate_cheaper: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """`difference`, `ci` and `p` are those of the misses at equal false alarms."""
        return {
            "at_false_alarms": self.at_false_alarms,
            **self.missed.to_json(),
            "at_missed": self.at_missed,
            "false_alarms": self.false_alarms.to_json(),
            "urgency_auc": self.urgency_auc.to_json(),
            "partial_urgency_auc": {"max_false_alarms": PARTIAL, **self.partial_urgency_auc.to_json()},
            "cost_at_kappa": {f"{kappa:g}": gap.to_json() for kappa, gap in self.at_kappa.items()},
            "candidate_cheaper_for_kappa": [list(pair) for pair in self.candidate_cheaper],
        }


def matched(
    reference: Predictions,
    candidate: Predictions,
    level: int = -1,
    *,
    false_alarms: float | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    swaps: int = SWAPS,
    progress: Callable[[float], None] | None = None,
) -> Matched | None:
    """Compare two models on the same slides in the same order; None when either has no probabilities.

    Args:
        reference: What the other is compared with; its calls set the operating point.
        candidate: The other model, on the same slides.
        level: Where to compare.
        false_alarms: Another share of false alarms to compare misses at.
        seed: Of resamples and swaps.
        resamples: Of patients, for intervals; 0 for none.
        swaps: For p-values.
        progress: Called with the fraction done.
    """
    hierarchy = reference.hierarchy
    target, called, one = reference.at(level)
    two = candidate.at(level)[2]
    if one is None or two is None:
        return None
    ranks, patient = hierarchy.ranks(level), reference.patient
    paths = [decision_path(p, hierarchy, level=level) for p in (one, two)]
    own_missed = float(np.mean(ranks[called] < ranks[target]))
    own_alarms = float(np.mean(ranks[called] > ranks[target])) if false_alarms is None else false_alarms
    # The point to compare at is the observed one throughout; only the dials that reach it are turned anew.
    measure = _Measure(own_alarms, own_missed)
    once = np.ones((1, len(target)))
    shares = class_shares(target, once, ranks)
    resamplers = [CurveResampler(path, target) for path in paths]
    observed = np.concatenate([measure(resampler, once, shares) for resampler in resamplers])
    drawn = [np.empty((0, observed.shape[1]))]
    for weights in patient_draws(patient, seed, resamples, part_of(progress, 0, 2)):
        drawn_shares = class_shares(target, weights, ranks)
        first, second = (measure(resampler, weights, drawn_shares) for resampler in resamplers)
        drawn.append(second - first)
    # both models in one sorted list: a swap only moves weight between the two copies of a slide
    both = CurveResampler(DecisionPath(np.concatenate([path.reach for path in paths]), ranks), np.tile(target, 2))
    shuffled = [np.empty((0, observed.shape[1]))]
    # Swaps leave the labels where they are, so the shares of the classes stay.
    for side in patient_coins(patient, seed + 1, swaps, part_of(progress, 1, 2)):
        first, second = (
            measure(both, np.concatenate(pair, axis=1), shares) for pair in ((1 - side, side), (side, 1 - side))
        )
        shuffled.append(second - first)
    spread, chance = np.concatenate(drawn), np.concatenate(shuffled)
    differences = observed[1] - observed[0]
    gaps = [
        Gap(
            float(observed[0, at]),
            float(observed[1, at]),
            interval(spread[:, at]),
            swap_p_value(float(differences[at]), chance[:, at]),
        )
        for at in range(len(differences))
    ]
    return Matched(
        at_false_alarms=own_alarms,
        missed=gaps[0],
        at_missed=own_missed,
        false_alarms=gaps[1],
        urgency_auc=gaps[2],
        partial_urgency_auc=gaps[3],
        at_kappa=dict(zip(KAPPAS, gaps[4:], strict=True)),
        candidate_cheaper=_cheaper(resamplers[0], resamplers[1], once),
    )


@dataclass(frozen=True)
class _Measure:
    """Everything that is compared, of weighted curves: weights [B, n] -> [B, 4 + kappas]."""

    false_alarms: float
    missed: float

    def __call__(self, resampler: CurveResampler, weights: npt.NDArray[np.generic], shares: Array) -> Array:
        missed, alarms = resampler(weights)
        place = np.searchsorted(resampler.kappa, KAPPAS, side="right") - 1
        columns = [
            missed_at_each(missed, alarms, self.false_alarms),
            # the same curve from its other end: false alarms where so much is missed
            missed_at_each(alarms[:, ::-1], missed[:, ::-1], self.missed),
            curve_auc(missed, alarms, shares),
            curve_auc(missed, alarms, shares, PARTIAL),
        ]
        return np.column_stack([*columns, alarms[:, place] + np.asarray(KAPPAS) * missed[:, place]])


def part_of(progress: Callable[[float], None] | None, number: int, of: int) -> Callable[[float], None] | None:
    """The progress of one of several equally long parts, as progress of the whole."""
    return None if progress is None else lambda fraction: progress((number + fraction) / of)


def swap_p_value(observed: float, shuffled: Array) -> float | None:
    """Two-sided, the observed labelling counted in, so it is never 0; None where the quantity is undefined."""
    valid = shuffled[~np.isnan(shuffled)]
    if np.isnan(observed) or not valid.size:
        return None
    return float((np.sum(np.abs(valid) >= abs(observed) - 1e-12) + 1) / (valid.size + 1))


def _cheaper(reference: CurveResampler, candidate: CurveResampler, weights: Array) -> tuple[tuple[float, float], ...]:
    """Ranges of κ on a grid in which the candidate's expected cost is the lower one."""
    costs = []
    for resampler in (reference, candidate):
        missed, alarms = (points[0] for points in resampler(weights))
        place = np.searchsorted(resampler.kappa, _COST_GRID, side="right") - 1
        costs.append(alarms[place] + _COST_GRID * missed[place])
    # Equal curves are summed in another order, and must not count as cheaper.
    better = costs[1] < costs[0] - 1e-12
    edges = np.flatnonzero(np.diff(np.concatenate([[0], better.astype(np.int64), [0]])))
    return tuple((float(_COST_GRID[a]), float(_COST_GRID[b - 1])) for a, b in edges.reshape(-1, 2))
