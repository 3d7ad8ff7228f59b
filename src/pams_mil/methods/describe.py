"""What a method's own file says about it, taken apart: for docs/methods.md and for lists of choices.

A method's module docstring is a title, an indented equation, prose, and three paragraphs that begin with "Paper's
setting:", "Deviations:" and "License:". Its dataclass lists the hyper-parameters under "Attributes:".
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from pams_mil import discover
from pams_mil.errors import ParameterError
from pams_mil.methods.method import Method

_NOTES = ("Paper's setting", "Deviations", "License")
_ATTRIBUTE = re.compile(r"^(\w+): (.*)$")


@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter of a method."""

    name: str
    default: Any
    text: str


@dataclass(frozen=True)
class Description:
    """A method in words.

    Attributes:
        name: What users type.
        title: First line of its file.
        equation: Its loss, without indentation.
        prose: Paragraphs between the equation and the notes.
        notes: "Paper's setting", "Deviations" and "License".
        parameters: Its own hyper-parameters, then the towers and remix that every method has.
    """

    name: str
    title: str
    equation: str
    prose: tuple[str, ...]
    notes: dict[str, str]
    parameters: tuple[Parameter, ...]


def describe(name: str) -> Description:
    """The description of a discovered method.

    >>> cdw = describe("cdw_ce")
    >>> cdw.equation
    'L = −Σ_r |t − r|^α log(1 − p_r)'
    >>> [parameter.name for parameter in cdw.parameters]
    ['alpha', 'towers', 'remix', 'remix_options']
    """
    method = discover.load("methods", name)
    text = inspect.getdoc(inspect.getmodule(method)) or ""
    title, *paragraphs = text.split("\n\n")
    equation = "\n".join(textwrap.dedent(p) for p in paragraphs if p.startswith("    "))
    plain = [
        _unwrap(line) for paragraph in paragraphs if not paragraph.startswith("    ") for line in _items(paragraph)
    ]
    notes = {note: line.removeprefix(f"{note}: ") for note in _NOTES for line in plain if line.startswith(f"{note}: ")}
    missing = [note for note in _NOTES if note not in notes]
    if missing or not equation:
        raise ParameterError(f"The file of the method {name!r} lacks {', '.join(missing) or 'an equation'}.")
    prose = tuple(line for line in plain if not line.startswith(tuple(f"{note}: " for note in _NOTES)))
    return Description(name, _unwrap(title), equation, prose, notes, tuple(parameters(method)))


def parameters(method: type[Method]) -> Iterator[Parameter]:
    """Hyper-parameters with their defaults and meanings, the method's own first."""
    shared = {field.name for field in fields(Method)}
    texts = _attributes(Method) | _attributes(method)
    for field in sorted(fields(method), key=lambda field: field.name in shared):
        if field.name not in texts:
            raise ParameterError(f"{method.__name__} does not document {field.name!r} under 'Attributes:'.")
        text = texts[field.name]
        if field.name == "towers":
            text += f" Allowed: {', '.join(method.allowed_towers)}."
        yield Parameter(field.name, _default(field, method), text)


def _default(field: Field[Any], method: type[Method]) -> Any:
    if field.name == "remix_options" and method.remix is not None:
        return dict(method.paper_remix_options)
    return field.default if field.default_factory is MISSING else field.default_factory()


def _items(paragraph: str) -> list[str]:
    """Notes may follow each other without an empty line between."""
    return re.split(rf"\n(?=(?:{'|'.join(_NOTES)}): )", paragraph)


def _attributes(kind: type[Any]) -> dict[str, str]:
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    texts: dict[str, str] = {}
    for line in inspect.cleandoc(" \n" + section).splitlines():
        match = _ATTRIBUTE.match(line)
        if match:
            texts[match[1]] = match[2]
        elif line.startswith(" ") and texts:
            texts[next(reversed(texts))] += " " + line.strip()
    return texts


def _unwrap(paragraph: str) -> str:
    return " ".join(paragraph.split())
