"""What a class hierarchy may be: names, parents, ranks and findings that can be meant; all else is refused in words."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pams_mil.errors import HierarchyError, listing, nearest

if TYPE_CHECKING:
    from pams_mil.hierarchy import ClassHierarchy

DistanceBy = Literal["index", "rank"]  # distances count classes as listed, or steps of urgency
Findings = Literal["one", "several"]  # a slide's label is its most urgent class, or the set of all its findings
SEPARATOR = ";"
"""Between the findings of a label, as in `DCIS; UDH`."""
_JOINERS = "\u200c\u200d"  # some scripts are written with them


@dataclass(frozen=True)
class Level:
    """One level of the tree: class names, each class's parent index one level up, and its rank."""

    names: tuple[str, ...]
    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)


def check_hierarchy(hierarchy: ClassHierarchy) -> None:
    """Refuse a hierarchy that cannot be meant."""
    if hierarchy.distance_by not in get_args(DistanceBy):
        raise HierarchyError(
            f"The distance of {hierarchy.name!r} must be 'index' (classes as listed) or 'rank' (steps of urgency), "
            f"found {hierarchy.distance_by!r}.{nearest(str(hierarchy.distance_by), get_args(DistanceBy))}"
        )
    if hierarchy.findings not in get_args(Findings):
        raise HierarchyError(
            f"The findings of {hierarchy.name!r} must be 'one' (a slide has its most urgent class) or 'several' (all "
            f"that were found), found {hierarchy.findings!r}.{nearest(str(hierarchy.findings), get_args(Findings))}"
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
        where = f"level {hierarchy.level_names[number]!r} of {hierarchy.name!r}"
        check_level(level, hierarchy.levels[number - 1] if number else None, where)
    if len(hierarchy.levels[-1]) < 2:
        raise HierarchyError(
            f"The hierarchy {hierarchy.name!r} has only the class {hierarchy.levels[-1].names[0]!r}; "
            "an order of urgency needs at least two classes."
        )
    _validate_labels(hierarchy)
    _validate_findings(hierarchy)
    _validate_orders(hierarchy)


def _validate_orders(hierarchy: ClassHierarchy) -> None:
    classes = set(hierarchy.classes)
    for other in hierarchy.other_orders:
        unlike = sorted(classes.symmetric_difference(other.classes))
        if unlike:
            raise HierarchyError(
                f"The orders {hierarchy.name!r} and {other.name!r} are of different classes: only one of them has "
                f"{listing(unlike)}. Orders of urgency can be compared over the same classes alone."
            )
        if other.other_orders:
            raise HierarchyError(f"The order {other.name!r} has further orders itself; list all beside the first one.")
    if hierarchy.other_orders and "several" in (order.findings for order in hierarchy.orders):
        raise HierarchyError(
            f"{hierarchy.name!r} has several findings per slide, and several orders of urgency compare one class per "
            "slide. Give one order, or class files with 'findings: one'."
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
                    clash = f"The alias {alias!r} of {label!r} already belongs to {owner[alias]!r}"
                    raise HierarchyError(f"{clash}; an alias names one class.")


def _validate_findings(hierarchy: ClassHierarchy) -> None:
    names, nothing = hierarchy.classes, hierarchy.nothing
    if hierarchy.findings == "one":
        if nothing or hierarchy.weights:
            key = f"nothing: {nothing}" if nothing else "weights"
            raise HierarchyError(
                f"{hierarchy.name!r} names '{key}', which belongs to 'findings: several'; with one finding per slide "
                "every class excludes the others."
            )
        return
    if nothing and nothing not in names:
        raise HierarchyError(f"'nothing' of {hierarchy.name!r} is {nothing!r}, not a class.{nearest(nothing, names)}")
    if nothing and hierarchy.ranks()[names.index(nothing)] != 0:
        raise HierarchyError(
            f"'nothing' of {hierarchy.name!r} is {nothing!r}, but {names[0]!r} is less urgent; that nothing was found "
            "must be the least urgent of all."
        )
    for label, weight in hierarchy.weights.items():
        if label not in names or label == nothing:
            raise HierarchyError(
                f"'weights' of {hierarchy.name!r} mention {label!r}, which is not a finding.{nearest(label, names)}"
            )
        if not (math.isfinite(weight) and weight > 0):
            raise HierarchyError(
                f"The weight of {label!r} in {hierarchy.name!r} must be a number above 0: how many times as bad it is "
                f"to miss it as a finding of weight 1; found {weight!r}."
            )
    spelled = [name for level in hierarchy.levels for name in level.names if SEPARATOR in name]
    if spelled:
        raise HierarchyError(
            f"The class {spelled[0]!r} of {hierarchy.name!r} has {SEPARATOR!r} in its name, which separates findings."
        )


def check_level(level: Level, above: Level | None, where: str) -> None:
    """Refuse a level whose names, parents or order cannot be meant; `above` is the next coarser level."""
    if not len(level.names) == len(level.parents) == len(level.ranks) or not level.names:
        raise HierarchyError(f"{where} needs as many parents and ranks as names, and at least one class.")
    for label in level.names:
        _check_name(label, where)
        if level.names.count(label) > 1:
            raise HierarchyError(f"The class {label!r} appears twice in {where}; every class needs its own name.")
    groups = 1 if above is None else len(above)
    for label, parent in zip(level.names, level.parents, strict=True):
        if not 0 <= parent < groups:
            raise HierarchyError(f"The class {label!r} in {where} has no parent: index {parent} of {groups}.")
    childless = sorted(set(range(groups)) - set(level.parents))
    if above is not None and childless:
        group = above.names[childless[0]]
        raise HierarchyError(f"The group {group!r} has no classes below it in {where}; every group needs at least one.")
    _check_order(level, above, where)


def _check_order(level: Level, above: Level | None, where: str) -> None:
    """Indices follow ranks, which count from 0 without gaps, and the order of the classes that of their parents."""
    for (low, rank, parent), (high, next_rank, next_parent) in itertools.pairwise(
        zip(level.names, level.ranks, level.parents, strict=True)
    ):
        if rank > next_rank:
            raise HierarchyError(
                f"{low!r} (rank {rank}) is listed before {high!r} (rank {next_rank}) in {where}; "
                "list the least urgent class first."
            )
        if above is None or parent == next_parent:
            continue
        group, next_group = above.names[parent], above.names[next_parent]
        if parent > next_parent:
            raise HierarchyError(
                f"{high!r} is listed after {low!r} in {where}, but its group {next_group!r} comes before {group!r}; "
                "list the classes group by group."
            )
        if rank == next_rank and above.ranks[parent] != above.ranks[next_parent]:
            raise HierarchyError(
                f"The rank of {high!r} contradicts its group: {low!r} and {high!r} are equally urgent in {where}, but "
                f"{next_group!r} is more urgent than {group!r}. "
                "Classes may tie only inside one group, or across groups that tie themselves."
            )
    if sorted(set(level.ranks)) != list(range(len(set(level.ranks)))):
        raise HierarchyError(f"The ranks of {where} must count from 0 without gaps, found {list(level.ranks)}.")
    for rank in set(above.ranks if above else ()):
        tied = [index for index, other in enumerate(above.ranks if above else ()) if other == rank]
        below = {level.ranks[index] for index, parent in enumerate(level.parents) if parent in tied}
        if above and len(tied) > 1 and len(below) > 1:
            raise HierarchyError(
                f"The groups {listing(above.names[index] for index in tied)} are equally urgent, but their classes in "
                f"{where} are not; classes of tied groups must all tie."
            )


def _check_name(label: Any, where: str) -> None:
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


def tie_notes(hierarchy: ClassHierarchy) -> tuple[str, ...]:
    """Where the order in which tied classes are listed changes distances; two tied classes and no other are 1 apart."""
    notes = []
    for level in hierarchy.levels if hierarchy.distance_by == "index" else ():
        tied = [" ≡ ".join(group) for group in names_by_rank(level.names, level.ranks) if len(group) > 1]
        if tied and len(level) > 2:
            notes.append(
                f"The order in which {', '.join(tied)} are listed changes AsCC, AsMC and the loss, because "
                "distances are counted in classes. 'distance: rank' in the class file counts steps of urgency "
                "instead."
            )
    return tuple(notes)


def names_by_rank(names: Sequence[str], ranks: Iterable[int]) -> list[list[str]]:
    """The classes of every rank, least urgent first.

    >>> names_by_rank("abc", [0, 4, 4])
    [['a'], ['b', 'c']]
    """
    groups: dict[int, list[str]] = {}
    for name, rank in zip(names, ranks, strict=True):
        groups.setdefault(rank, []).append(name)
    return [groups[rank] for rank in sorted(groups)]


def several_in_one(label: str, name: str) -> str:
    """What is wrong with a set of findings where a slide has one class."""
    return (
        f"{label!r} names several findings, but the classes of {name!r} are one per slide, its most urgent one. Name "
        "that one, or train with a class file that says 'findings: several'; a run that was trained with one predicts "
        "one, and ignores the labels with --no-labels."
    )
