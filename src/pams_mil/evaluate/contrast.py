"""The one result type: an estimate with its interval, its test, and what was taken as chance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from pams_mil.arrays import Array
from pams_mil.metrics.metric import METRICS
from pams_mil.metrics.resampling import holm, percentile_interval

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
        df: Degrees of freedom of the interval; infinite for percentiles of resamples.
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

    def reversed(self) -> Contrast:
        """Reference − candidate: the same comparison from the other side."""
        flip = [
            None if pair is None else (0 - pair[1], 0 - pair[0]) for pair in (self.interval, self.adjusted_interval)
        ]
        return replace(
            self, estimate=0 - self.estimate, interval=flip[0] or UNKNOWN, adjusted_interval=flip[1],
            reference=self.candidate, candidate=self.reference, seeds=self.reference_seeds, reference_seeds=self.seeds,
            samples=None if self.samples is None else -self.samples,
        )  # fmt: skip

    def adjusted(self, p: float | None, family: int) -> Contrast:
        """The same as one of `family` comparisons, with p corrected for them and the interval that goes with it."""
        if family < 2:
            return replace(self, adjusted_p=p, adjusted_interval=self.interval, family=1)
        return replace(self, adjusted_p=p, adjusted_interval=self.interval_at(1 - 0.05 / family), family=family)

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
