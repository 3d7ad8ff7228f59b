"""The class file: YAML that a pathologist can read and write, least urgent first.

    name: bracs
    classes:
      Benign:    [N, PB, UDH]
      Atypical:  [[FEA, ADH]]      # a nested list: equally urgent
      Malignant: [DCIS, IC]

`classes` is a mapping from group to classes, to any depth, or a flat list. Optional keys: `levels` (names of
the levels, coarsest first), `display` (class: name to show), `aliases` (class: other spellings), `distance` (`index`:
distances count classes as listed, as in the paper; `rank`: steps of urgency), `findings` (`one`: a slide's label is
its most urgent class; `several`: the set of all that were found, `DCIS; UDH`), `nothing` (with several: the class that
means that nothing was found), `weights` (with several: finding: how many times as bad it is to miss it, 1 unless given)
and `source` (free text).

Hundreds of classes are easier to keep in a table: a `.csv` with the columns `class` and `rank` (a whole number, higher
is more urgent; equal ranks are equally urgent) and, optionally, `group` and `display`. Rows may be in any order;
distances then count steps of urgency.

Every scalar is read as text, so classes called `No`, `0` or `1.0` keep their spelling. YAML anchors, tags and
very large or deeply nested files are refused before anything is expanded.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pams_mil.class_checks import Level, names_by_rank
from pams_mil.errors import HierarchyError, listing, nearest
from pams_mil.yaml_guard import UniqueKeys, load_yaml, read_text

if TYPE_CHECKING:
    from importlib.abc import Traversable

KEYS = (
    "name", "classes", "levels", "display", "aliases", "distance", "findings", "nothing", "weights", "source",
)  # fmt: skip
TABLE_COLUMNS = ("class", "group", "rank", "display")
PRESET = "preset:"
"""Before a name: the preset, even where a file has that name, too."""


class _TextLoader(UniqueKeys, yaml.BaseLoader):
    """YAML in which every scalar is text."""


@dataclass(frozen=True)
class _Entry:
    """A class or group while reading: its name, what is below it, and whether it ties with its predecessor."""

    name: str
    below: list[_Entry]
    tied: bool


def presets() -> tuple[str, ...]:
    """The names of the hierarchies that come with PAMS."""
    return tuple(sorted(item.name[:-5] for item in _preset_folder().iterdir() if item.name.endswith(".yaml")))


def locate_classes(name_or_path: str | Path) -> str:
    """What names one hierarchy from any folder: a preset's name, or the absolute path of a class file.

    A `Path` is always a file. A name that is both a preset and a file here is refused; one that is neither stays as it
    is, for whoever reads it.
    """
    text = str(name_or_path)
    if not isinstance(name_or_path, Path):
        name = text.removeprefix(PRESET)
        if name in presets():
            # A name that is typed in one folder and read in another must not change its meaning.
            if name == text and Path(name).is_file():
                raise HierarchyError(
                    f"{name!r} is both a preset and a file in this folder. "
                    f"Write {PRESET}{name} for the preset, or ./{name} for the file."
                )
            return text
    return str(Path(text).resolve()) if _exists(Path(text)) else text


def read_class_file(name_or_path: str | Path) -> tuple[str, str]:
    """The text of a preset or class file, and what to call it in messages."""
    text = locate_classes(name_or_path)
    if (name := text.removeprefix(PRESET)) in presets() and not isinstance(name_or_path, Path):
        return (_preset_folder() / f"{name}.yaml").read_text("utf-8"), f"the preset {name!r}"
    path = Path(name_or_path)
    if not _exists(path):
        raise HierarchyError(
            f"There is neither a preset nor a file called {text!r}.{nearest(text, presets())} "
            f"Presets: {listing(presets())}. 'pams classes init' writes a template for your own."
        )
    if not path.is_file():
        raise HierarchyError(f"{path} is not a file; expected a class file, YAML or CSV.")
    return read_text(path, HierarchyError), str(path)


def class_fields(text: str, where: str) -> dict[str, Any]:
    """The fields of a class file as the arguments of `ClassHierarchy`."""
    if where.lower().endswith(".csv"):
        return table_fields(text, where)
    fields = load_yaml(text, _TextLoader, where=where, error=HierarchyError)
    if not isinstance(fields, dict):
        raise HierarchyError(
            f"{where} must be a YAML mapping with the keys 'name' and 'classes', found {_kind(fields)}."
        )
    for key in fields:
        if key not in KEYS:
            raise HierarchyError(
                f"{where} has the unknown key {key!r}.{nearest(key, KEYS)} Known keys: {listing(KEYS)}."
            )
    if "classes" not in fields:
        raise HierarchyError(
            f"{where} has no 'classes'; expected a list, or a mapping from group to classes. In a file of "
            "'pams classes init --from' they are comments: order them, least urgent first, then remove the '# '."
        )
    return {
        "name": _text(fields.get("name", Path(where).stem), f"'name' in {where}"),
        "levels": class_levels(fields["classes"], where),
        "level_names": _texts(fields.get("levels", []), f"'levels' in {where}"),
        "display_names": _mapping(fields, "display", where),
        "aliases": {
            label: _texts(names, f"'aliases' in {where}")
            for label, names in _mapping(fields, "aliases", where, lists=True).items()
        },
        "source": _text(fields.get("source", ""), f"'source' in {where}"),
        "distance_by": _text(fields.get("distance", "index"), f"'distance' in {where}"),
        "findings": _text(fields.get("findings", "one"), f"'findings' in {where}"),
        "nothing": _text(fields.get("nothing", ""), f"'nothing' in {where}"),
        "weights": {label: _number(text) for label, text in _mapping(fields, "weights", where).items()},
    }


def table_fields(text: str, where: str) -> dict[str, Any]:
    r"""The fields of a table of classes as the arguments of `ClassHierarchy`.

    >>> fields = table_fields("class,group,rank\nIC,bad,5\nN,good,1\nPB,good,1\n", "here.csv")
    >>> [(level.names, level.ranks) for level in fields["levels"]]
    [(('good', 'bad'), (0, 1)), (('N', 'PB', 'IC'), (0, 0, 1))]
    """
    header = text.partition("\n")[0]
    rows = list(csv.DictReader(io.StringIO(text), delimiter=";" if ";" in header and "," not in header else ","))
    columns = tuple(rows[0]) if rows else ()
    if not {"class", "rank"} <= set(columns) or set(columns) - set(TABLE_COLUMNS):
        raise HierarchyError(
            f"{where} must have the columns 'class' and 'rank', and may have 'group' and 'display'; found "
            f"{listing(columns) if columns else 'no rows'}."
        )
    ranks: dict[str, int] = {}
    for number, row in enumerate(rows, 2):
        name = row["class"] or ""
        if not name or not re.fullmatch(r"[+-]?[0-9]{1,9}", (row["rank"] or "").strip()):
            raise HierarchyError(
                f"Row {number} of {where} must name a class and a rank, a whole number that is higher for more urgent "
                f"classes; found {name!r} and {row['rank']!r}."
            )
        if name in ranks:
            raise HierarchyError(f"{where} has the class {name!r} twice, again in row {number}.")
        ranks[name] = int(row["rank"])
    group_of = {row["class"]: row.get("group") or "" for row in rows}
    without = [name for name, group in group_of.items() if not group]
    if "group" in columns and without:
        raise HierarchyError(f"{where} names no group for {listing(without)}; give every class one, or none at all.")
    members: dict[str, list[str]] = {}
    for name in sorted(ranks, key=ranks.__getitem__):
        members.setdefault(group_of[name], []).append(name)
    for (low, below), (high, above) in pairwise(members.items()):
        if ranks[above[0]] <= ranks[below[-1]]:
            raise HierarchyError(
                f"The groups {low!r} and {high!r} in {where} contradict the ranks: {below[-1]!r} of {low!r} has rank "
                f"{ranks[below[-1]]}, {above[0]!r} of {high!r} {ranks[above[0]]}. All classes of a group must be less "
                "urgent than all of the next; change ranks, or regroup."
            )
    tied = {group: list(names_by_rank(names, [ranks[one] for one in names])) for group, names in members.items()}
    return {
        "name": Path(where).stem,
        "levels": class_levels(tied if "group" in columns else tied[""], where),
        "display_names": {row["class"]: row["display"] for row in rows if row.get("display")},
        "distance_by": "rank",
    }


def class_levels(classes: object, where: str) -> tuple[Level, ...]:
    """One level per depth of nested lists and mappings of classes; all branches must be equally deep.

    >>> [level.names for level in class_levels({"low": ["a"], "high": [["b", "c"], "d"]}, "here")]
    [('low', 'high'), ('a', 'b', 'c', 'd')]
    """
    levels: list[Level] = []
    current = [(0, _entries(classes, "'classes'", where))]
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
        deep = [index for index, children in below if children]
        flat = [index for index, children in below if not children]
        if deep and flat:
            raise HierarchyError(
                f"{where} mixes depths: {names[deep[0]]!r} has classes below it, {names[flat[0]]!r} has none. "
                f"Give every branch the same depth, e.g. {names[flat[0]]}: [{names[flat[0]]}]."
            )
        current = below if deep else []
    return tuple(levels)


def _preset_folder() -> Traversable:
    return resources.files("pams_mil") / "hierarchies"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have, such as the text of a class file
        return False


def _entries(classes: Any, group: str, where: str) -> list[_Entry]:
    """The children of a group: a mapping of groups, or a list with ties as nested lists."""
    if isinstance(classes, Mapping):
        entries = [_Entry(name, _entries(below, repr(name), where), False) for name, below in classes.items()]
    elif _is_list(classes):
        entries = [entry for item in classes for entry in _listed(item, where)]
    else:
        raise HierarchyError(
            f"{where}: expected a list of classes below {group}, found {_kind(classes)}; "
            "write [first, second], least urgent first."
        )
    if not entries:
        raise HierarchyError(f"{where}: {group} is empty; every group needs at least one class.")
    return entries


def _listed(item: Any, where: str) -> Iterator[_Entry]:
    if _is_list(item):
        if not item or any(_is_list(member) for member in item):
            raise HierarchyError(f"{where}: a tie must be a plain list of classes, not empty or nested; found {item}.")
        tied = [entry for member in item for entry in _listed(member, where)]
        yield from (_Entry(entry.name, entry.below, position > 0) for position, entry in enumerate(tied))
    elif isinstance(item, Mapping):
        yield from _entries(item, "a group", where)
    else:
        yield _Entry(str(item) if isinstance(item, int) else item, [], False)  # grades are often numbers


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise HierarchyError(f"{what} must be text, found {_kind(value)}.")
    return value


def _number(text: str) -> float:
    """The number that a text spells; NaN, which no check lets pass, where it spells none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise HierarchyError(f"{what} must be a list of names, found {_kind(value)}.")
    return tuple(_text(item, what) for item in value)


def _mapping(fields: dict[str, Any], key: str, where: str, *, lists: bool = False) -> dict[str, Any]:
    value = fields.get(key, {})
    if not isinstance(value, dict):
        raise HierarchyError(f"{key!r} in {where} must be a mapping from class to text, found {_kind(value)}.")
    return {label: text if lists else _text(text, f"{key!r} in {where}") for label, text in value.items()}


def _kind(value: object) -> str:
    kinds = {dict: "a mapping", list: "a list", str: "a single value", type(None): "nothing"}
    return kinds.get(type(value), repr(value))
