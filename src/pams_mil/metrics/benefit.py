"""Was it worth deciding by the model? Expected cost and net benefit, both as functions of κ.

κ says how many false alarms a missed urgency is worth. Expected cost compares the model with the best constant call;
net benefit, of decision curve analysis, compares "act when at least this urgent" with acting always and never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import Labels
from pams_mil.metrics.operating import OperatingCurve, constant_calls
from pams_mil.metrics.probability import labels_and_probabilities
from pams_mil.metrics.proper import boundary_names, boundary_probabilities
from pams_mil.metrics.reduce import divide


def normalized_cost(curve: OperatingCurve, shares: Array, kappas: npt.ArrayLike) -> Array:
    """Expected cost of deciding with κ over that of the best constant call; below 1 the model helps.

        NEC(κ) = [O(κ) + κ U(κ)] / min_r [P(t < r) + κ P(t > r)]

    NaN where a constant call makes no mistake.

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> from pams_mil.metrics.operating import operating_curve
    >>> curve = operating_curve([0, 1, 1, 1], [[0.75, 0.25], [0.5, 0.5], [0.5, 0.5], [0.875, 0.125]], tree)
    >>> normalized_cost(curve, np.array([0.25, 0.75]), [1, 4]).tolist()  # κ = 1: 1/4 over 1/4; κ = 4: 5/4 over 1/4
    [1.0, 5.0]
    """
    kappa = check_kappas(kappas)
    place = np.searchsorted(curve.kappa, kappa, side="right") - 1
    missed, alarms = constant_calls(shares)
    # The best constant is chosen for each κ: from calling all least urgent to calling all most urgent.
    best = (alarms + kappa[:, None] * missed).min(axis=1)
    return divide(curve.false_alarms[place] + kappa * curve.missed[place], best)


@dataclass(frozen=True)
class NetBenefit:
    """Net benefit at each κ, [K], of acting on the model, always, and never (0)."""

    at_least: str
    prevalence: float
    model: Array
    always: Array


def net_benefit(
    y_true: Labels,
    probabilities: npt.ArrayLike,
    hierarchy: ClassHierarchy,
    kappas: npt.ArrayLike,
    level: int = -1,
    *,
    labels: Sequence[str] | None = None,
) -> list[NetBenefit]:
    """For every boundary of urgency, acting on cases whose probability of lying above it is at least 1/(1 + κ).

        NB = TP/n − (FP/n) / κ

    >>> tree = ClassHierarchy.flat(["benign", "malignant"])
    >>> benefit = net_benefit([0, 1], [[0.75, 0.25], [0.25, 0.75]], tree, [1, 4])[0]
    >>> benefit.model.tolist(), benefit.always.tolist()
    ([0.5, 0.375], [0.0, 0.375])
    """
    true, p = labels_and_probabilities(y_true, probabilities, hierarchy, level, labels)
    kappa = check_kappas(kappas)
    reached, at_least = boundary_probabilities(true, p, hierarchy.ranks(level))
    curves = []
    for column, name in enumerate(boundary_names(hierarchy, level)):
        act = at_least[:, column, None] >= 1.0 / (1.0 + kappa)
        event = reached[:, column, None]
        prevalence = float(event.mean())
        # p_t / (1 − p_t) with the threshold p_t = 1/(1 + κ) is 1/κ.
        model = (act & event).mean(axis=0) - (act & ~event).mean(axis=0) / kappa
        curves.append(NetBenefit(name, prevalence, model, prevalence - (1.0 - prevalence) / kappa))
    return curves


def check_kappas(kappas: npt.ArrayLike) -> Array:
    """κ as a list of finite numbers above 0."""
    kappa = np.atleast_1d(np.asarray(kappas, dtype=np.float64))
    if kappa.ndim != 1 or not np.isfinite(kappa).all() or (kappa <= 0).any():
        raise ParameterError(f"kappas must be finite numbers above 0, found {kappas!r}.")
    return kappa
