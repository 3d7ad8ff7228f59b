"""Which bags meet, how often, and what that does to the class counts: one object decides.

Each draw is a pure function of (seed, epoch, slide id), so it does not depend on the order of slides, on workers or
on an interruption. Urgency is compared at the finest level; where it decides the pair, tied and equal classes never
meet, and the more urgent of the two is `a`, whose label the remixed bag carries at every level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from pams_mil import seeding
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy, Ints
from pams_mil.parameters import require_choice, require_number
from pams_mil.remix.strategy import PARTNER_RULES, PartnerRule

Mode = Literal["replace", "add"]


@dataclass(frozen=True)
class Pair:
    """Two slides, by position in the training list: `a` gives the label, `b` is the other."""

    a: int
    b: int


@dataclass(frozen=True)
class Step:
    """One training step: the slide drawn and, when it is remixed, the pair that is trained on instead."""

    slide: int
    pair: Pair | None = None

    @property
    def labeled_by(self) -> int:
        """The slide whose label the step trains on (the larger part of it, with soft labels)."""
        return self.slide if self.pair is None else self.pair.a


@dataclass(frozen=True)
class Pairing:
    """Draws partners for the slides of a training set.

    Args:
        hierarchy: the class hierarchy.
        slide_ids: one unique id per training slide.
        targets: finest-level class index of each slide.
        rule: which slides may meet; take it from the strategy's `partner`.
        probability: how often a drawn slide is remixed.
        mode: "replace" trains on the remixed bag instead of the drawn one, "add" on both.
        seed: the run's seed.

    >>> hierarchy = ClassHierarchy.flat(["benign", "atypical", "malignant"])
    >>> pairing = Pairing(hierarchy, ["s1", "s2", "s3"], [0, 0, 2], probability=1.0)
    >>> pairing.draw(0, epoch=0), pairing.draw(2, epoch=0).a  # s1 can only meet s3, which is more urgent
    (Pair(a=2, b=0), 2)
    """

    hierarchy: ClassHierarchy
    slide_ids: Sequence[str]
    targets: Sequence[int]
    rule: PartnerRule = "outranked"
    probability: float = 0.5
    mode: Mode = "replace"
    seed: int = 0
    _ranks: Ints = field(init=False, repr=False, compare=False)
    _order: Ints = field(init=False, repr=False, compare=False)
    _keys: Ints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_choice("rule", self.rule, PARTNER_RULES)
        require_choice("mode", self.mode, ("replace", "add"))
        require_number("probability", self.probability, at_least=0, at_most=1)
        ids, classes = list(self.slide_ids), self.hierarchy.num_classes()
        if len(ids) != len(self.targets) or len(set(ids)) != len(ids):
            raise ParameterError(
                f"Pairing needs one unique id and one target per slide; found {len(ids)} ids "
                f"({len(set(ids))} different) and {len(self.targets)} targets."
            )
        if any(not 0 <= target < classes for target in self.targets):
            raise ParameterError(
                f"targets must be class indices from 0 to {classes - 1}, found {list(self.targets)!r}."
            )
        targets = np.asarray(self.targets, dtype=np.int64)
        object.__setattr__(self, "_ranks", self.hierarchy.ranks()[targets])
        keys = {"outranked": self._ranks, "same_class": targets, "any": np.arange(len(targets))}[self.rule]
        object.__setattr__(self, "_order", np.argsort(keys, kind="stable"))
        object.__setattr__(self, "_keys", keys[self._order])

    def partners(self, slide: int) -> list[int]:
        """Slides that may meet `slide`; under "same_class" the slide itself is among them."""
        return [self._partner(slide, number) for number in range(self._count(slide))]

    def _peers(self, slide: int) -> tuple[int, int]:
        """Where slides like this one (of its rank, of its class, or itself alone) lie in the order."""
        key = {"outranked": int(self._ranks[slide]), "same_class": self.targets[slide], "any": slide}[self.rule]
        return int(np.searchsorted(self._keys, key)), int(np.searchsorted(self._keys, key, side="right"))

    def _count(self, slide: int) -> int:
        first, last = self._peers(slide)
        return last - first if self.rule == "same_class" else len(self._keys) - (last - first)

    def _partner(self, slide: int, number: int) -> int:
        first, last = self._peers(slide)
        if self.rule == "same_class":
            return int(self._order[first + number])
        return int(self._order[number if number < first else number + last - first])

    def draw(self, slide: int, epoch: int) -> Pair | None:
        """The pair that `slide` is remixed into in `epoch`, or None when it stays as it is."""
        random = seeding.numpy_generator(self.seed, "pairing", epoch, self.slide_ids[slide])
        if random.random() >= self.probability:
            return None
        count = self._count(slide)
        if count == 0:
            return None
        partner = self._partner(slide, int(random.integers(count)))
        if self.rule == "outranked" and self._ranks[partner] > self._ranks[slide]:
            return Pair(a=partner, b=slide)
        return Pair(a=slide, b=partner)

    def generator(self, slide: int, epoch: int) -> torch.Generator:
        """The generator for the strategy's own draws on this slide in this epoch."""
        return seeding.generator(self.seed, "remix", epoch, self.slide_ids[slide])

    def steps(self, slide: int, epoch: int) -> list[Step]:
        """What training on `slide` means in `epoch`: one step, or two with mode "add" when it is remixed."""
        pair = self.draw(slide, epoch)
        if pair is None:
            return [Step(slide)]
        return [Step(slide, pair)] if self.mode == "replace" else [Step(slide), Step(slide, pair)]

    def class_counts(self, epoch: int) -> tuple[Ints, Ints]:
        """Slides per finest class as they are, and as trained on in `epoch` (by the label that a step carries).

        Remixed bags carry the more urgent label, so classes drift toward urgency; the least urgent class loses most.

        >>> hierarchy = ClassHierarchy.flat(["low", "high"])
        >>> before, after = Pairing(hierarchy, ["a", "b", "c"], [0, 0, 1], probability=1.0).class_counts(epoch=0)
        >>> before.tolist(), after.tolist()
        ([2, 1], [0, 3])
        """
        targets = np.asarray(self.targets, dtype=np.int64)
        trained = [step.labeled_by for slide in range(len(targets)) for step in self.steps(slide, epoch)]
        classes = self.hierarchy.num_classes()
        return np.bincount(targets, minlength=classes), np.bincount(targets[trained], minlength=classes)
