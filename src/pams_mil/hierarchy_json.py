"""A class hierarchy as plain values, for checkpoints and certificates that must know their classes on their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pams_mil.errors import HierarchyError
from pams_mil.hierarchy import ClassHierarchy, Level


def hierarchy_to_json(hierarchy: ClassHierarchy) -> dict[str, Any]:
    """A class hierarchy as plain values."""
    content = dataclasses.asdict(hierarchy)
    if hierarchy.distance_by == "index":
        del content["distance_by"]  # as files of version 0.1.0 have it
    return {**content, "aliases": dict(hierarchy.aliases), "display_names": dict(hierarchy.display_names)}


def hierarchy_from_json(content: Mapping[str, Any]) -> ClassHierarchy:
    """The class hierarchy that `hierarchy_to_json` was given.

    >>> tree = ClassHierarchy.load("bracs")
    >>> hierarchy_from_json(hierarchy_to_json(tree)).digest == tree.digest
    True
    """
    try:
        return ClassHierarchy(
            name=content["name"],
            levels=tuple(
                Level(tuple(level["names"]), tuple(level["parents"]), tuple(level["ranks"]))
                for level in content["levels"]
            ),
            level_names=tuple(content["level_names"]),
            display_names=dict(content["display_names"]),
            aliases={label: tuple(others) for label, others in content["aliases"].items()},
            source=content["source"],
            distance_by=content.get("distance_by", "index"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise HierarchyError(f"The classes are not described as expected: {error!r}.") from error
