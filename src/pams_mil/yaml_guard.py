"""YAML that people write is small, flat and plain; anything else is refused before it is built.

Anchors can make a short text expand without end, tags can name types, and deep nesting exhausts the parser. None of
them has a place in a class file or a config.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MOST_CHARACTERS = 1 << 18
MOST_DEPTH = 32
MOST_EVENTS = 20_000


class UniqueKeys(yaml.constructor.BaseConstructor):
    """For loaders in which a key that is repeated is an error; it would silently drop the first value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping of keys that differ."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, (key, _) in enumerate(node.value):
            if key.value in keys[:place]:
                problem = f"the key {key.value!r} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep)


def read_text(path: Path, error: type[Exception]) -> str:
    """The text of a file that people write."""
    try:
        if path.stat().st_size > MOST_CHARACTERS:
            size = f"{path.stat().st_size:,} bytes; expected at most {MOST_CHARACTERS:,}"
            raise error(f"{path} is {size}. Is it the right file?")
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{path} is not UTF-8 text ({problem.reason}); save it as UTF-8.") from problem
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}.") from problem


def load_yaml(text: str, loader: type[Any], *, where: str, error: type[Exception]) -> Any:
    """What a YAML text holds, after `check_events`."""
    check_events(text, where=where, error=error)
    try:
        return loader(text).get_single_data()
    except yaml.YAMLError as problem:  # also several documents in one file
        raise error(f"{where} is not valid YAML: {problem}") from problem


def check_events(text: str, *, where: str, error: type[Exception]) -> None:
    """Read the events of a YAML text and refuse what is large, deep, anchored or tagged.

    >>> check_events("a: &x [1]", where="here", error=ValueError)
    Traceback (most recent call last):
    ValueError: here uses YAML anchors (& or *); write every value out, at line 1, column 4.
    """
    if len(text) > MOST_CHARACTERS:
        raise error(f"{where} is {len(text):,} characters; expected at most {MOST_CHARACTERS:,}. Is it the right file?")
    depth = 0
    try:
        # Events come one by one as the text is read; aliases are expanded only when nodes are composed from them.
        for number, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise error(f"{where} uses YAML anchors (& or *); write every value out, at {_at(event)}.")
            if getattr(event, "tag", None):
                raise error(f"{where} uses a YAML tag (!) at {_at(event)}; expected plain text, numbers and lists.")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise error(f"{where} is nested deeper than {MOST_DEPTH} at {_at(event)}.")
            if number > MOST_EVENTS:
                raise error(f"{where} has more than {MOST_EVENTS:,} entries. Is it the right file?")
    except (yaml.YAMLError, RecursionError) as problem:
        raise error(f"{where} is not valid YAML: {problem}") from problem


def _at(event: yaml.Event) -> str:
    mark = event.start_mark
    return "an unknown place" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
