"""The class file: YAML that a pathologist can read and write, least urgent first.

    name: bracs
    classes:
      Benign:    [N, PB, UDH]
      Atypical:  [[FEA, ADH]]      # a nested list: equally urgent
      Malignant: [DCIS, IC]

`classes` is a mapping from group to classes, to any depth, or a flat list. Optional keys: `levels` (names of
the levels, coarsest first), `display` (class: name to show), `aliases` (class: other spellings),
`ranks` (class: whole number, an alternative to nested lists at the finest level), `distance` (`index`: distances count
classes as listed, as in the paper; `rank`: steps of urgency) and `source` (free text).

Every scalar is read as text, so classes called `No`, `0` or `1.0` keep their spelling. YAML anchors, tags and
very large or deeply nested files are refused before anything is expanded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, cast

import yaml

from pams_mil.errors import HierarchyError, listing, nearest
from pams_mil.hierarchy import ClassHierarchy, Level
from pams_mil.yaml_guard import MOST_CHARACTERS, check_events

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from pams_mil.hierarchy import DistanceBy

KEYS = ("name", "classes", "levels", "display", "aliases", "ranks", "distance", "source")


@dataclass(frozen=True)
class _Entry:
    """A class or group while reading: its name, what is below it, and whether it ties with its predecessor."""

    name: str
    below: list[_Entry]
    tied: bool


def presets() -> tuple[str, ...]:
    """The names of the hierarchies that come with PAMS."""
    return tuple(sorted(item.name[:-5] for item in _preset_folder().iterdir() if item.name.endswith(".yaml")))


def load(name_or_path: str | Path) -> ClassHierarchy:
    """A preset by name, or a class file by path."""
    text = str(name_or_path)
    # A preset wins over a file of its name; ./bracs is the file.
    if text in presets():
        return parse((_preset_folder() / f"{text}.yaml").read_text("utf-8"), where=f"the preset {text!r}")
    path = Path(name_or_path)
    if not _exists(path):
        raise HierarchyError(
            f"There is neither a preset nor a file called {text!r}.{nearest(text, presets())} "
            f"Presets: {listing(presets())}. 'pams classes init' writes a template for your own."
        )
    if not path.is_file():
        raise HierarchyError(f"{path} is not a file; expected a YAML class file.")
    if path.stat().st_size > MOST_CHARACTERS:
        raise HierarchyError(
            f"{path} is {path.stat().st_size:,} bytes; expected at most {MOST_CHARACTERS:,}. Is it the right file?"
        )
    try:
        content = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HierarchyError(f"{path} is not UTF-8 text ({error.reason}); save the class file as UTF-8.") from error
    except OSError as error:
        raise HierarchyError(f"{path} cannot be read: {error.strerror or error}.") from error
    return parse(content, where=str(path))


def parse(text: str, *, where: str = "the class file") -> ClassHierarchy:
    r"""A hierarchy from the text of a class file.

    >>> parse("name: demo\nclasses: [low, [mid, other], high]").order()
    'low ≺ mid ≡ other ≺ high'
    """
    root = _compose(text, where)
    if not isinstance(root, yaml.MappingNode):
        raise HierarchyError(f"{where} must be a YAML mapping with the keys 'name' and 'classes', found {_kind(root)}.")
    fields = dict(_items(root, where))
    for key in fields:
        if key not in KEYS:
            raise HierarchyError(
                f"{where} has the unknown key {key!r}.{nearest(key, KEYS)} Known keys: {listing(KEYS)}."
            )
    if "classes" not in fields:
        raise HierarchyError(f"{where} has no 'classes'; expected a list, or a mapping from group to classes.")
    entries = _entries(fields["classes"], "'classes'", where)
    levels = _levels(entries, where)
    if "ranks" in fields:
        levels = [*levels[:-1], _ranked(levels[-1], fields["ranks"], where)]

    def text_of(key: str, default: str) -> str:
        return _scalar(fields[key], f"{key!r} in {where}") if key in fields else default

    return ClassHierarchy(
        name=text_of("name", Path(where).stem),
        levels=tuple(levels),
        level_names=tuple(_texts(fields["levels"], f"'levels' in {where}")) if "levels" in fields else (),
        display_names=_text_map(fields.get("display"), f"'display' in {where}"),
        aliases=_alias_map(fields.get("aliases"), f"'aliases' in {where}"),
        source=text_of("source", ""),
        distance_by=cast("DistanceBy", text_of("distance", "index")),
    )


def _preset_folder() -> Traversable:
    return resources.files("pams_mil") / "hierarchies"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have, such as the text of a class file
        return False


def _compose(text: str, where: str) -> yaml.Node | None:
    """The YAML node tree, once its events have shown that it is small, flat enough and free of anchors and tags."""
    check_events(text, where=where, error=HierarchyError)
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:  # several documents in one file
        raise HierarchyError(f"{where} is not valid YAML: {error}") from error
    return root


def _entries(node: yaml.Node, group: str, where: str) -> list[_Entry]:
    """The children written at a node: a mapping of groups, or a list with ties as nested lists."""
    if isinstance(node, yaml.MappingNode):
        found = [_Entry(name, _entries(value, repr(name), where), False) for name, value in _items(node, where)]
    elif isinstance(node, yaml.SequenceNode):
        found = [entry for item in node.value for entry in _listed(item, where)]
    else:
        raise HierarchyError(
            f"{where}: expected a list of classes below {group} at {_at(node)}, found {_kind(node)}; "
            "write [first, second], least urgent first."
        )
    if not found:
        raise HierarchyError(f"{where}: {group} is empty at {_at(node)}; every group needs at least one class.")
    return found


def _listed(item: yaml.Node, where: str) -> Iterator[_Entry]:
    if isinstance(item, yaml.SequenceNode):
        tie = [entry for part in item.value for entry in _listed(part, where)]
        if not tie or any(isinstance(part, yaml.SequenceNode) for part in item.value):
            raise HierarchyError(f"{where}: a tie at {_at(item)} must be a plain list of classes, not empty or nested.")
        yield from (_Entry(entry.name, entry.below, position > 0) for position, entry in enumerate(tie))
    elif isinstance(item, yaml.MappingNode):
        yield from _entries(item, "a group", where)
    else:
        yield _Entry(_scalar(item, f"a class in {where}"), [], False)


def _levels(entries: list[_Entry], where: str) -> list[Level]:
    """One Level per depth of the tree; all branches must be equally deep."""
    levels: list[Level] = []
    current = [(0, entries)]
    while current:
        names: list[str] = []
        parents: list[int] = []
        ranks: list[int] = []
        below: list[tuple[int, list[_Entry]]] = []
        previous_parent_rank = None
        for parent, children in current:
            for position, entry in enumerate(children):
                parent_rank = levels[-1].ranks[parent] if levels else 0
                # The first class of a group ties with the class before it exactly where the two groups tie.
                tied = entry.tied if position else parent_rank == previous_parent_rank
                ranks.append(ranks[-1] + (not tied) if ranks else 0)
                previous_parent_rank = parent_rank
                below.append((len(names), entry.below))
                names.append(entry.name)
                parents.append(parent)
        levels.append(Level(tuple(names), tuple(parents), tuple(ranks)))
        _check_depth(levels[-1], below, where)
        current = below if below[0][1] else []
    return levels


def _check_depth(level: Level, below: list[tuple[int, list[_Entry]]], where: str) -> None:
    deep = [index for index, children in below if children]
    flat = [index for index, children in below if not children]
    if deep and flat:
        raise HierarchyError(
            f"{where} mixes depths: {level.names[deep[0]]!r} has classes below it, {level.names[flat[0]]!r} has none. "
            f"Give every branch the same depth, e.g. {level.names[flat[0]]}: [{level.names[flat[0]]}]."
        )


def _ranked(level: Level, node: yaml.Node, where: str) -> Level:
    given = _text_map(node, f"'ranks' in {where}")
    for label in given:
        if label not in level.names:
            raise HierarchyError(f"'ranks' in {where} mention {label!r}, not a class.{nearest(label, level.names)}")
    missing = [label for label in level.names if label not in given]
    if missing:
        raise HierarchyError(
            f"'ranks' in {where} must rank every class of the finest level; missing {listing(missing)}."
        )
    try:
        ranks = tuple(int(given[label]) for label in level.names)
    except ValueError as error:
        raise HierarchyError(f"'ranks' in {where} must be whole numbers, higher = more urgent: {error}.") from error
    return Level(level.names, level.parents, ranks)


def _items(node: yaml.MappingNode, where: str) -> Iterator[tuple[str, yaml.Node]]:
    seen: set[str] = set()
    for key_node, value in node.value:
        key = _scalar(key_node, f"a key in {where}")
        if key in seen:
            raise HierarchyError(f"{where} has {key!r} twice, again at {_at(key_node)}; every name must be its own.")
        seen.add(key)
        yield key, value


def _scalar(node: yaml.Node, what: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise HierarchyError(f"{what} must be text, found {_kind(node)} at {_at(node)}.")
    return str(node.value)


def _texts(node: yaml.Node, what: str) -> list[str]:
    if isinstance(node, yaml.ScalarNode):
        return [str(node.value)]
    if not isinstance(node, yaml.SequenceNode):
        raise HierarchyError(f"{what} must be a list of names, found {_kind(node)}.")
    return [_scalar(item, what) for item in node.value]


def _text_map(node: yaml.Node | None, what: str) -> dict[str, str]:
    return {key: _scalar(value, what) for key, value in _map_items(node, what)}


def _alias_map(node: yaml.Node | None, what: str) -> dict[str, tuple[str, ...]]:
    return {key: tuple(_texts(value, what)) for key, value in _map_items(node, what)}


def _map_items(node: yaml.Node | None, what: str) -> Iterator[tuple[str, yaml.Node]]:
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        raise HierarchyError(f"{what} must be a mapping from class to text, found {_kind(node)}.")
    yield from _items(node, what)


def _kind(node: yaml.Node | None) -> str:
    kinds = {yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value"}
    return "nothing" if node is None else kinds.get(type(node), "something else")


def _at(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}" if node.start_mark is not None else "an unknown line"
