"""What remixing did over a run, in counts and in words: class drift, how much was copied, when it was degenerate."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pams_mil.hierarchy import ClassHierarchy
from pams_mil.remix.strategy import FROM_A, Mixed

_log = logging.getLogger("pams_mil.remix")


@dataclass
class Tally:
    """Counts over the steps of a run; the engine calls `plain` or `mixed` once per step.

    Args:
        hierarchy: the class hierarchy.
        top_k: how many clusters the strategy takes, or None when it does not take clusters.
    """

    hierarchy: ClassHierarchy
    top_k: int | None = None
    drawn: Counter[int] = field(default_factory=Counter)
    trained: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    live: Counter[int] = field(default_factory=Counter)
    applied: int = 0
    degenerate: int = 0
    _share: float = 0.0

    def plain(self, target: int) -> None:
        """A step on an unchanged bag."""
        self.drawn[target] += 1
        self.trained[target] += 1

    def mixed(self, mixed: Mixed, *, drawn: int, target_a: int, target_b: int, rows_a: int) -> None:
        """A step on a remixed bag: classes of the drawn slide and of the pair, and the number of rows of a."""
        self.drawn[drawn] += 1
        self.trained[target_a] += mixed.weight_a
        if mixed.weight_a < 1:
            self.trained[target_b] += 1 - mixed.weight_a
        self.applied += 1
        copied = int((mixed.origin_bag == FROM_A).sum())
        self._share += copied / rows_a
        if mixed.live_clusters is None:
            return
        self.live[mixed.live_clusters] += 1
        if self.top_k is not None and mixed.live_clusters <= self.top_k:
            self.degenerate += 1
            if self.degenerate == 1:
                _log.warning(degenerate_words(mixed.live_clusters, self.top_k))

    @property
    def share_copied(self) -> float:
        """Mean share of a's rows in the remixed bags; 0 before the first."""
        return self._share / self.applied if self.applied else 0.0

    def words(self) -> list[str]:
        """What happened, one sentence each, for the log and the report."""
        steps = sum(self.drawn.values())
        sentences = [f"{self.applied} of {steps} training bags were remixed, with {self.share_copied:.0%} of a's rows."]
        drift = [
            f"{name} {self.drawn[index]} to {round(self.trained[index], 1):g}"
            for index, name in enumerate(self.hierarchy.names())
            if self.drawn[index] or self.trained[index]
        ]
        sentences.append(f"Bags per class before and after remixing: {', '.join(drift)}.")
        if self.degenerate:
            sentences.append(
                f"In {self.degenerate} of {self.applied} remixed bags at most {self.top_k} clusters were occupied, "
                "so all of the more urgent bag was copied."
            )
        return sentences


def degenerate_words(live: int, top_k: int) -> str:
    """Why a selection selected nothing, and what to change.

    >>> degenerate_words(3, 6)[:62]
    'Only 3 clusters are occupied and the first 6 are taken, so all'
    """
    return (
        f"Only {live} clusters are occupied and the first {top_k} are taken, so all rows of the more urgent bag are "
        "copied and nothing is selected. Use init='quantile', fewer clusters to take (top_k), or larger bags. "
        "Further cases are counted, not shown."
    )
