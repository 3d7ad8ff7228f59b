"""Implicit severity: the cost ratio κ that readers' verdicts act by, fitted by maximum likelihood.

A reader who weighs a miss as κ false alarms and sees what the model's probabilities say prefers the call r with the
smallest expected cost. With choices that are noisy, a verdict is a conditional logit over the ranks of urgency,

    P(reader says rank r) ∝ exp(−β (κ Ū_r + F̄_r) + η 1[r was shown]),    Ū_r = P(rank > r),   F̄_r = P(rank < r)

β is how sharply readers choose and η how strongly the call on the screen pulls them (0 for verdicts that were given
blind). In a = βκ, b = β and η the log-likelihood is concave; κ = a / b. Between two ranks this is

    Σ_i log σ(β s_i (κ Ū_i − F̄_i)),    s_i = +1 where the more urgent of the two was chosen, else −1

with Ū_i the misses that the more urgent call avoids and F̄_i the false alarms that it adds. The interval is Wald's for
log κ with the sandwich variance of patients as clusters, so several readers of one patient count as one patient. What
the fit expects with 95 % or more is not counted as informative: with a handful of verdicts in doubt, that variance is
far too small.

Given that a verdict is one of two neighboring ranks, the choice between them is the same logit with these two
alternatives, whatever the others are: that gives a κ per boundary. η is then the one of all verdicts, since few
boundaries are crossed in both directions often enough to tell the pull of the call from the cost; its uncertainty is
part of the interval.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from pams_mil import atomic
from pams_mil.arrays import Array, Bools, Ints
from pams_mil.data.tables import read_table
from pams_mil.digests import sealed, unsealed
from pams_mil.errors import ParameterError, PredictionsError, from_fields, listing, stored_format
from pams_mil.evaluate.decisions.softmax_fit import fit_softmax
from pams_mil.evaluate.predictions.prediction_layouts import Source, read_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.confusion import Labels, class_indices
from pams_mil.metrics.kappa_path import DecisionPath, decision_path
from pams_mil.metrics.probability import check_probabilities

LEVEL = 0.95
"""Confidence of the intervals."""
LEAST_INFORMATIVE = 30
"""Fewest verdicts on slides whose call depends on κ; below this an interval would be wider than any use."""
PLAUSIBLE = (0.1, 100.0)
"""A slide is informative where its call changes for some κ in this range: elsewhere every reader says the same."""
SETTLED = 0.95
"""A verdict that the fit expects with this probability says next to nothing about κ."""
_SINGULAR = 1e8
FORMAT, VERSION = "pams-reveal", 1


@dataclass(frozen=True)
class CostRatio:
    """A fitted κ: estimate and interval, how sharply readers choose (β), the pull of the shown call (η), and counts."""

    kappa: float
    low: float
    high: float
    sharpness: float
    pull: float
    verdicts: int
    informative: int
    patients: int

    def __str__(self) -> str:
        return f"{self.kappa:.2g} ({self.low:.2g} to {self.high:.2g})"


@dataclass(frozen=True)
class Reveal:
    """What verdicts reveal: κ of all of them, κ at each boundary with enough of them, and why the others have none.

    Attributes:
        overall: The cost ratio of all verdicts.
        boundaries: By the name of the least urgent class at or above the boundary.
        refused: Boundaries without a κ, with the reason.
        shown_kappas: The κ that the calls on the screen were made with, smallest first.
        overrides: How many verdicts differ in rank from the model's call.
        more_urgent, less_urgent: Slides whose call would change that way if the model were set to κ.
        classes: Digest of the class hierarchy.
    """

    overall: CostRatio
    boundaries: dict[str, CostRatio]
    refused: dict[str, str]
    shown_kappas: tuple[float, ...]
    overrides: int
    more_urgent: int
    less_urgent: int
    classes: str

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        fit, low, high = self.overall, self.shown_kappas[0], self.shown_kappas[-1]
        shown = f"the model is set to {low:g}" if low == high else f"the calls were made at κ = {low:g} to {high:g}"
        inside = [fit.low <= kappa <= fit.high for kappa in self.shown_kappas]
        within = "within that interval" if all(inside) else "partly within it" if any(inside) else "outside of it"
        return (
            f"The readers act as if a miss cost {fit.kappa:.2g} false alarms ({100 * LEVEL:g} % interval "
            f"{fit.low:.2g} to {fit.high:.2g}); {shown}, which is {within}."
        )

    @property
    def consequence(self) -> str:
        """What would change if the model were set to κ."""
        return (
            f"Set to that κ, the model would call {self.more_urgent} of the read slides more urgent and "
            f"{self.less_urgent} less urgent than now. {self.overrides} of {self.overall.verdicts} verdicts overturned "
            "a call."
        )

    @property
    def sentences(self) -> list[str]:
        """The finding, boundary by boundary where there are enough verdicts, and what it would change."""
        parts = [f"{name} {fit}" for name, fit in self.boundaries.items()]
        return [self.sentence, *([f"At or above {', '.join(parts)}."] if parts else []), self.consequence]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return sealed({**asdict(self), "sentence": self.sentence}, FORMAT, VERSION)

    def write(self, path: Path | str) -> None:
        """Write as JSON."""
        atomic.write_json(Path(path), self.to_json())

    @classmethod
    def read(cls, path: Path | str) -> Reveal:
        """Read what `write` wrote."""
        advice = "Make one with 'pams reveal reviews.csv --out FILE'."
        try:
            stored = unsealed(json.loads(Path(path).read_text(encoding="utf-8")), FORMAT, VERSION)
        except (OSError, ValueError) as error:
            raise PredictionsError(f"{path} is not a file of 'pams reveal', {error}. {advice}") from error
        with stored_format(path, PredictionsError, advice):
            del stored["sentence"]
            return from_fields(cls, stored | {
                "overall": from_fields(CostRatio, stored["overall"]),
                "boundaries": {name: from_fields(CostRatio, fit) for name, fit in stored["boundaries"].items()},
                "shown_kappas": tuple(stored["shown_kappas"]),
            })  # fmt: skip


def reveal(
    probabilities: npt.ArrayLike,
    verdicts: Labels,
    hierarchy: ClassHierarchy,
    *,
    patients: Sequence[str] | None = None,
    blind: npt.ArrayLike | None = None,
    kappa: npt.ArrayLike = 1.0,
    calls: npt.ArrayLike | None = None,
) -> Reveal:
    """The κ that readers' verdicts act by, with an interval over patients.

    Args:
        probabilities: [n, C] of the model, one row per verdict.
        verdicts: [n] classes that the readers chose, by name or index.
        hierarchy: Order and ties of the classes.
        patients: [n] patient of each verdict; None: each verdict is of another patient.
        blind: [n] True where the reader did not see the model's call.
        kappa: What the calls on the screen were made with, one number or [n]; 1: the most probable class.
        calls: [n] class indices that were on the screen, -1 where unknown; None: all as `kappa` calls them. Others than
            those are refused.
    """
    p = check_probabilities(probabilities, hierarchy.num_classes())
    ranks = hierarchy.ranks()
    chosen = ranks[class_indices(verdicts, hierarchy, what="verdicts")]
    if len(chosen) != len(p):
        raise PredictionsError(f"Expected one verdict per row of probabilities, found {len(chosen)} and {len(p)}.")
    clusters = np.unique(list(patients), return_inverse=True)[1] if patients is not None else np.arange(len(p))
    path = decision_path(p, hierarchy)
    at = np.broadcast_to(np.asarray(kappa, dtype=np.float64), (len(p),))
    shown = _shown(p, path, at, ranks, calls)
    per_rank = np.stack([p[:, ranks == rank].sum(axis=1) for rank in range(int(ranks.max()) + 1)], axis=1)
    overrides = int((chosen != shown).sum())
    if not overrides:
        raise PredictionsError(
            f"All {len(p)} verdicts agree with the model's calls, so they reveal no cost ratio: readers who "
            "always agree may find the calls right or may not look. Collect verdicts with 'pams view --blind'."
        )
    features = _choices(per_rank, np.where(False if blind is None else np.asarray(blind, bool), -1, shown))
    low, high = PLAUSIBLE
    informative: Bools = np.any((path.reach > low) & (path.reach < high), axis=1)
    overall, pull = _cost_ratio(features, chosen, clusters, informative, "all boundaries")
    boundaries, refused = {}, {}
    for k in range(1, per_rank.shape[1]):
        name = hierarchy.names()[int(np.argmax(ranks == k))]
        rows = (chosen == k) | (chosen == k - 1)
        try:
            boundaries[name], _ = _cost_ratio(
                features[rows, k - 1 : k + 1], chosen[rows] - (k - 1), clusters[rows], informative[rows],
                f"the boundary at {name}", within=pull,
            )  # fmt: skip
        except PredictionsError as error:
            refused[name] = str(error)
    moved = ranks[path.calls(overall.kappa)] - shown
    return Reveal(
        overall, boundaries, refused, tuple(np.unique(at).tolist()), overrides,
        more_urgent=int((moved > 0).sum()), less_urgent=int((moved < 0).sum()), classes=hierarchy.digest,
    )  # fmt: skip


def _shown(p: Array, path: DecisionPath, kappa: Array, ranks: Ints, calls: npt.ArrayLike | None) -> Ints:
    """The ranks that were on the screen, [n]."""
    if not (kappa >= 0).all():
        raise PredictionsError(f"The κ of calls must be numbers of at least 0, found {kappa.min():g}.")
    expected: Ints = ranks[(path.reach <= kappa[:, None]).sum(axis=1) - 1]
    if calls is None:
        return expected
    index = np.asarray(calls, dtype=np.int64)
    stated: Ints = np.where(index < 0, expected, ranks[index])
    # Without a κ the call is the most probable class, which of tied classes may not be the most probable rank.
    other = (stated != expected) & ((kappa != 1) | (stated != ranks[p.argmax(axis=1)]))
    if other.any():
        row = int(other.argmax())
        raise PredictionsError(
            f"{int(other.sum())} of {len(other)} calls on the screen are not those of the predictions at κ = "
            f"{kappa[row]:g}. Give the predictions that the readers saw, and with --kappa what made their calls."
        )
    return stated


def _choices(per_rank: Array, shown: Ints) -> Array:
    """The alternatives of every verdict as features [n, R, 3]: −Ū_r, −F̄_r, and whether r was shown."""
    below = np.cumsum(per_rank, axis=1) - per_rank
    above = per_rank.sum(1, keepdims=True) - below - per_rank
    return np.stack([-above, -below, np.arange(per_rank.shape[1]) == shown[:, None]], axis=2).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Pull:
    """η, and what every patient moves it by, [G]."""

    value: float
    moved: Array


def _cost_ratio(
    features: Array, chosen: Ints, patient: Ints, informative: Bools, where: str, *, within: _Pull | None = None
) -> tuple[CostRatio, _Pull]:
    """κ of these choices, and η; `within` is that of all boundaries, for a κ with its pull and uncertainty."""
    _refuse_few(int(informative.sum()), where)
    n, alternatives, _ = features.shape
    # all blind: nothing was shown, so nothing pulls
    q = 3 if within is None and features[:, :, 2].any() else 2
    offset = 0.0 if within is None else within.value * features[:, :, 2]
    try:
        fit = fit_softmax(features[:, :, :q], np.eye(alternatives)[chosen], np.zeros(q), offset)
        singular = np.linalg.cond(fit.curvature) > _SINGULAR
    except ParameterError:
        singular = True
    if singular:  # the likelihood rises for ever, or does not depend on a coefficient
        raise PredictionsError(
            f"Verdicts at {where} fit a cost ratio without any noise, or do not vary, so that no single number is the "
            "most likely. More verdicts on doubtful slides are needed."
        )
    doubtful = int((informative & (fit.probabilities.max(axis=1) < SETTLED)).sum())
    _refuse_few(doubtful, where)
    a, b = fit.theta[:2]
    if a <= 0 or b <= 0:
        raise PredictionsError(
            f"Verdicts at {where} do not follow the model's probabilities (weight of misses {a:.3g}, of false alarms "
            f"{b:.3g}; both should be positive), so no cost ratio explains them."
        )
    expected = np.einsum("nr,nrq->nq", fit.probabilities, features)
    scores = np.zeros((int(patient.max()) + 1 if within is None else len(within.moved), 3))
    np.add.at(scores, patient, features[np.arange(n), chosen] - expected)
    inverse = np.linalg.inv(fit.curvature) / n  # the curvature is that of the mean
    along = inverse[:, :2] @ [1 / a, -1 / b]
    moved = scores[:, :q] @ along  # what every patient moves log κ by
    if within is None:
        pull = _Pull(float(fit.theta[2]), scores @ inverse[2]) if q == 3 else _Pull(0.0, np.zeros(len(scores)))
    else:  # η was estimated: what every patient moves it by moves κ too
        pull = within
        apart = features - expected[:, None]
        shared = np.einsum("nr,nrq,nr->q", fit.probabilities, apart[:, :, :2], apart[:, :, 2])
        moved = moved - float(shared @ along) * pull.moved
    groups = len(np.unique(patient))
    variance = float(moved @ moved) * groups / max(1, groups - 1)
    reach = special.stdtrit(groups - 1, (1 + LEVEL) / 2) * math.sqrt(variance)
    log_kappa = math.log(a) - math.log(b)
    low, kappa, high = (math.exp(log_kappa + side * reach) for side in (-1, 0, 1))
    return CostRatio(kappa, low, high, float(b), pull.value, n, doubtful, groups), pull


def _refuse_few(count: int, where: str) -> None:
    if count < LEAST_INFORMATIVE:
        raise PredictionsError(
            f"{count} verdicts are informative about {where}, and it takes {LEAST_INFORMATIVE}: verdicts on slides "
            "whose call depends on how a miss is weighed, and that readers do not all call alike. "
            f"{LEAST_INFORMATIVE - count} more are needed."
        )


def reveal_reviews(
    reviews: Sequence[Path | str], predictions: Path | str, hierarchy: ClassHierarchy, *, kappa: float = 1.0
) -> Reveal:
    """The κ that the verdicts of `reviews.csv` files act by, given the predictions that were read.

    Deferred cases have no class and are left out. A verdict counts as blind where its column `blind` says yes; where
    its column `kappa` is empty, the call on the screen was made with `kappa`.
    """
    model = read_predictions(predictions, hierarchy, Source(labels_needed=False))
    if model.probabilities is None:
        raise PredictionsError(f"{predictions} has no probabilities, so what a call would cost is not known.")
    if model.num_seeds > 1:
        raise PredictionsError(f"{predictions} has {model.num_seeds} seeds; give the predictions that the readers saw.")
    row_of = {slide: row for row, slide in enumerate(model.slide_ids)}
    read: list[tuple[int, int, bool, float, int]] = []
    for path in reviews:
        table = read_table(path)
        missing = [name for name in ("slide_id", "reader_class") if name not in table]
        if missing:
            raise PredictionsError(
                f"{path} has no column {listing(missing)}, found {listing(table)}; expected a viewer's reviews.csv."
            )
        unknown = [slide for slide in table["slide_id"] if slide not in row_of]
        if unknown:
            raise PredictionsError(
                f"{path}: verdicts on {len(unknown)} slides that {predictions} does not have, such as {unknown[0]!r}. "
                "Give the predictions that the readers saw."
            )
        for number, (slide, label) in enumerate(zip(table["slide_id"], table["reader_class"], strict=True)):
            if label:
                call, was_blind, stated = (table[name][number].strip() if name in table else "" for name in _SCREEN)
                at = _stated_kappa(stated, kappa, f"{path}, slide {slide!r}")
                index = hierarchy.index
                read.append((row_of[slide], index(label), was_blind.lower() == "yes", at, index(call) if call else -1))
    if not read:
        raise PredictionsError(f"{listing([str(path) for path in reviews])} hold no verdict with a class.")
    rows, verdicts, blind, kappas, calls = map(list, zip(*read, strict=True))
    return reveal(
        model.probabilities[rows], verdicts, hierarchy, patients=[model.patients[row] for row in rows], blind=blind,
        kappa=kappas, calls=calls,
    )  # fmt: skip


_SCREEN = ("model_call", "blind", "kappa")
"""What a reader had on the screen; a column may be missing."""


def _stated_kappa(text: str, otherwise: float, where: str) -> float:
    try:
        value = float(text) if text else otherwise
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise PredictionsError(f"{where}: kappa must be a number of at least 0 or empty, found {text!r}.")
    return value
