"""A class file from the labels of a table: counted here, ordered by whoever knows their urgency."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pams_mil.data.tables import read_table
from pams_mil.errors import ManifestError, ParameterError, counted, listing, nearest

Order = list[str | list[str]]
"""Classes, least urgent first; a nested list is equally urgent."""
_PLAIN = re.compile(r"[^\W\d_](?:[\w -]*\w)?")


def count_labels(path: Path | str, column: str | None = None) -> dict[str, int]:
    """Every label of a table and in how many rows it is, in the order of the alphabet."""
    table = read_table(path)
    name = column or next((name for name in table if name.casefold() == "label"), None)
    if name is None or name not in table:
        hint = nearest(name, table) if name else ""
        raise ManifestError(
            f"{path} has no column {name or 'label'!r}.{hint} Found {listing(table)}. Name it with --label-column."
        )
    counts = Counter(cell for cell in table[name] if cell.strip())
    if len(counts) < 2:
        raise ManifestError(
            f"The column {name!r} of {path} has {counted(len(counts), 'label')}; expected at least two."
        )
    return dict(sorted(counts.items()))


def ordered_labels(labels: Sequence[str], answer: str) -> Order:
    """Labels by their numbers from 1, least urgent first; '=' joins equally urgent ones.

    >>> ordered_labels(["ADH", "FEA", "N"], "3 1=2")
    ['N', ['ADH', 'FEA']]
    """
    groups = [group.split("=") for group in re.sub(r"\s*=\s*", "=", answer).replace(",", " ").split()]
    numbers = [number for group in groups for number in group]
    if sorted(numbers) != sorted(str(number + 1) for number in range(len(labels))):
        raise ParameterError(f"Expected every number from 1 to {len(labels)} once, found {answer!r}.")
    names = [[labels[int(number) - 1] for number in group] for group in groups]
    return [group if len(group) > 1 else group[0] for group in names]


def class_file_text(counts: Mapping[str, int], order: Order | None, *, source: str) -> str:
    """The class file; without an order its classes are commented out, so that none is ever taken from the alphabet.

    >>> print(class_file_text({"a": 2, "b": 1}, ["b", "a"], source="labels.csv"))
    # The labels of labels.csv, least urgent first. Check this file with: pams classes show {file}
    name: labels
    classes:
      - b  # 1 row
      - a  # 2 rows
    <BLANKLINE>
    """
    entries = []
    for item in counts if order is None else order:
        group = [item] if isinstance(item, str) else item
        names = ", ".join(map(_scalar, group))
        rows = counted(sum(counts[label] for label in group), "row")
        entries.append(f"  - {names if isinstance(item, str) else f'[{names}]'}  # {rows}\n")
    if order is not None:
        head = f"# The labels of {source}, least urgent first. Check this file with: pams classes show {{file}}\n"
        return head + f"name: {_scalar(Path(source).stem)}\nclasses:\n" + "".join(entries)
    return (
        f"# The labels of {source}, in the order of the alphabet. Order the lines below, least urgent first; write\n"
        "# [a, b] in one line for equally urgent classes. Then remove the '# ' before 'classes' and those lines.\n"
        "# Check this file with: pams classes show {file}\n"
        f"name: {_scalar(Path(source).stem)}\n# classes:\n" + "".join(f"# {entry}" for entry in entries)
    )


def _scalar(text: str) -> str:
    """A text as YAML has it, in quotes where it needs them."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
