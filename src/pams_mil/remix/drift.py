"""How the remix moves the class shares, in closed form.

Under the rule "urgent_label" a remixed bag carries the more urgent of two labels, so training sees urgent classes more
often than the clinic does. With N slides, N_ρ of rank ρ, a remix with probability q, and the partner drawn uniformly
from the other ranks, class y is trained on g_y times as often as it occurs:

    h_y = Σ_{ρ < ρ(y)} N_ρ / (N − N_ρ)  +  N_{<ρ(y)} / (N − N_{ρ(y)})
    g_y = 1 − q + q h_y            when the remixed bag replaces the drawn one
    g_y = (1 + q h_y) / (1 + q)    when it is added

The first sum are less urgent slides that met one of y and took its label, the second are slides of y that met a less
urgent one and kept theirs. Σ_y g_y π_y = 1.

Rules under which the drawn slide keeps its label have g = 1 when the remixed bag replaces the drawn one. When it is
added, slides without a partner are trained on less often: h_y is then 1 for classes with a partner and 0 for others,
and g_y = (1 + q h_y) / Σ_k π_k (1 + q h_k). Under "keep_label" the least urgent class has none unless its own counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array
from pams_mil.errors import ParameterError, listing

if TYPE_CHECKING:
    from pams_mil.remix.pairing import Mode
    from pams_mil.remix.strategy import PartnerRule

KEEPS_LABEL = ("same_class", "any", "keep_label")


def prior_drift(
    counts: npt.ArrayLike,
    ranks: npt.ArrayLike,
    *,
    rule: PartnerRule = "keep_label",
    probability: float = 0.5,
    mode: Mode = "replace",
    own_class: bool = True,
) -> Array:
    """The drift g, how many times as often each class is trained on as it occurs, [c].

    Args:
        counts: Training slides of each class, [c].
        ranks: Urgency of each class, [c]; tied classes share a rank and never meet.
        rule: Which slides may meet, as in `Pairing`.
        probability: How often a drawn slide is remixed.
        mode: "replace" or "add".
        own_class: Under "keep_label", whether slides of one class may meet (two slides are taken for two patients).

    >>> prior_drift([59, 101, 165, 30, 24, 21], range(6)).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    >>> prior_drift([59, 101, 165, 30, 24, 21], range(6), rule="urgent_label").round(2).tolist()
    [0.5, 0.69, 1.1, 1.55, 1.62, 1.68]
    """
    slides, rank = np.asarray(counts, dtype=np.float64), np.asarray(ranks)
    if slides.ndim != 1 or slides.shape != rank.shape or not slides.sum() > 0 or (slides < 0).any():
        raise ParameterError(
            f"Expected the training slides and the rank of every class, at least one slide in all, found {counts!r} "
            f"and {ranks!r}."
        )
    if mode not in ("replace", "add") or not 0 <= probability <= 1:
        raise ParameterError(
            f"Expected mode 'replace' or 'add' and a probability from 0 to 1, found {mode!r} and {probability!r}."
        )
    if rule == "keep_label" and mode == "add":
        less_urgent = np.array([slides[rank < own].sum() for own in rank])
        # Each slide is trained on once, and once more with probability q where it has a partner.
        steps = 1 + probability * ((less_urgent > 0) | (own_class & (slides > 1)))
        added: Array = steps * slides.sum() / (steps * slides).sum()
        return added
    if rule in KEEPS_LABEL:
        return np.ones(len(slides))
    if rule != "urgent_label":
        raise ParameterError(
            f"The drift of the rule {rule!r} is not known; known are {listing((*KEEPS_LABEL, 'urgent_label'))}."
        )
    share = _meetings(slides, rank)
    if share is None:
        return np.ones(len(slides))
    drift: Array = (
        1 - probability + probability * share if mode == "replace" else (1 + probability * share) / (1 + probability)
    )
    return drift


def coarser_drift(drift: npt.ArrayLike, counts: npt.ArrayLike, groups: npt.ArrayLike) -> Array:
    """The drift of the classes of a coarser level, Σ N_y g_y / Σ N_y over each group, or the mean without slides.

    >>> coarser_drift([0.5, 1.0, 1.5], [2, 1, 1], [0, 0, 1]).round(4).tolist()
    [0.6667, 1.5]
    """
    g, slides, group = (np.asarray(values, dtype=np.float64) for values in (drift, counts, groups))
    drifts = []
    for number in range(int(group.max()) + 1):
        inside = group == number
        weight = slides[inside] if slides[inside].any() else np.ones(inside.sum())
        drifts.append(float((g[inside] * weight).sum() / weight.sum()))
    return np.asarray(drifts)


def _meetings(slides: Array, rank: npt.NDArray[np.int64]) -> Array | None:
    """h, how often each class gives the label when every slide is remixed; None when no two ranks can meet."""
    total = slides.sum()
    kinds = np.unique(rank)
    of_rank = np.array([slides[rank == kind].sum() for kind in kinds])
    if (of_rank == total).any():
        return None
    # Partners of a slide of each rank, uniformly one of all slides of other ranks.
    others = total - of_rank
    below = np.concatenate([[0.0], np.cumsum(of_rank)[:-1]])
    # A slide of rank rho meets a given slide of y once in N - N_rho; there are N_rho of them.
    won = np.concatenate([[0.0], np.cumsum(of_rank / others)[:-1]])
    per_rank = won + below / others
    share: Array = per_rank[np.searchsorted(kinds, rank)]
    return share
