"""Class hierarchies: which classes there are, which is more urgent, and which belong together.

Everything else is derived from this: losses, metrics, remix, decisions and reports. Class order comes
from the hierarchy and never from data.

Conventions, used everywhere:
    * Levels run from 0 (coarsest) to H-1 (finest); the paper's h is level + 1. Level -1 is the finest.
    * A class index grows with urgency. Classes of equal rank are equally urgent ("tied").
    * `outranks(level)[i, j]` is true when class i is strictly more urgent than class j.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pams_mil.errors import HierarchyError, LabelError, ParameterError, listing, nearest
from pams_mil.hierarchy_ties import order_note, tie_of

DistanceBy = Literal["index", "rank"]
"""What `ClassHierarchy.distance` counts: classes as they are listed, or steps of urgency."""
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_JOINERS = "\u200c\u200d"  # some scripts are written with them


@dataclass(frozen=True)
class Level:
    """One level of the tree: class names, each class's parent index one level up, and its rank."""

    names: tuple[str, ...]
    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class ClassHierarchy:
    """A validated tree of classes with an order of urgency; ill-formed ones cannot be constructed.

    >>> hierarchy = ClassHierarchy.load("bracs")
    >>> hierarchy.names(0), hierarchy.names()
    (('Benign', 'Atypical', 'Malignant'), ('N', 'PB', 'UDH', 'FEA', 'ADH', 'DCIS', 'IC'))
    >>> bool(hierarchy.outranks()[hierarchy.index("ADH"), hierarchy.index("FEA")])  # tied
    False
    >>> hierarchy.lift([0, 4, 6], level=0).tolist()
    [0, 1, 2]
    """

    name: str
    levels: tuple[Level, ...]
    level_names: tuple[str, ...] = ()
    display_names: Mapping[str, str] = field(default_factory=dict, hash=False)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    source: str = ""
    distance_by: DistanceBy = "index"

    def __post_init__(self) -> None:
        if not self.level_names:
            object.__setattr__(self, "level_names", _default_level_names(len(self.levels)))
        _validate(self)

    @classmethod
    def load(cls, name_or_path: str | Path) -> ClassHierarchy:
        """A preset by name (`bracs`), or a YAML file by path."""
        from pams_mil.hierarchy_file import load  # noqa: PLC0415  the file format knows this class

        return load(name_or_path)

    @classmethod
    def flat(
        cls,
        names: Sequence[str],
        *,
        ties: Sequence[Sequence[str]] = (),
        name: str = "classes",
        distance_by: DistanceBy = "index",
    ) -> ClassHierarchy:
        """One level, least urgent first; each of `ties` names neighbors that are equally urgent.

        >>> ClassHierarchy.flat(["low", "mid", "other", "high"], ties=[["mid", "other"]]).ranks().tolist()
        [0, 1, 1, 2]
        """
        group = tie_of(list(names), ties)
        ranks: list[int] = []
        for position, label in enumerate(names):
            tied = position > 0 and label in group and group.get(names[position - 1]) == group[label]
            ranks.append(ranks[-1] if tied else (ranks[-1] + 1 if ranks else 0))
        levels = (Level(tuple(names), (0,) * len(names), tuple(ranks)),)
        return cls(name=name, levels=levels, distance_by=distance_by)

    @property
    def num_levels(self) -> int:
        """H, the number of levels."""
        return len(self.levels)

    def level(self, level: int = -1) -> int:
        """The level counted from 0; accepts negative numbers, refuses what does not exist."""
        if not isinstance(level, (int, np.integer)) or not -self.num_levels <= level < self.num_levels:
            raise ParameterError(
                f"level must be a whole number from {-self.num_levels} to {self.num_levels - 1} "
                f"for the hierarchy {self.name!r}, found {level!r}."
            )
        return int(level) % self.num_levels

    def names(self, level: int = -1) -> tuple[str, ...]:
        """Class names at a level, least urgent first."""
        return self.levels[self.level(level)].names

    def num_classes(self, level: int = -1) -> int:
        """C, the number of classes at a level."""
        return len(self.levels[self.level(level)])

    def display(self, label: str) -> str:
        """The name to show people."""
        return self.display_names.get(label, label)

    def parents(self, level: int = -1) -> Ints:
        """For each class at `level`, the index of its parent one level up (zeros at level 0: the root)."""
        return np.asarray(self.levels[self.level(level)].parents, dtype=np.int64)

    def ranks(self, level: int = -1) -> Ints:
        """Urgency of each class at a level; equal ranks mean equally urgent."""
        return np.asarray(self.levels[self.level(level)].ranks, dtype=np.int64)

    def lift(self, target: npt.ArrayLike, level: int, *, from_level: int = -1) -> Ints:
        """Class indices at `from_level` translated to their ancestors at the coarser `level`."""
        given = np.asarray(target)
        if given.size and not np.issubdtype(given.dtype, np.integer):  # refused, not rounded
            raise ParameterError(f"Class indices must be whole numbers, found {given.dtype}.")
        lifted: Ints = given.astype(np.int64)
        current, wanted = self.level(from_level), self.level(level)
        if wanted > current:
            raise ParameterError(f"lift goes from fine to coarse; level {wanted} is finer than {current}.")
        most = self.num_classes(current) - 1
        if lifted.size and (lifted.min() < 0 or lifted.max() > most):
            raise ParameterError(f"Class indices must be from 0 to {most}, found {lifted.min()} to {lifted.max()}.")
        for step in range(current, wanted, -1):
            lifted = self.parents(step)[lifted]
        return lifted

    def groups(self, level: int, *, of_level: int = -1) -> Ints:
        """For every class at `of_level`, the index of its ancestor at `level`."""
        return self.lift(np.arange(self.num_classes(of_level)), level, from_level=of_level)

    def summed(self, probabilities: npt.NDArray[np.float64], level: int) -> npt.NDArray[np.float64]:
        """Probabilities [n, c] of the finest classes as those of a coarser level: every class has its members' sum.

        >>> ClassHierarchy.load("bracs").summed(np.full((1, 7), 1 / 7), 0).round(3).tolist()
        [[0.429, 0.286, 0.286]]
        """
        belongs = self.groups(level)[:, None] == np.arange(self.num_classes(level))
        found: npt.NDArray[np.float64] = probabilities @ belongs.astype(np.float64)
        return found

    def outranks(self, level: int = -1) -> Bools:
        """`[i, j]` is true when class i is strictly more urgent than class j."""
        ranks = self.ranks(level)
        return ranks[:, None] > ranks[None, :]

    def distance(self, level: int = -1) -> Ints:
        """How far two classes are apart, at least 1 off the diagonal.

        By index: |i − j|, also across ties. By rank: the steps of urgency between them, 1 between tied classes.

        >>> for by in ("index", "rank"):
        ...     ClassHierarchy.flat("abcd", ties=["bc"], distance_by=by).distance()[3].tolist()
        [3, 2, 1, 0]
        [2, 1, 1, 0]
        """
        size = self.num_classes(level)
        place = np.arange(size, dtype=np.int64)
        if self.distance_by == "rank":
            place = np.unique(self.ranks(level), return_inverse=True)[1].astype(np.int64)
        # By rank, tied classes would be 0 apart, and AsMC would divide by 0.
        distance: Ints = np.maximum(np.abs(place[:, None] - place[None, :]), 1 - np.eye(size, dtype=np.int64))
        return distance

    def tie_notes(self) -> tuple[str, ...]:
        """Where the order in which tied classes are listed changes distances, and so scores and loss; one per level.

        >>> ClassHierarchy.flat("abc").tie_notes(), len(ClassHierarchy.load("bracs").tie_notes())
        ((), 1)
        """
        if self.distance_by == "rank":
            return ()
        return tuple(note for level in self.levels if (note := order_note(level.names, level.ranks)))

    def lca_height(self, level: int = -1) -> Ints:
        """Height of the lowest common ancestor: 0 for the same class, up to level + 1 for the root."""
        level = self.level(level)
        height = np.zeros((self.num_classes(level),) * 2, dtype=np.int64)
        for coarser in range(level, -1, -1):
            group = self.groups(coarser, of_level=level)
            # one step higher for every level at which the two are still apart
            height += group[:, None] != group[None, :]
        return height

    def index(self, label: str, level: int = -1) -> int:
        """The class index of a label, matched exactly or through a declared alias, never guessed."""
        lookup = self._lookups[self.level(level)]
        try:
            return lookup[label]
        except KeyError:
            known = self.names(level)
            raise LabelError(
                f"{label!r} is not a class of {self.name!r} at level {self.level_names[self.level(level)]!r}."
                f"{nearest(label, lookup)} Classes: {listing(known, most=30)}. "
                "Labels are matched exactly; other spellings can be declared under 'aliases' in the class file."
            ) from None

    @cached_property
    def _lookups(self) -> tuple[dict[str, int], ...]:
        lookups = []
        for level in self.levels:
            lookup = {label: index for index, label in enumerate(level.names)}
            for label, others in self.aliases.items():
                if label in lookup:
                    lookup.update({other: lookup[label] for other in others if other not in level.names})
            lookups.append(lookup)
        return tuple(lookups)

    @cached_property
    def digest(self) -> str:
        """16 hex digits that change whenever a name, parent, rank or distance changes; stored in every output."""
        content: list[Any] = [[level.names, level.parents, level.ranks] for level in self.levels]
        # Left out by default: digests in files from before there was a choice must stay the same.
        if self.distance_by != "index":
            content.append({"distance": self.distance_by})
        canonical = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def order(self, level: int = -1) -> str:
        """The classes with the signs of their order.

        >>> ClassHierarchy.load("bracs").order()
        'N ≺ PB ≺ UDH ≺ FEA ≡ ADH ≺ DCIS ≺ IC'
        """
        names, ranks = self.names(level), self.ranks(level)
        signs = ["≡" if same else "≺" for same in ranks[1:] == ranks[:-1]]
        return names[0] + "".join(f" {sign} {label}" for sign, label in zip(signs, names[1:], strict=True))


def _default_level_names(count: int) -> tuple[str, ...]:
    if count <= 2:
        return ("group", "class")[2 - count :]
    return (*(f"level{number + 1}" for number in range(count - 1)), "class")


def _validate(hierarchy: ClassHierarchy) -> None:
    if hierarchy.distance_by not in get_args(DistanceBy):
        raise HierarchyError(
            f"The distance of {hierarchy.name!r} must be 'index' (classes as listed) or 'rank' (steps of urgency), "
            f"found {hierarchy.distance_by!r}.{nearest(str(hierarchy.distance_by), get_args(DistanceBy))}"
        )
    if not hierarchy.levels:
        raise HierarchyError(f"The hierarchy {hierarchy.name!r} has no levels; expected at least one with two classes.")
    if len(hierarchy.level_names) != len(hierarchy.levels):
        raise HierarchyError(
            f"The hierarchy {hierarchy.name!r} has {len(hierarchy.levels)} levels but {len(hierarchy.level_names)} "
            f"level names ({listing(hierarchy.level_names)}); give one name per level, coarsest first."
        )
    if len(set(hierarchy.level_names)) != len(hierarchy.level_names):
        raise HierarchyError(f"Level names must differ, found {listing(hierarchy.level_names)}.")
    for number, level in enumerate(hierarchy.levels):
        _validate_level(hierarchy, number, level)
    if len(hierarchy.levels[-1]) < 2:
        raise HierarchyError(
            f"The hierarchy {hierarchy.name!r} has only the class {hierarchy.levels[-1].names[0]!r}; "
            "an order of urgency needs at least two classes."
        )
    _validate_labels(hierarchy)


def _validate_level(hierarchy: ClassHierarchy, number: int, level: Level) -> None:
    where = f"level {hierarchy.level_names[number]!r} of {hierarchy.name!r}"
    if not len(level.names) == len(level.parents) == len(level.ranks) or not level.names:
        raise HierarchyError(f"{where} needs as many parents and ranks as names, and at least one class.")
    for label in level.names:
        _validate_name(label, where)
        if level.names.count(label) > 1:
            raise HierarchyError(f"The class {label!r} appears twice in {where}; every class needs its own name.")
    expected = len(hierarchy.levels[number - 1]) if number else 1
    for label, parent in zip(level.names, level.parents, strict=True):
        if not 0 <= parent < expected:
            raise HierarchyError(f"The class {label!r} in {where} has no parent: index {parent} of {expected}.")
    childless = sorted(set(range(expected)) - set(level.parents))
    if childless:
        group = hierarchy.levels[number - 1].names[childless[0]]
        raise HierarchyError(f"The group {group!r} has no classes below it in {where}; every group needs at least one.")
    _validate_order(hierarchy, number, level, where)


def _validate_order(hierarchy: ClassHierarchy, number: int, level: Level, where: str) -> None:
    """Indices follow ranks, and the order of the classes follows the order of their parents."""
    for first in range(len(level) - 1):
        low, high = level.names[first], level.names[first + 1]
        if level.ranks[first] > level.ranks[first + 1]:
            raise HierarchyError(
                f"{low!r} (rank {level.ranks[first]}) is listed before {high!r} (rank {level.ranks[first + 1]}) in "
                f"{where}; list the least urgent class first."
            )
        above = hierarchy.levels[number - 1] if number else None
        parent_low, parent_high = level.parents[first], level.parents[first + 1]
        if above is None or parent_low == parent_high:
            continue
        if parent_low > parent_high:
            raise HierarchyError(
                f"{high!r} is listed after {low!r} in {where}, but its group {above.names[parent_high]!r} comes "
                f"before {above.names[parent_low]!r}; list the classes group by group."
            )
        tied, parents_tied = (
            level.ranks[first] == level.ranks[first + 1],
            above.ranks[parent_low] == above.ranks[parent_high],
        )
        if tied and not parents_tied:
            raise HierarchyError(
                f"The rank of {high!r} contradicts its group: {low!r} and {high!r} are equally urgent in {where}, but "
                f"{above.names[parent_high]!r} is more urgent than {above.names[parent_low]!r}. "
                "Classes may tie only inside one group, or across groups that tie themselves."
            )
        if parents_tied and not tied:
            raise HierarchyError(
                f"The groups {above.names[parent_low]!r} and {above.names[parent_high]!r} are equally urgent, but "
                f"{low!r} and {high!r} in {where} are not; classes of tied groups must all tie."
            )
    if number:
        _validate_tied_groups(hierarchy, number, level, where)


def _validate_tied_groups(hierarchy: ClassHierarchy, number: int, level: Level, where: str) -> None:
    above = hierarchy.levels[number - 1]
    for rank in set(above.ranks):
        tied = [index for index, other in enumerate(above.ranks) if other == rank]
        below = {level.ranks[i] for i, parent in enumerate(level.parents) if parent in tied}
        if len(tied) > 1 and len(below) > 1:
            raise HierarchyError(
                f"The groups {listing(above.names[i] for i in tied)} are equally urgent, but their classes in {where} "
                "are not; classes of tied groups must all tie."
            )


def _validate_name(label: Any, where: str) -> None:
    if not isinstance(label, str) or not label.strip():
        raise HierarchyError(f"A class in {where} has an empty name ({label!r}); every class needs a name.")
    if label != label.strip() or label != unicodedata.normalize("NFC", label):
        raise HierarchyError(
            f"The class name {label!r} in {where} has surrounding spaces or decomposed Unicode characters; "
            f"write it as {unicodedata.normalize('NFC', label.strip())!r}."
        )
    # Zero-width and direction marks; a line break is odd, but everyone sees it.
    hidden = [sign for sign in label if unicodedata.category(sign) == "Cf" and sign not in _JOINERS]
    if hidden:
        raise HierarchyError(
            f"The class name {label!a} in {where} has the invisible character {hidden[0]!a}, which makes it look like "
            f"another name; write it as {''.join(sign for sign in label if sign not in hidden)!r}."
        )


def _validate_labels(hierarchy: ClassHierarchy) -> None:
    known = {label for level in hierarchy.levels for label in level.names}
    for kind, names in (("display names", hierarchy.display_names), ("aliases", hierarchy.aliases)):
        for label in names:
            if label not in known:
                raise HierarchyError(
                    f"{kind} of {hierarchy.name!r} mention {label!r}, which is not a class.{nearest(label, known)}"
                )
    for level in hierarchy.levels:
        owner: dict[str, str] = {label: label for label in level.names}
        for label in level.names:
            for alias in hierarchy.aliases.get(label, ()):
                if not alias.strip():
                    raise HierarchyError(f"An alias of {label!r} is empty; a missing label must stay an error.")
                if owner.setdefault(alias, label) != label:
                    raise HierarchyError(
                        f"The alias {alias!r} of {label!r} already belongs to {owner[alias]!r}; "
                        "an alias names one class."
                    )
