"""Equally urgent classes: which may be declared so, and where the order in which they are listed still counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pams_mil.errors import HierarchyError, listing, nearest


def tie_of(names: list[str], ties: Sequence[Sequence[str]]) -> dict[str, int]:
    """The number of the tie that a class is in; ties must name neighbors, and each class once."""
    group: dict[str, int] = {}
    for number, tie in enumerate(ties):
        for label in tie:
            if label not in names:
                raise HierarchyError(
                    f"The tie {listing(tie)} names {label!r}, not a class.{nearest(label, names)} "
                    f"Classes: {listing(names, most=30)}."
                )
            if label in group:
                raise HierarchyError(f"The class {label!r} is named twice in ties; each class is in one tie at most.")
            group[label] = number
        places = sorted(names.index(label) for label in tie)
        if places and places != list(range(places[0], places[0] + len(places))):
            raise HierarchyError(
                f"The classes {listing(tie)} are to be equally urgent, but others are listed between them; "
                "list tied classes next to one another."
            )
    return group


def names_by_rank(names: Sequence[str], ranks: Iterable[int]) -> list[list[str]]:
    """The classes of every rank, least urgent first.

    >>> names_by_rank("abc", [0, 4, 4])
    [['a'], ['b', 'c']]
    """
    found: dict[int, list[str]] = {}
    for name, rank in zip(names, ranks, strict=True):
        found.setdefault(rank, []).append(name)
    return [found[rank] for rank in sorted(found)]


def order_note(names: Sequence[str], ranks: Sequence[int]) -> str:
    """What to say where distances by index depend on how tied classes are listed; nothing where they do not.

    Two tied classes and no other are at distance 1 either way round.

    >>> order_note("ab", [0, 0]), order_note("abc", [0, 0, 1])[:38]
    ('', 'The order in which a ≡ b are listed ch')
    """
    tied = [group for group in names_by_rank(names, ranks) if len(group) > 1]
    if not tied or len(names) <= 2:
        return ""
    return (
        f"The order in which {', '.join(' ≡ '.join(group) for group in tied)} are listed changes AsCC, AsMC and the "
        "loss, because distances are counted in classes. 'distance: rank' in the class file counts steps of urgency "
        "instead."
    )
