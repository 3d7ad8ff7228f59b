"""The one result type: an estimate with its interval, its test, and what was taken as chance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from pams_mil.arrays import Array, Ints
from pams_mil.metrics.metric import METRICS, Metric
from pams_mil.metrics.resampling import holm, percentile_interval, swap_p_value

Interval = tuple[float, float]
Varied = Literal["nothing", "patients", "patients and networks"]
UNKNOWN: Interval = (math.nan, math.nan)


@dataclass(frozen=True)
class Contrast:
    """A number and how sure it is: a method's score, or candidate − reference.

    Attributes:
        metric: Its key.
        estimate: The score, or the difference.
        interval: 95 %, over what varied.
        varied: What the interval and p-value take as chance.
        reference: The reference's score; NaN for a score by itself.
        candidate: The candidate's score.
        p_value: Two-sided, None where nothing was tested.
        standard_error: Of the estimate.
        df: Degrees of freedom of the interval; infinite where it is of percentiles of resamples (scores of one seed).
        seeds: The score of every seed (of the candidate).
        reference_seeds: The same of the reference.
        adjusted_p: Corrected for `family` comparisons (Holm).
        adjusted_interval: 1 − 0.05 / `family` (Bonferroni), beside the adjusted p-value.
        family: How many comparisons were made at once.
    """

    metric: str
    estimate: float
    interval: Interval = UNKNOWN
    varied: Varied = "nothing"
    reference: float = math.nan
    candidate: float = math.nan
    p_value: float | None = None
    standard_error: float = math.nan
    df: float = math.inf
    seeds: tuple[float, ...] = ()
    reference_seeds: tuple[float, ...] = ()
    adjusted_p: float | None = None
    adjusted_interval: Interval | None = None
    family: int = 1
    samples: Array | None = field(default=None, repr=False, compare=False)
    """Resamples of the estimate."""

    @classmethod
    def over_seeds(cls, metric: str, values: Iterable[float]) -> Contrast:
        """A score known seed by seed; seeds without a finite value are left out of the mean.

        >>> score = Contrast.over_seeds("acc", [0.5, 0.7])
        >>> round(score.estimate, 3), round(score.sd, 3), score.missing
        (0.6, 0.1, 0)
        >>> Contrast.over_seeds("asmc", [0.5, float("inf")]).missing
        1
        """
        seeds = tuple(values)
        finite = [value for value in seeds if math.isfinite(value)]
        return cls(metric, sum(finite) / len(finite) if finite else math.nan, seeds=seeds)

    @property
    def value(self) -> float:
        """The estimate, of a score by itself."""
        return self.estimate

    @property
    def difference(self) -> float:
        """Candidate − reference."""
        return self.estimate

    @property
    def p(self) -> float | None:
        """The p-value, adjusted where several methods were compared."""
        return self.p_value if self.adjusted_p is None else self.adjusted_p

    @property
    def shown_interval(self) -> Interval:
        """The interval that belongs to `p`."""
        return self.interval if self.adjusted_interval is None else self.adjusted_interval

    @property
    def sd(self) -> float:
        """Population standard deviation over seeds, as in the paper's tables; NaN for one seed."""
        finite = [value for value in self.seeds if math.isfinite(value)]
        return float(np.std(finite)) if len(finite) > 1 else math.nan

    @property
    def missing(self) -> int:
        """Seeds without a finite value."""
        return sum(not math.isfinite(value) for value in self.seeds)

    @property
    def better(self) -> bool | None:
        """Whether the candidate is better; None when the interval holds 0 or is undefined."""
        low, high = self.shown_interval
        if not (low > 0 or high < 0):
            return None
        return (self.estimate > 0) == METRICS[self.metric].higher_is_better

    @property
    def p_words(self) -> str:
        """The p-value for people, after a comma, e.g. ", adjusted p = 0.03"; empty where nothing was tested."""
        return "" if self.p is None else f", {'adjusted p' if self.family > 1 else 'p'} = {self.p:.2g}"

    @property
    def evidence(self) -> str:
        """Difference, interval and p as tables show them: candidate − reference, and no other sign."""
        low, high = (100 * bound + 0.0 for bound in self.shown_interval)
        family = f" for {self.family} comparisons" if self.family > 1 else ""
        interval = "" if math.isnan(low) else f", 95 % interval{family} {low:+.1f} to {high:+.1f}"
        return f"{100 * self.difference:+.1f} points{interval}{self.p_words}"

    def adjusted(self, p: float | None, family: int) -> Contrast:
        """The same as one of `family` comparisons, with p corrected for them and the interval that goes with it."""
        interval = self.interval if family < 2 else self.interval_at(1 - 0.05 / family)
        return replace(self, adjusted_p=p, adjusted_interval=interval, family=max(1, family))

    def interval_at(self, level: float) -> Interval:
        """The interval of another confidence than 95 %."""
        if math.isfinite(self.df):
            half = float(stdtrit(self.df, 0.5 + level / 2)) * self.standard_error
            return (self.estimate - half, self.estimate + half)
        return UNKNOWN if self.samples is None else percentile_interval(self.samples, level)

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form; a score by itself has `value` in place of `difference`."""
        if not self.reference_seeds:
            return {"value": self.estimate, "ci": list(self.interval), "varied": self.varied, "sd": self.sd}
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "difference": self.estimate,
            "ci": list(self.interval),
            "p": self.p_value,
            "adjusted_p": self.adjusted_p,
            "adjusted_ci": None if self.adjusted_interval is None else list(self.adjusted_interval),
            "family": self.family,
            "varied": self.varied,
        }


def _of_one_network(bounds: Interval, samples: Array, units: int) -> Interval:
    """Percentiles of the resamples of a score; where all are at an end of its range, what n patients can exclude.

    No resample of 0 misses has one, yet they do not show that there are none: if a share q of patients deviates, none
    does in n with probability (1 - q)^n, which is 0.025 at q = 1 - 0.025^(1 / n) (Clopper and Pearson's limit), and a
    mean of patients' values in the range moves by at most q of it.
    """
    (low, high), (bottom, top) = percentile_interval(samples), bounds
    if low != high or low not in (bottom, top) or not units or not math.isfinite(top - bottom):
        return low, high
    reach = (1 - 0.025 ** (1 / units)) * (top - bottom)
    return max(bottom, low - reach), min(top, high + reach)


def contrast_of(
    metric: Metric,
    candidate: Array,
    reference: Array | None = None,
    *,
    drawn: Array | None = None,
    drawn_reference: Array | None = None,
    swapped: Array | None = None,
    units: int = 0,
    common: Array | None = None,
) -> Contrast:
    """The contrast from scores by seed [S] and their resamples [S, B]; equations: `pams_mil.evaluate.inference`.

    `common` [S_candidate, S_reference] counts the networks that both seeds are made from; None: none.
    """
    sides = [(candidate, drawn)] if reference is None else [(candidate, drawn), (reference, drawn_reference)]
    means = [_mean(scores) for scores, _ in sides]
    value = means[0] if reference is None else float(subtract(np.array(means[0]), np.array(means[1])))
    result = Contrast(
        metric.key, value,
        reference=math.nan if reference is None else means[1], candidate=math.nan if reference is None else means[0],
        seeds=tuple(candidate.tolist()), reference_seeds=() if reference is None else tuple(reference.tolist()),
        varied="nothing" if drawn is None and swapped is None else "patients",
        p_value=None if swapped is None else swap_p_value(value, swapped),
    )  # fmt: skip
    if drawn is None:
        return result
    averaged = [_seed_mean(samples) for _, samples in sides if samples is not None]
    samples = averaged[0] if reference is None else subtract(averaged[0], averaged[1])
    result, finite = replace(result, samples=samples), samples[np.isfinite(samples)]
    if 2 * finite.size < samples.size or finite.size < 2 or not math.isfinite(value):
        return result
    variance = float(finite.var(ddof=1))
    defined = [np.isfinite(scores) for scores, _ in sides]
    if max(int(ok.sum()) for ok in defined) < 2:
        result = replace(result, standard_error=math.sqrt(variance))
        if reference is None:
            return replace(result, interval=_of_one_network(metric.bounds, samples, units))
        # Not percentiles: resampled curves are coarser, and differences at a given rate shrink towards 0 in them.
        result = replace(result, df=max(1, units - 1))
        p = _t_p_value(result) if swapped is None and variance > 0 else result.p_value  # other folds: no swaps
        return replace(result, p_value=p, interval=result.interval_at(0.95))
    scores = np.concatenate([of_seed[ok] for (of_seed, _), ok in zip(sides, defined, strict=True)])
    redrawn = np.concatenate([of[ok] for (_, of), ok in zip(sides, defined, strict=True) if of is not None])
    moved = redrawn[:, np.isfinite(redrawn).all(axis=0)] - scores[:, None]
    networks = NetworkVariance.of(
        [int(ok.sum()) for ok in defined], None if common is None or reference is None else common[np.ix_(*defined)]
    )
    between, over_df = networks(np.outer(scores - scores.mean(), scores - scores.mean()))
    by_patients, by_patients_df = networks(moved @ moved.T / max(1, moved.shape[1]))
    shared = max(0.0, variance - by_patients)
    if not between > 0:  # rates of few slides may be equal to the last digit, which says nothing about other networks
        between, over_df = by_patients, by_patients_df
    total = shared + between
    varied: Varied = "patients and networks" if networks.chance.any() else "patients"
    result = replace(result, standard_error=math.sqrt(total), varied=varied)
    if not total > 0:
        return replace(result, interval=(value, value), p_value=1.0 if reference is not None and value == 0 else None)
    result = replace(result, df=total**2 / (shared**2 / max(1, units - 1) + over_df))
    low, high = result.interval_at(0.95)
    if reference is None:
        return replace(result, interval=(max(low, metric.bounds[0]), min(high, metric.bounds[1])))
    return replace(result, interval=(low, high), p_value=_t_p_value(result))


def _t_p_value(contrast: Contrast) -> float:
    return float(2 * stdtr(contrast.df, -abs(contrast.estimate) / contrast.standard_error))


@dataclass(frozen=True, eq=False)
class NetworkVariance:
    """The variance that networks give to a mean over seeds, or to the difference of two.

    Seeds that are made from the same networks vary together. With G [S_A, S_B] the networks in common, a and b the
    scores and H = I − 1/S, which centers them,

        γ = a' H G H b / tr(G' H G H),     V = c_A s²_A / S_A² + c_B s²_B / S_B² − 2 γ ΣG / (S_A S_B)

    where |γ| is at most s_A s_B / ‖G‖ and c = S seeds are chance. If each seed of one is made from the networks of one
    seed of the other, V is s² of their differences over S and the test is the paired t-test. Where one side is a single
    seed, what that is made from is given: c is 0 for it, and counts the other's seeds that have nothing of it.
    """

    side: Ints
    """The side of every seed, 0 or 1."""
    chance: Ints
    """c of both sides."""
    common: Array
    """G between all seeds, [S_A + S_B, S_A + S_B]; 0 within a side."""

    @classmethod
    def of(cls, sizes: Sequence[int], common: Array | None = None) -> NetworkVariance:
        """Of sides with so many seeds."""
        side = np.repeat(np.arange(len(sizes)), sizes)
        every, chance = np.zeros((len(side), len(side))), np.array(sizes)
        if common is not None:
            every[: sizes[0], sizes[0] :] = common
            every += every.T
        if len(sizes) > 1 and min(sizes) < 2:
            chance = np.where(chance < 2, 0, chance - np.count_nonzero(every) // 2)
        return cls(side, chance, every if chance.all() else np.zeros_like(every))

    def __call__(self, products: Array) -> tuple[float, float]:
        """V and Σ V_k² / df_k (Satterthwaite) from the products of the scores, [S_A + S_B, S_A + S_B]."""
        size = np.bincount(self.side)
        same = self.side[:, None] == self.side
        center = np.eye(len(self.side)) - same / size[self.side]
        # V = y' Q y; Q and Σ, the covariance of the seeds' scores.
        form = center * (self.chance / (size**2 * np.maximum(1, size - 1)))[self.side]
        variances = np.array([(center * products)[self.side == k].sum() for k in range(len(size))])
        variances /= np.maximum(1, size - 1)
        covariance = np.diag(np.where(self.chance > 0, variances, 0.0)[self.side])
        value = float((self.chance * variances / size**2).sum())
        centered = center @ self.common @ center
        identified = float((self.common * centered).sum())
        if identified > 1e-9:  # seeds that all have the same in common say nothing about it
            most = math.sqrt(variances[0] * variances[1]) / float(np.linalg.norm(self.common, 2))
            together = float((centered * products).sum()) / identified
            share = float(self.common.sum()) / math.prod(size.tolist())
            covariance += min(max(together, -most), most) * self.common
            form -= share / identified * centered
            value -= min(max(together, -most), most) * share
        if value <= 1e-12 * variances.sum():
            return 0.0, 0.0
        turned = form @ covariance
        return value, float((turned * turned.T).sum())


def _mean(scores: Array) -> float:
    if len(scores) == 1:
        return float(scores[0])
    finite = scores[np.isfinite(scores)]
    return float(finite.mean()) if finite.size else float(scores[0])


def _seed_mean(samples: Array) -> Array:
    """The mean over seeds in every resample, of the finite ones."""
    if len(samples) == 1:
        only: Array = samples[0]
        return only
    finite = np.isfinite(samples)
    with np.errstate(invalid="ignore"):
        mean: Array = np.where(finite, samples, 0.0).sum(0) / finite.sum(0)
    return mean


def subtract(candidate: Array, reference: Array) -> Array:
    """The difference: 0 between two models without errors (both infinite), and where only rounding differs."""
    with np.errstate(invalid="ignore"):
        difference: Array = np.where(np.isclose(candidate, reference, rtol=0.0, atol=1e-12), 0.0, candidate - reference)
    return difference


def adjusted(families: Sequence[Mapping[str, Contrast]]) -> list[dict[str, Contrast]]:
    """Contrasts of several candidates with one reference, p and interval of every metric adjusted for them all."""
    result = [dict(family) for family in families]
    for key in dict.fromkeys(key for family in families for key in family):
        members = [family for family in result if key in family]
        tested = [family for family in members if family[key].p_value is not None]
        corrected = dict(zip(map(id, tested), holm([family[key].p_value or 0.0 for family in tested]), strict=True))
        for family in members:
            p = corrected.get(id(family))
            family[key] = family[key].adjusted(None if p is None else float(p), len(members))
    return result
