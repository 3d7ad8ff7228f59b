"""What training did to the probabilities, undone in closed form.

MSCE. The softmax p that minimizes Σ_t η_t ℓ_t, ℓ_t = −w_t ln p_t with w_t = Σ_r p_r M[t, r], is not the posterior η: it
leans toward urgency. At the minimum the gradient is zero,

    η_k w_k = p_k Σ_t η_t [w_t − ln p_t (M[t, k] − w_t)]      for every class k.

Written with u_k = η_k w_k / p_k this is a linear system whose entries are all moderate, also where p is tiny:

    u = 1 + H u,   H[k, t] = −p_t ln p_t (M[t, k] / w_t − 1),        η_k ∝ (p_k / w_k) u_k

With a weight that is taken as a constant (`detach_weight`) H vanishes and η_k ∝ p_k / w_k. Where u is not positive, p
is not a minimum for any posterior, and the latter form is used instead.

Remix. Training sees class y g_y times as often as it occurs (`pams_mil.remix.drift`), so the posterior is η_y / g_y, as
far as remixed bags look like natural ones: a strength τ from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from pams_mil.arrays import Array, Bools
from pams_mil.errors import ParameterError
from pams_mil.metrics.probability import check_probabilities
from pams_mil.severity import check_cost

SMALLEST = float(np.finfo(np.float32).tiny)
"""Probabilities below this, what single precision can hold, are taken as this before a logarithm."""
_SINGULAR = 1e-12


@dataclass(frozen=True)
class Posterior:
    """Restored probabilities [n, c], and the rows where only the simpler form was possible."""

    probabilities: Array
    fell_back: Bools


def msce_posterior(probabilities: npt.ArrayLike, severity: npt.ArrayLike, *, detach_weight: bool = False) -> Posterior:
    """η of which MSCE's softmax p is the minimizer; [n, c], [c, c] -> [n, c].

    Args:
        probabilities: Rows that sum to 1.
        severity: M, `[true, predicted]`, all above 0; see `pams_mil.severity.loss_weight`.
        detach_weight: Whether training took w as a constant.

    >>> from pams_mil.hierarchy import ClassHierarchy
    >>> from pams_mil.severity import loss_weight
    >>> M = loss_weight(ClassHierarchy.flat("abcd"))
    >>> msce_posterior([[0.30899641, 0.10991687, 0.32150731, 0.2595794]], M).probabilities.round(6).tolist()
    [[0.61, 0.12, 0.18, 0.09]]
    """
    p = _normalized(probabilities)
    M = check_cost(severity, p.shape[1], zero_diagonal=False)
    if (M <= 0).any():
        raise ParameterError("severity must hold numbers above 0: a weight of 0 forgets the class that it belongs to.")
    weight = p @ M.T
    lean, positive = np.ones_like(p), np.ones(len(p), dtype=bool)
    if not detach_weight:
        entropy = -p * np.log(np.maximum(p, SMALLEST))
        # [n, k, t]: M.T, because M is [true, predicted] and k is what is called.
        H = entropy[:, None, :] * (M.T / weight[:, None, :] - 1.0)
        system = np.eye(p.shape[1]) - H
        regular = np.abs(np.linalg.det(system)) > _SINGULAR
        # One singular matrix would make numpy refuse all of them; these rows fall back.
        system[~regular] = np.eye(p.shape[1])
        # (I − H) u = 1, for all rows at once
        solution = np.linalg.solve(system, np.ones((*p.shape, 1)))[:, :, 0]
        positive = regular & (solution > 0).all(axis=1)
        lean[positive] = solution[positive]
    eta = p / weight * lean
    return Posterior(eta / eta.sum(axis=1, keepdims=True), ~positive)


@dataclass(frozen=True, eq=False)
class TrainingBias:
    """What is known about how a run's training moved its probabilities at one level.

    Attributes:
        severity: M of MSCE, or None for losses whose softmax is the posterior.
        detach_weight: Whether MSCE took its weight as a constant.
        drift: g of the remix, [c], or None.
    """

    severity: Array | None = None
    detach_weight: bool = False
    drift: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.drift is not None and not ((np.asarray(self.drift) > 0) & np.isfinite(self.drift)).all():
            raise ParameterError(
                f"drift must hold finite numbers above 0, found {list(self.drift)!r}: a class that was never trained "
                "on cannot be restored."
            )

    def corrections(self, probabilities: npt.ArrayLike) -> dict[str, Array]:
        """What to add to ln p, [n, c] each: "msce" is ln η(p) − ln p, "remix" is −ln g."""
        p = _normalized(probabilities)
        terms = {}
        if self.severity is not None:
            restored = msce_posterior(p, self.severity, detach_weight=self.detach_weight).probabilities
            terms["msce"] = logarithm(restored) - logarithm(p)
        if self.drift is not None:
            terms["remix"] = np.broadcast_to(-np.log(self.drift), p.shape)
        return terms

    def remove(self, probabilities: npt.ArrayLike, *, msce: float = 1.0, remix: float = 1.0) -> Array:
        """The probabilities with each correction applied at its strength; [n, c] -> [n, c].

        >>> TrainingBias(drift=np.array([0.5, 1.5])).remove([[0.25, 0.75]]).round(3).tolist()
        [[0.5, 0.5]]
        """
        p = _normalized(probabilities)
        strength = {"msce": msce, "remix": remix}
        parts = [strength[name] * correction for name, correction in self.corrections(p).items()]
        removed: Array = softmax(sum(parts, logarithm(p)), axis=1)
        return removed

    def describe(self) -> str:
        """What it undoes, in words."""
        parts = []
        if self.severity is not None:
            parts.append("MSCE with a constant weight" if self.detach_weight else "MSCE")
        if self.drift is not None:
            parts.append("the class drift of the remix")
        return " and ".join(parts) or "nothing"

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrainingBias:
        """What a file has of it."""
        severity, drift = content["severity"], content["drift"]
        return cls(
            severity=None if severity is None else np.asarray(severity, dtype=np.float64),
            detach_weight=bool(content["detach_weight"]),
            drift=None if drift is None else np.asarray(drift, dtype=np.float64),
        )


def logarithm(probabilities: Array) -> Array:
    """The logarithm, with 0 taken as the smallest number of single precision."""
    logs: Array = np.log(np.maximum(probabilities, SMALLEST))
    return logs


def _normalized(values: npt.ArrayLike) -> Array:
    """Probabilities whose rows sum to 1 exactly, as rounded ones in files do not."""
    p = check_probabilities(values)
    rows: Array = p / p.sum(axis=1, keepdims=True)
    return rows
