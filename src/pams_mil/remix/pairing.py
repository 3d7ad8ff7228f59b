"""Which bags meet, how often, and what that does to the class counts: one object decides.

Each draw is a pure function of (seed, epoch, slide id), so it does not depend on the order of slides, on workers or
on an interruption. Urgency is compared at the finest level. The label of `a` is the remixed bag's at every level; tied
classes never meet where urgency decides the pair. Two rules go by urgency:

    keep_label    the drawn slide is a and keeps its label; the partner is less urgent, or (own_class) of the same class
                  and another patient. Every class is trained on as often as it occurs, and with own_class every class
                  is remixed alike, so that being a mixture says nothing about urgency. Where the hierarchy has several
                  orders of urgency, the partner is less urgent in all of them.
    urgent_label  the partner is of any other rank and the more urgent of the two is a: less urgent slides change label
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from pams_mil import seeding
from pams_mil.arrays import Bools, Ints
from pams_mil.errors import ConfigError, ParameterError, Share, check_fields, listing
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.remix.strategy import PartnerRule
from pams_mil.severity import ranks_by_order

Mode = Literal["replace", "add"]
BY_URGENCY = ("keep_label", "urgent_label")
"""Rules between which a run may choose; the others belong to what a strategy makes of two bags."""


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
        """The slide whose label the step trains on; with soft labels its `a`, whatever its weight."""
        return self.slide if self.pair is None else self.pair.a


@dataclass(frozen=True)
class Pairing:
    """Draws partners for the slides of a training set.

    Args:
        hierarchy: the class hierarchy.
        slide_ids: one unique id per training slide.
        targets: finest-level class index of each slide.
        rule: which slides may meet and which of the two is `a`; see `rule_for`.
        probability: how often a drawn slide is remixed.
        mode: "replace" trains on the remixed bag instead of the drawn one, "add" on both.
        seed: the run's seed.
        patients: patient of each slide, for `own_class`; None: every slide is one.
        own_class: under "keep_label", whether slides of the same class and another patient may be partners.

    >>> hierarchy = ClassHierarchy.flat(["benign", "atypical", "malignant"])
    >>> pairing = Pairing(hierarchy, ["s1", "s2", "s3"], [0, 0, 2], probability=1.0)
    >>> pairing.draw(0, epoch=0), pairing.partners(2)
    (Pair(a=0, b=1), [0, 1])
    >>> relabeling = Pairing(hierarchy, ["s1", "s2", "s3"], [0, 0, 2], rule="urgent_label", probability=1.0)
    >>> relabeling.draw(0, epoch=0), relabeling.draw(2, epoch=0).a  # s1 can only meet s3, which is more urgent
    (Pair(a=2, b=0), 2)
    """

    hierarchy: ClassHierarchy
    slide_ids: Sequence[str]
    targets: Sequence[int]
    rule: PartnerRule = "keep_label"
    probability: Share = 0.5
    mode: Mode = "replace"
    seed: int = 0
    patients: Sequence[str] | None = None
    own_class: bool = True
    _by_order: Ints = field(init=False, repr=False, compare=False)
    _ranks: Ints = field(init=False, repr=False, compare=False)
    _own: Ints = field(init=False, repr=False, compare=False)
    _order: Ints = field(init=False, repr=False, compare=False)
    _keys: Ints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
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
        if not isinstance(self.own_class, bool) or (self.patients is not None and len(self.patients) != len(ids)):
            raise ParameterError(
                f"Pairing needs own_class true or false and one patient per slide; found {self.own_class!r} and "
                f"{len(ids if self.patients is None else self.patients)} patients for {len(ids)} slides."
            )
        targets = np.asarray(self.targets, dtype=np.int64)
        if self.hierarchy.other_orders and self.rule == "urgent_label":
            raise ParameterError(
                "pairing.rule 'urgent_label' gives a remixed bag the label of the more urgent slide, and several "
                "orders of urgency dispute which one that is. Use 'keep_label', which mixes what all of them agree on."
            )
        # Sorted once: a draw then takes a few binary searches instead of a look at every slide.
        object.__setattr__(self, "_by_order", ranks_by_order(self.hierarchy))
        object.__setattr__(self, "_ranks", self.hierarchy.ranks()[targets])
        object.__setattr__(self, "_own", self._own_keys(targets))
        object.__setattr__(self, "_order", np.argsort(self._own, kind="stable"))
        object.__setattr__(self, "_keys", self._own[self._order])

    def _own_keys(self, targets: Ints) -> Ints:
        """A number per slide by which slides are sorted, so that the partners of each lie in one or two runs."""
        if self.rule != "keep_label":
            keys = {"urgent_label": self._ranks, "same_class": targets, "any": np.arange(len(targets))}
            return keys[self.rule]
        names = self.slide_ids if self.patients is None else self.patients
        number = {name: position for position, name in enumerate(dict.fromkeys(names))}
        patient = np.array([number[name] for name in names], dtype=np.int64)
        # By rank, then class, then patient: less urgent slides come first, a class and a patient's part of it are runs.
        return (self._ranks * self.hierarchy.num_classes() + targets) * max(1, len(names)) + patient

    def partners(self, slide: int) -> list[int]:
        """Slides that may meet `slide`; under "same_class" the slide itself is among them."""
        return [int(partner) for first, last in self._runs(slide) for partner in self._order[first:last]]

    def _runs(self, slide: int) -> list[tuple[int, int]]:
        """Where the partners of a slide lie in the order: from one place up to another, once or more."""
        # Slides with the same key as this one lie from `first` up to `last`.
        key = int(self._own[slide])
        first, last = self._place(key), self._place(key + 1)
        if self.rule == "same_class":
            return [(first, last)]
        if self.rule != "keep_label":
            # All but those of its own rank ("urgent_label"), or all but itself ("any").
            return [(0, first), (last, len(self._keys))]
        # The keys are (rank C + class) n + patient, so a class spans n numbers and a rank C n.
        of_class = len(self._keys)
        of_rank = of_class * self.hierarchy.num_classes()
        if len(self._by_order) > 1:
            # Only classes that every order calls less urgent, so that the label is right in all of them.
            agreed: Bools = np.all(self._by_order[:, [self.targets[slide]]] > self._by_order, axis=0)
            starts = (self._by_order[0] * self.hierarchy.num_classes() + np.arange(len(agreed)))[agreed] * of_class
            less_urgent = [(self._place(int(start)), self._place(int(start) + of_class)) for start in starts]
        else:
            less_urgent = [(0, self._place(int(self._ranks[slide]) * of_rank))]
        if not self.own_class:
            return less_urgent
        # The class without its own patient's part, which lies in the middle of it.
        begin = key - key % of_class
        return [*less_urgent, (self._place(begin), first), (last, self._place(begin + of_class))]

    def _place(self, key: int) -> int:
        return int(np.searchsorted(self._keys, key))

    def draw(self, slide: int, epoch: int) -> Pair | None:
        """The pair that `slide` is remixed into in `epoch`, or None when it stays as it is."""
        random = seeding.numpy_generator(self.seed, "pairing", epoch, self.slide_ids[slide])
        if random.random() >= self.probability:
            return None
        runs = self._runs(slide)
        count = sum(last - first for first, last in runs)
        if count == 0:
            return None
        # Counted through the runs as if they were one.
        number = int(random.integers(count))
        for first, last in runs:
            if number < last - first:
                break
            number -= last - first
        partner = int(self._order[first + number])
        if self.rule == "urgent_label" and self._ranks[partner] > self._ranks[slide]:
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

        Under "keep_label" nothing drifts. Under "urgent_label" remixed bags carry the more urgent label, so classes
        drift toward urgency and the least urgent one loses most.

        >>> hierarchy = ClassHierarchy.flat(["low", "high"])
        >>> for rule in ("keep_label", "urgent_label"):
        ...     pairing = Pairing(hierarchy, ["a", "b", "c"], [0, 0, 1], rule=rule, probability=1.0)
        ...     [counts.tolist() for counts in pairing.class_counts(epoch=0)]
        [[2, 1], [2, 1]]
        [[2, 1], [0, 3]]
        """
        targets = np.asarray(self.targets, dtype=np.int64)
        trained = [step.labeled_by for slide in range(len(targets)) for step in self.steps(slide, epoch)]
        classes = self.hierarchy.num_classes()
        return np.bincount(targets, minlength=classes), np.bincount(targets[trained], minlength=classes)


def rule_for(partner: PartnerRule, asked: PartnerRule | None) -> PartnerRule:
    """The rule of a run: the strategy's own unless another one is asked for that suits what it makes.

    >>> rule_for("keep_label", None), rule_for("keep_label", "urgent_label")
    ('keep_label', 'urgent_label')
    >>> rule_for("any", "keep_label")
    Traceback (most recent call last):
    pams_mil.errors.ConfigError: pairing.rule 'keep_label' does not go with this remix, whose rule is 'any': ...
    """
    if asked is None or asked == partner or (asked in BY_URGENCY and partner in BY_URGENCY):
        return asked or partner
    if partner in BY_URGENCY:
        raise ConfigError(f"pairing.rule must be one of {listing(BY_URGENCY)}, found {asked!r}.")
    raise ConfigError(
        f"pairing.rule {asked!r} does not go with this remix, whose rule is {partner!r}: its bags carry one class or "
        "shares of two, never the more urgent of two. Leave pairing.rule out, or choose sfr, randommix, or pseudomix "
        "with labels=urgent."
    )
