"""Several findings per slide: what is called at a cost ratio κ, and how grave it is to miss some of them.

For finding k of slide i with probability p_ik and weight w_k (1 unless the class file gives one):

    called at κ    S_i(κ) = {k : p_ik ≥ 1 / (1 + κ w_k)} = {k : κ ≥ r_ik},   r_ik = (1 − p_ik) / (p_ik w_k)
    weighted share of missed findings     ℓ₁ = Σ_{k ∈ Y∖S} w_k / Σ_{k ∈ Y} w_k,   0 where Y is empty
    the most urgent finding is missed     ℓ₂ = 1[max rank of S < max rank of Y]

Called sets only grow with κ, so both losses only fall: every guarantee on missed urgency applies to them. AsCC of two
sets pads the smaller one with "nothing", matches them at the least total W, and averages 1 / W over the pairs; for
single findings it is AsCC.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from pams_mil.arrays import Array, Bools
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import Metric
from pams_mil.metrics.reduce import divide
from pams_mil.metrics.resampling import Sums
from pams_mil.metrics.slides import BINS, Ranking, Slides, Statistic
from pams_mil.severity import PENALTY, metric_weight, with_nothing


def finding_reach(probabilities: npt.ArrayLike, hierarchy: ClassHierarchy) -> Array:
    """r_ik, the smallest κ at which each finding is called for its own probability, [n, K]; inf where only κ = ∞ does.

    Probabilities [n, K] are each from 0 to 1; a row need not sum to 1.

    >>> tree = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N", weights={"DCIS": 3})
    >>> finding_reach([[0.5, 0.25]], tree).tolist()
    [[1.0, 1.0]]
    """
    p = check_finding_probabilities(probabilities, len(hierarchy.finding_classes))
    with np.errstate(divide="ignore"):
        reach: Array = (1.0 - p) / (p * hierarchy.finding_weights)
    return reach


def sets_with_call(
    probabilities: npt.ArrayLike, calls: npt.ArrayLike, kappa: float, hierarchy: ClassHierarchy
) -> Bools:
    """The findings that are called at κ beside a call of the most urgent one, [n, K]: those that are not beyond it.

    One answer decides, as everywhere: the head of the most urgent finding says how urgent a slide is, and no other
    finding of the set outranks it. Findings that are in the set for their own probability stay in it as κ grows.
    """
    top = np.asarray(calls, dtype=np.int64)
    ranks = hierarchy.ranks()
    called: Bools = (finding_reach(probabilities, hierarchy) <= kappa) & (
        ranks[hierarchy.finding_classes] <= ranks[top][:, None]
    )
    place = np.full(hierarchy.num_classes(), -1)
    place[hierarchy.finding_classes] = np.arange(called.shape[1])
    rows = np.flatnonzero(place[top] >= 0)
    called[rows, place[top[rows]]] = True
    return called


def missed_share(y_true: npt.ArrayLike, y_pred: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Array:
    """ℓ₁, the weighted share of a slide's findings that are not called, [n]; 1 minus the urgency-weighted recall."""
    true = np.asarray(y_true, dtype=bool)
    called = check_sets(y_pred, true.shape)
    w = np.ones(true.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
    total, missed = (true * w).sum(axis=1), ((true & ~called) * w).sum(axis=1)
    share: Array = np.divide(missed, total, out=np.zeros(len(true)), where=total > 0)
    return share


def set_ascc(
    y_true: npt.ArrayLike, y_pred: npt.ArrayLike, hierarchy: ClassHierarchy, *, penalty: float = PENALTY
) -> Array:
    """AsCC of every slide's called set against its true one, [n].

    >>> tree = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N")
    >>> set_ascc([[0, 1], [1, 1]], [[0, 1], [1, 0]], tree).round(3).tolist()  # all found; DCIS missed: W = 5
    [1.0, 0.6]
    """
    true = np.asarray(y_true, dtype=bool)
    called = check_sets(y_pred, true.shape)
    weight = finding_weight(hierarchy, penalty=penalty)
    nothing = len(weight) - 1
    scores = np.ones(len(true))
    for row, (present, predicted) in enumerate(zip(true, called, strict=True)):
        if (present == predicted).all():
            continue
        left, right = np.flatnonzero(present), np.flatnonzero(predicted)
        size = max(len(left), len(right))
        pairs = weight[np.ix_(_padded(left, size, nothing), _padded(right, size, nothing))]
        scores[row] = (1.0 / pairs[linear_sum_assignment(pairs)]).mean()
    return scores


def finding_weight(hierarchy: ClassHierarchy, *, penalty: float = PENALTY) -> Array:
    """W between findings, `[true, predicted]`, [K + 1, K + 1]: the last row and column are "nothing"."""
    tree = with_nothing(hierarchy)
    nothing = tree.classes.index(hierarchy.nothing) if hierarchy.nothing else 0
    order = [*(index for index in range(len(tree)) if index != nothing), nothing]
    ordered: Array = metric_weight(tree, penalty=penalty)[np.ix_(order, order)]
    return ordered


def check_finding_probabilities(probabilities: npt.ArrayLike, findings: int) -> Array:
    """Probabilities [n, K] of findings, or an error that says what is wrong with them."""
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.shape[1] != findings:
        raise ParameterError(f"Expected probabilities [n, {findings}], one per finding, found shape {p.shape}.")
    bad = ~((p >= 0) & (p <= 1))
    if bad.any():
        row, column = (int(place[0]) for place in np.nonzero(bad))
        raise ParameterError(
            f"Probabilities of findings must be from 0 to 1, found {p[row, column]!r} in row {row}, finding {column}."
        )
    return p


def check_sets(sets: npt.ArrayLike, shape: tuple[int, ...]) -> Bools:
    """Sets of findings as [n, K] of 0 and 1, or an error."""
    present = np.asarray(sets)
    if present.shape != shape or not np.isin(present, (0, 1)).all():
        raise ParameterError(
            f"Expected sets as 0 and 1 of shape {shape}, found {present.dtype} of shape {present.shape}."
        )
    return present.astype(bool)


def _padded(members: npt.NDArray[np.intp], size: int, nothing: int) -> npt.NDArray[np.intp]:
    return np.concatenate([members, np.full(size - len(members), nothing, dtype=np.intp)])


class FindingSums(Statistic):
    """Of every finding at κ the four cells true x called, and the sums behind scores of whole sets, [B, 4 K + 4]."""

    def __init__(self, slides: Slides, bins: int | None = None, *, kappa: float = 1.0) -> None:
        true, p, hierarchy = slides.finding_targets, slides.finding_probabilities, slides.hierarchy
        if true is None or p is None:
            raise ParameterError("These slides have no true sets and probabilities of findings.")
        calls = slides.predicted if slides.probabilities is None else slides.path.calls(kappa)
        called, (n, count) = sets_with_call(p, calls, kappa, hierarchy), true.shape
        rows, some = np.arange(n), true.any(axis=1)
        recall = (1.0 - missed_share(true, called, hierarchy.finding_weights)) * some
        cell = 4 * np.arange(count) + 2 * true + called
        self.sums = Sums(
            np.concatenate([np.repeat(rows, count), np.tile(rows, 4)]),
            np.concatenate([cell.ravel(), 4 * count + np.repeat(np.arange(4), n)]),
            4 * count + 4,
            np.concatenate([np.ones(cell.size), recall, some, set_ascc(true, called, hierarchy), np.ones(n)]),
        )


def finding_metrics(hierarchy: ClassHierarchy, kappa: float = 1.0) -> dict[str, Metric]:
    """Sensitivity, specificity and AUC of every finding at κ, e.g. `sensitivity_DCIS`, and the scores of whole sets."""
    sums, size = partial(FindingSums, kappa=kappa), 4 * len(hierarchy.finding_classes)

    def share(key: str, label: str, meaning: str, top: int, bottom: Sequence[int]) -> Metric:
        return Metric(key, label, True, meaning, sums, lambda v: divide(v[:, top], v[:, bottom].sum(axis=1)))

    metrics = [
        share("weighted_recall", "Recall over findings", "weighted share of a slide's findings", size, [size + 1]),
        share("set_ascc", "AsCC of sets", "AsCC of the called set", size + 2, [size + 3]),
    ]
    for place, index in enumerate(hierarchy.finding_classes.tolist()):
        name, cell = hierarchy.classes[index], 4 * place
        metrics += [
            share(f"sensitivity_{name}", f"Sensitivity, {name}", "called where it is", cell + 3, [cell + 2, cell + 3]),
            share(f"specificity_{name}", f"Specificity, {name}", "not called where it is not", cell, [cell, cell + 1]),
            Metric(
                f"auc_{name}", f"AUC, {name}", True, "a slide with it has the higher probability",
                partial(_ranking, finding=place), lambda v: v[:, 1], within_network=True,
            ),
        ]  # fmt: skip
    return {metric.key: metric for metric in metrics}


def _ranking(slides: Slides, bins: int | None = BINS, *, finding: int) -> Ranking:
    """One finding as two classes, absent and present."""
    if slides.finding_targets is None or slides.finding_probabilities is None:
        raise ParameterError("These slides have no true sets and probabilities of findings.")
    present, p = slides.finding_targets[:, finding].astype(np.int64), slides.finding_probabilities[:, finding]
    return Ranking(Slides(_PRESENCE, present, present, np.stack([1.0 - p, p], axis=1)), bins)


_PRESENCE = ClassHierarchy.flat(["absent", "present"])
