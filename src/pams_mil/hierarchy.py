"""Class hierarchies: which classes there are, which is more urgent, and which belong together.

Everything else is derived from this, and class order never comes from data. `as_hierarchy` is the only way in which a
name or file becomes a hierarchy.

Conventions, used everywhere:
    * Levels run from 0 (coarsest) to H-1 (finest); the paper's h is level + 1. Level -1 is the finest.
    * A class index grows with urgency. Classes of equal rank are equally urgent ("tied").
    * `outranks(level)[i, j]` is true when class i is strictly more urgent than class j.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.arrays import Array, Bools, Ints
from pams_mil.class_checks import SEPARATOR, DistanceBy, Findings, Level, check_hierarchy, several_in_one, tie_notes
from pams_mil.class_file import class_fields, class_levels, read_class_file
from pams_mil.errors import HierarchyError, LabelError, ParameterError, listing, nearest, require_fields


@dataclass(frozen=True, repr=False)
class ClassHierarchy:
    """A validated tree of classes with an order of urgency; ill-formed ones cannot be constructed.

    >>> hierarchy = ClassHierarchy.load("bracs")
    >>> len(hierarchy), hierarchy.names(0), list(hierarchy)
    (7, ('Benign', 'Atypical', 'Malignant'), ['N', 'PB', 'UDH', 'FEA', 'ADH', 'DCIS', 'IC'])
    >>> bool(hierarchy.outranks()[hierarchy.index("ADH"), hierarchy.index("FEA")])  # tied
    False
    >>> hierarchy.lift([0, 4, 6], level=0).tolist()
    [0, 1, 2]
    >>> ClassHierarchy.of({"low": ["a"], "high": [["b", "c"]]}, name="demo")
    demo
    ├─   low
    │  └─   a
    └─ ≺ high
       ├─ ≺ b
       └─ ≡ c
    """

    name: str
    levels: tuple[Level, ...]
    level_names: tuple[str, ...] = ()
    display_names: Mapping[str, str] = field(default_factory=dict, hash=False)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    source: str = ""
    distance_by: DistanceBy = "index"
    findings: Findings = "one"
    nothing: str = ""
    """With several findings: the class that means "no finding" and excludes all others; empty: there is none."""
    weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    """With several findings: how many times as bad it is to miss each; 1 for those that are not named."""
    other_orders: tuple[ClassHierarchy, ...] = ()
    """Further orders of the same classes, where people dispute the urgency; indices and ranks are of this one."""

    def __post_init__(self) -> None:
        if not self.level_names:
            coarse = [f"level{number}" for number in range(1, len(self.levels))]
            object.__setattr__(self, "level_names", (*(["group"] if len(coarse) == 1 else coarse), "class"))
        check_hierarchy(self)

    @classmethod
    def load(cls, name_or_path: str | Path | Sequence[str | Path]) -> ClassHierarchy:
        """A preset by name (`bracs`), or a class file by path; several of them are orders of the same classes."""
        if isinstance(name_or_path, (str, Path)):
            return as_hierarchy(name_or_path)
        first, *others = map(as_hierarchy, name_or_path)
        return first.with_orders(*others)

    def with_orders(self, *others: ClassHierarchy) -> ClassHierarchy:
        """This hierarchy with exactly these further orders of its classes."""
        return dataclasses.replace(self, other_orders=others)

    @classmethod
    def of(
        cls, classes: Sequence[Any] | Mapping[str, Any], *, name: str = "classes", distance_by: DistanceBy = "index"
    ) -> ClassHierarchy:
        """Classes as a class file has them: least urgent first, a nested list is a tie, a mapping has groups.

        >>> ClassHierarchy.of(["benign", ["FEA", "ADH"], "malignant"]).order()
        'benign ≺ FEA ≡ ADH ≺ malignant'
        """
        return cls(name=name, levels=class_levels(classes, "the class list"), distance_by=distance_by)

    @classmethod
    def flat(
        cls,
        names: Sequence[str | Sequence[str]],
        *,
        name: str = "classes",
        distance_by: DistanceBy = "index",
        findings: Findings = "one",
        nothing: str = "",
        weights: Mapping[str, float] | None = None,
    ) -> ClassHierarchy:
        """One level, least urgent first; a nested list is a tie.

        >>> ClassHierarchy.flat(["low", ["mid", "other"], "high"]).ranks().tolist()
        [0, 1, 1, 2]
        """
        levels = class_levels(list(names), "the class list")
        return cls(
            name, levels, distance_by=distance_by, findings=findings, nothing=nothing, weights=dict(weights or {})
        )

    def __len__(self) -> int:
        return self.num_classes()

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the finest classes, least urgent first."""
        return self.levels[-1].names

    @property
    def orders(self) -> tuple[ClassHierarchy, ...]:
        """Every order of the classes by itself, this one first."""
        return (self.with_orders(), *self.other_orders) if self.other_orders else (self,)

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
        """Urgency of each class at a level, counted from 0 without gaps; equal ranks mean equally urgent."""
        return np.asarray(self.levels[self.level(level)].ranks, dtype=np.int64)

    def lift(self, target: npt.ArrayLike, level: int, *, from_level: int = -1) -> Ints:
        """Class indices at `from_level` translated to their ancestors at the coarser `level`."""
        indices = np.asarray(target)
        if indices.size and not np.issubdtype(indices.dtype, np.integer):  # refused, not rounded
            raise ParameterError(f"Class indices must be whole numbers, found {indices.dtype}.")
        lifted: Ints = indices.astype(np.int64)
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

    def summed(self, probabilities: Array, level: int) -> Array:
        """Probabilities [n, c] of the finest classes as those of a coarser level: every class has its members' sum.

        >>> ClassHierarchy.load("bracs").summed(np.full((1, 7), 1 / 7), 0).round(3).tolist()
        [[0.429, 0.286, 0.286]]
        """
        coarse: Array = probabilities @ (self.groups(level)[:, None] == np.arange(self.num_classes(level)))
        return coarse

    def outranks(self, level: int = -1) -> Bools:
        """`[i, j]` is true when class i is strictly more urgent than class j."""
        ranks = self.ranks(level)
        return ranks[:, None] > ranks[None, :]

    def distance(self, level: int = -1) -> Ints:
        """How far two classes are apart, at least 1 off the diagonal.

        By index: |i − j|, also across ties. By rank: the steps of urgency between them, 1 between tied classes.

        >>> for by in ("index", "rank"):
        ...     ClassHierarchy.flat(["a", ["b", "c"], "d"], distance_by=by).distance()[3].tolist()
        [3, 2, 1, 0]
        [2, 1, 1, 0]
        """
        size = self.num_classes(level)
        place = np.arange(size, dtype=np.int64)
        if self.distance_by == "rank":
            place = self.ranks(level)
        # By rank, tied classes would be 0 apart, and AsMC would divide by 0.
        distance: Ints = np.maximum(np.abs(place[:, None] - place[None, :]), 1 - np.eye(size, dtype=np.int64))
        return distance

    def tie_notes(self) -> tuple[str, ...]:
        """Where the order in which tied classes are listed changes distances, and so scores and loss; one per level."""
        return tie_notes(self)

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
        """The class index of a label, matched exactly or through a declared alias, never guessed.

        Of a set of findings it is that of the most urgent one; of equally urgent ones, of the first that is listed.
        """
        if self.findings == "several" and SEPARATOR in label:
            members = self.set_of(label, level)
            ranks = self.ranks(level)
            return max(members, key=lambda member: (ranks[member], -member))
        return self._index(label, level)

    def set_of(self, label: str, level: int = -1) -> tuple[int, ...]:
        """The class indices of a label that may name several findings, each once, least urgent first.

        >>> tree = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N")
        >>> tree.set_of("DCIS; UDH"), tree.set_of("N"), tree.index("UDH; DCIS")
        ((1, 2), (0,), 2)
        """
        parts = [name.strip() for name in label.split(SEPARATOR)] if self.findings == "several" else [label]
        indices = sorted({self._index(name, level) for name in parts if name or len(parts) == 1})
        if not indices:
            raise LabelError(f"{label!r} names no finding; expected names of classes with {SEPARATOR!r} between them.")
        if self.nothing in self.names(level) and len(indices) > 1 and self._index(self.nothing, level) in indices:
            raise LabelError(
                f"{label!r} names {self.nothing!r}, which means that nothing was found, together with a finding. "
                "Name the findings alone, or 'nothing' alone."
            )
        return tuple(indices)

    @cached_property
    def finding_classes(self) -> Ints:
        """Indices of the finest classes that are findings: all but the one that means that nothing was found."""
        return np.array([index for index, name in enumerate(self.classes) if name != self.nothing], dtype=np.int64)

    @cached_property
    def finding_weights(self) -> Array:
        """How many times as bad it is to miss each finding, [K]."""
        return np.array([self.weights.get(self.classes[index], 1.0) for index in self.finding_classes.tolist()])

    def finding_matrix(self, labels: Iterable[str]) -> Bools:
        """Which findings each label names, [n, K]; a row without any is "nothing".

        >>> tree = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N")
        >>> tree.finding_matrix(["N", "UDH", "DCIS; UDH"]).astype(int).tolist()
        [[0, 0], [1, 0], [1, 1]]
        """
        rows = [np.isin(self.finding_classes, self.set_of(label)) for label in labels]
        return np.reshape(rows, (len(rows), len(self.finding_classes))).astype(bool)

    def _index(self, label: str, level: int) -> int:
        lookup = self._lookups[self.level(level)]
        try:
            return lookup[label]
        except KeyError:
            known = self.names(level)
            if self.findings == "one" and SEPARATOR in label:
                raise LabelError(several_in_one(label, self.name)) from None
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
        if self.distance_by != "index":
            content.append({"distance": self.distance_by})
        if self.findings != "one":
            content.append({"findings": self.findings, "nothing": self.nothing})
        if (self.finding_weights != 1.0).any():
            content.append({"weights": self.finding_weights.tolist()})
        canonical = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def order(self, level: int = -1) -> str:
        """The classes with the signs of their order.

        >>> ClassHierarchy.load("bracs").order()
        'N ≺ PB ≺ UDH ≺ FEA ≡ ADH ≺ DCIS ≺ IC'
        """
        return "".join(map("".join, zip(self._signs(self.level(level)), self.names(level), strict=True)))

    def tree(self) -> str:
        """The classes as a tree of text, with the signs of their order and the names to show people."""

        def branches(level: int, parent: int, indent: str) -> Iterator[str]:
            members = [child for child, above in enumerate(self.levels[level].parents) if above == parent]
            for child in members:
                label, last = self.levels[level].names[child], child == members[-1]
                shown = "" if self.display(label) == label else f"  {self.display(label)}"
                sign = self._signs(level)[child].strip() or " "
                yield f"{indent}{'└─' if last else '├─'} {sign} {label}{shown}"
                if level + 1 < self.num_levels:
                    yield from branches(level + 1, child, indent + ("   " if last else "│  "))

        return "\n".join([self.name, *branches(0, 0, "")])

    __repr__ = tree

    def _signs(self, level: int) -> list[str]:
        ranks = self.levels[level].ranks
        return ["", *(" ≡ " if rank == before else " ≺ " for before, rank in itertools.pairwise(ranks))]


def as_hierarchy(value: ClassHierarchy | str | Path | Sequence[Any] | Mapping[str, Any]) -> ClassHierarchy:
    """The hierarchy that a preset's name, a class file, nested lists or a mapping of groups stands for.

    >>> as_hierarchy("isup").order() == as_hierarchy(["0", "1", "2", "3", "4", "5"]).order()
    True
    """
    if isinstance(value, ClassHierarchy):
        return value
    if isinstance(value, (str, Path)):
        return parse(*read_class_file(value))
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, (Sequence, Mapping)):
        return ClassHierarchy.of(value)
    raise HierarchyError(
        f"Expected a ClassHierarchy, a preset, a class file, nested lists or groups, found {type(value).__name__}."
    )


def parse(text: str, where: str = "the class file") -> ClassHierarchy:
    r"""A hierarchy from the text of a class file.

    >>> parse("name: demo\nclasses: [low, [mid, other], high]").order()
    'low ≺ mid ≡ other ≺ high'
    """
    return ClassHierarchy(**class_fields(text, where))


def hierarchy_to_json(hierarchy: ClassHierarchy) -> dict[str, Any]:
    """A class hierarchy as plain values, for files that must know their classes on their own."""
    return dataclasses.asdict(hierarchy)


def hierarchy_from_json(content: Mapping[str, Any]) -> ClassHierarchy:
    """The class hierarchy that `hierarchy_to_json` wrote; for readers of files inside of `errors.stored_format`.

    >>> bracs = ClassHierarchy.load("bracs")
    >>> hierarchy_from_json(hierarchy_to_json(bracs)).digest == bracs.digest
    True
    """
    names = [one.name for one in dataclasses.fields(ClassHierarchy)]
    require_fields(content, names, "classes.", optional=["digest"])
    for level in content["levels"]:
        require_fields(level, [one.name for one in dataclasses.fields(Level)], "classes.levels.")
    fields: dict[str, Any] = {name: content[name] for name in names}
    fields["levels"] = tuple(Level(**{key: tuple(row) for key, row in level.items()}) for level in content["levels"])
    fields["aliases"] = {label: tuple(others) for label, others in content["aliases"].items()}
    others = tuple(map(hierarchy_from_json, content["other_orders"]))
    return ClassHierarchy(**{**fields, "level_names": tuple(content["level_names"]), "other_orders": others})
