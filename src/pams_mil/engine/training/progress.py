"""How far a run is: a handful of numbers that a checkpoint carries and the loop advances."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pams_mil.errors import CheckpointError
from pams_mil.metrics.metric import METRICS

WITHOUT_MISTAKES = ("asmc", "emc")
"""Metrics of mistakes, which are infinite where there are none: no epoch can be better."""


@dataclass
class RunProgress:
    """Where the loop stands.

    Attributes:
        epoch: Epochs that are complete.
        step: Bags of the next epoch that were trained on already.
        sums: Sum of every loss term over these bags.
        counts: What was done to these bags: remixed, dropped, capped, ...
        best: The best validation score so far; infinite, and null in JSON, for `WITHOUT_MISTAKES`.
        best_epoch: When it was reached, counted from 1; 0: never.
        waited: Epochs since then.
        history: One row per complete epoch.
    """

    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    best_epoch: int = 0
    waited: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def from_json(cls, content: Any) -> RunProgress:
        """Progress from a checkpoint's state."""
        try:
            progress = cls(**content)
        except TypeError as error:
            raise CheckpointError(f"The checkpoint does not say how far the run was: {error}.") from error
        # JSON has no infinity: a best epoch without a score is one without mistakes.
        if progress.best is None and progress.best_epoch:
            progress.best = math.inf
        return progress

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "best": finite(self.best)}

    def is_over(self, epochs: int, patience: int | None) -> bool:
        """Whether all epochs are done, or patience has run out."""
        return self.epoch >= epochs or (patience is not None and self.waited >= patience)

    def add(self, terms: Mapping[str, float], counts: Sequence[Mapping[str, float]]) -> None:
        """Take note of bags: the mean of every term over them, and what was done to each.

        >>> progress = RunProgress()
        >>> progress.add({"ce": 0.5}, [{}, {"remixed": 1.0}])
        >>> progress.step, progress.sums, progress.counts
        (2, {'ce': 1.0}, {'remixed': 1.0})
        """
        self.step += len(counts)
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * len(counts)
        for bag in counts:
            for name, count in bag.items():
                self.counts[name] = self.counts.get(name, 0.0) + count

    def close_epoch(self, row: dict[str, Any], score: float, metric: str) -> bool:
        """Complete the epoch; whether its score is the best so far.

        A score that is not finite never is, but for one that says that there are no mistakes.

        >>> progress = RunProgress()
        >>> [progress.close_epoch({}, score, "ascc") for score in (0.5, float("nan"), 0.4, 0.6)]
        [True, False, False, True]
        >>> progress.best_epoch, progress.waited
        (4, 0)
        >>> progress = RunProgress()
        >>> [progress.close_epoch({}, score, "asmc") for score in (0.5, float("inf"), 0.9, float("inf"))]
        [True, True, False, False]
        """
        self.epoch += 1
        self.step, self.sums, self.counts = 0, {}, {}
        self.history.append({key: finite(value) for key, value in row.items()})
        counts = math.isfinite(score) or (score == math.inf and metric in WITHOUT_MISTAKES)
        better = counts and (self.best is None or beats(score, self.best, metric))
        if better:
            self.best, self.best_epoch, self.waited = score, self.epoch, 0
        else:
            self.waited += 1
        return better


def beats(score: float, best: float, metric: str) -> bool:
    """Whether a validation score is better than the best one.

    >>> beats(0.8, 0.7, "urgency_auc"), beats(0.8, 0.7, "refined_nll")
    (True, False)
    """
    higher = metric in ("last", "urgency_auc") or (metric in METRICS and METRICS[metric].higher_is_better)
    return score > best if higher else score < best


def finite(value: Any) -> Any:
    """The value, and None for a number that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
