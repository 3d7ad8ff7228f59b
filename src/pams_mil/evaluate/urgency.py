"""How urgent a case looks, from its class probabilities: the numbers that a worklist is ordered by.

With p the probabilities of the finest classes and ρ their ranks (0 = least urgent):

    expected severity   s = Σ_c p_c ρ_c
    at least r          P(ρ ≥ r) = Σ_{c: ρ_c ≥ r} p_c
    uncertainty         u = −Σ_c p_c log p_c / log C,  0 for a sure case, 1 for a uniform one
    agreement           share of the runs whose own call is the call that is shown
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Ints
from pams_mil.errors import ParameterError


def expected_severity(probabilities: npt.ArrayLike, ranks: npt.ArrayLike) -> Array:
    """Σ_c p_c ρ_c in steps of rank; [n, c], [c] -> [n].

    >>> expected_severity([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]], [0, 1, 2]).tolist()
    [0.7, 2.0]
    """
    p, rho = _checked(probabilities, ranks)
    severity: Array = p @ rho.astype(np.float64)
    return severity


def at_least(probabilities: npt.ArrayLike, ranks: npt.ArrayLike) -> Array:
    """P(ρ ≥ r) for every rank r above the lowest, in order; [n, c], [c] -> [n, number of ranks − 1].

    >>> at_least([[0.5, 0.25, 0.125, 0.125]], [0, 1, 1, 2]).tolist()  # two classes are equally urgent
    [[0.5, 0.125]]
    """
    p, rho = _checked(probabilities, ranks)
    bounds = np.unique(rho)[1:]
    reached: Array = p @ (rho[:, None] >= bounds[None, :]).astype(np.float64)
    return np.clip(reached, 0.0, 1.0)


def uncertainty(probabilities: npt.ArrayLike) -> Array:
    """Entropy as a share of its largest value log C; [n, c] -> [n].

    >>> uncertainty([[1.0, 0.0], [0.5, 0.5]]).tolist()
    [0.0, 1.0]
    """
    p = np.asarray(probabilities, dtype=np.float64)
    _check_two_classes(p)
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    share: Array = -(p * logs).sum(1) / np.log(p.shape[1])
    return np.clip(share, 0.0, 1.0) + 0.0  # no negative zero


def agreement(calls: npt.ArrayLike, shown: npt.ArrayLike) -> Array:
    """The share of runs that make the call that is shown; [runs, n], [n] -> [n].

    >>> agreement([[0, 2], [1, 2], [1, 2]], [1, 2]).tolist()
    [0.6666666666666666, 1.0]
    """
    each, one = np.asarray(calls), np.asarray(shown)
    if each.ndim != 2 or one.shape != each.shape[1:] or not len(each):
        raise ParameterError(f"Expected calls [runs, n] and [n], found {list(each.shape)} and {list(one.shape)}.")
    share: Array = (each == one).mean(axis=0)
    return share


def _checked(probabilities: npt.ArrayLike, ranks: npt.ArrayLike) -> tuple[Array, Ints]:
    p, rho = np.asarray(probabilities, dtype=np.float64), np.asarray(ranks, dtype=np.int64)
    _check_two_classes(p)
    if rho.shape != (p.shape[1],):
        raise ParameterError(f"Expected one rank for each of {p.shape[1]} classes, found shape {list(rho.shape)}.")
    return p, rho


def _check_two_classes(p: Array) -> None:
    if p.ndim != 2 or p.shape[1] < 2 or not np.isfinite(p).all():
        raise ParameterError(f"Expected finite probabilities [n, c] of two classes or more, found {list(p.shape)}.")
