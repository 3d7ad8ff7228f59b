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
    _ranks: Ints = field(init=False, repr=False, compare=False)
    _patients: Ints = field(init=False, repr=False, compare=False)
    _order: Ints = field(init=False, repr=False, compare=False)
    _below: Bools = field(init=False, repr=False, compare=False)

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
        names = ids if self.patients is None else self.patients
        number = {name: position for position, name in enumerate(dict.fromkeys(names))}
        ranks, patients = self.hierarchy.ranks()[targets], np.array([number[name] for name in names], dtype=np.int64)
        # What partners are sorted by, the last first, so that draws do not depend on the order of the table.
        keys = {"keep_label": (patients, targets, ranks), "urgent_label": (ranks,), "same_class": (targets,)}
        by_order = ranks_by_order(self.hierarchy)
        object.__setattr__(self, "_ranks", ranks)
        object.__setattr__(self, "_patients", patients)
        object.__setattr__(self, "_order", np.lexsort(keys.get(self.rule, (np.arange(len(ids)),))))
        # Only classes that every order calls less urgent, so that the label is right in all of them.
        object.__setattr__(self, "_below", (by_order[:, :, None] > by_order[:, None, :]).all(0))

    def partners(self, slide: int) -> list[int]:
        """Slides that may meet `slide`; under "same_class" the slide itself is among them."""
        partners: list[int] = self._order[self._may_meet(slide)[self._order]].tolist()
        return partners

    def _may_meet(self, slide: int) -> Bools:
        """Which slides may meet `slide`, [n]."""
        targets = np.asarray(self.targets, dtype=np.int64)
        same: Bools = targets == targets[slide]
        allowed: Bools = self._below[targets[slide], targets]
        if self.rule == "keep_label" and self.own_class:
            allowed = allowed | (same & (self._patients != self._patients[slide]))
        elif self.rule == "urgent_label":
            allowed = self._ranks != self._ranks[slide]
        elif self.rule != "keep_label":
            allowed = same if self.rule == "same_class" else np.arange(len(targets)) != slide
        return allowed

    def draw(self, slide: int, epoch: int) -> Pair | None:
        """The pair that `slide` is remixed into in `epoch`, or None when it stays as it is."""
        random = seeding.numpy_generator(self.seed, "pairing", epoch, self.slide_ids[slide])
        if random.random() >= self.probability:
            return None
        partners = self.partners(slide)
        if not partners:
            return None
        partner = partners[int(random.integers(len(partners)))]
        if self.rule == "urgent_label" and self._ranks[partner] > self._ranks[slide]:
            return Pair(a=partner, b=slide)
        return Pair(a=slide, b=partner)

    def generator(self, slide: int, epoch: int) -> torch.Generator:
        """The generator for the strategy's own draws on this slide in this epoch."""
        return seeding.generator(self.seed, "remix", epoch, self.slide_ids[slide])

    def steps(self, slide: int, epoch: int) -> list[Pair | None]:
        """The steps of `slide` in `epoch`: on itself (None), on the pair that it is in, or with mode "add" on both."""
        pair = self.draw(slide, epoch)
        return [None, pair] if pair is not None and self.mode == "add" else [pair]

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
        # With soft labels by the label of `a`, whatever its weight.
        trained = [
            slide if pair is None else pair.a for slide in range(len(targets)) for pair in self.steps(slide, epoch)
        ]
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
