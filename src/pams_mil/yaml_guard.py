"""YAML that people write is small, flat and plain; anything else is refused before it is built.

Anchors can make a short text expand without end, tags can name types, and deep nesting exhausts the parser. None of
them has a place in a class file or a config.
"""

from __future__ import annotations

import yaml

MOST_CHARACTERS = 1 << 18
MOST_DEPTH = 32
MOST_EVENTS = 20_000


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
