"""Writes docs/methods.md from the docstrings of the methods. Run: python docs/generate_methods.py."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

from pams_mil import atomic, discover
from pams_mil.errors import ParameterError
from pams_mil.methods.method import Method

PAGE = Path(__file__).with_name("methods.md")
SHARED = {field.name for field in fields(Method)}

HEAD = """# Methods

<!-- Generated from the docstrings by docs/generate_methods.py; edit those. -->

A method says which models it trains, which remix it wants and what it minimizes. `pams train` takes its name, and each
loss also works alone:

```python
>>> import torch
>>> from pams_mil.hierarchy import ClassHierarchy
>>> from pams_mil.methods import MSCELoss
>>> loss = MSCELoss(ClassHierarchy.load("bracs"), level=-1, reduction="mean")
>>> logits, target = torch.zeros(2, 7), torch.tensor([0, 6])
>>> round(loss(logits, target).item(), 4)  # uniform: ln 7 times the mean of 1 and 4.94
5.7821

```

The same as a pure function that returns one value per sample: `from pams_mil.methods import msce_loss`.
Modules: `CELoss`, `WeightedCELoss`, `MSCELoss`, `HXELoss`, `SoftLabelsLoss`, `CDWCELoss`, `OCELoss`, `CO2Loss`,
`EMDLoss`, `SORDLoss`, `CORNLoss`.

Letters: t is the true class, r a predicted one, p the softmax, C the number of classes; class indices grow with
urgency. Levels h run from 1, the coarsest, to H; in code from 0. Matrices are `[true, predicted]`.

Every method also takes `towers`, `remix` and `remix_options`. Towers are the models it trains: `"finest"` is one for
the finest level, whose probabilities are summed for coarser ones, `"shared"` one with a head per level, `"per_level"`
one per level. A remix is named, or none; options that are not given keep the paper's values.

On a two-tier model (DTFD-MIL) every level loss is that of the bag plus the mean over its pseudo-bags.

![What each loss punishes](images/loss-penalties.png)

What each method adds to its loss when a model that should say FEA says another class with 80 % confidence, relative to
the method's own mean over the wrong classes. Red: a less urgent class, so an urgent finding is missed. Blue: a more
urgent one, a false alarm. Only MSCE, the loss of PAMS, makes every miss dearer than every false alarm (drawn by
`docs/draw_loss_penalties.py`).
"""


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
        title: First line of its docstring.
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
    """The description of a discovered method, from its docstring.

    It is a title, an indented equation, prose, three paragraphs that begin with "Paper's setting:", "Deviations:" and
    "License:", and the hyper-parameters under "Attributes:".
    """
    method = discover.load("methods", name)
    text = (inspect.getdoc(method) or "").partition("\n\nAttributes:")[0]
    title, *paragraphs = text.split("\n\n")
    equation = "\n".join(textwrap.dedent(p) for p in paragraphs if p.startswith("    "))
    plain = [
        _unwrap(line) for paragraph in paragraphs if not paragraph.startswith("    ") for line in _items(paragraph)
    ]
    notes = {note: line.removeprefix(f"{note}: ") for note in _NOTES for line in plain if line.startswith(f"{note}: ")}
    missing = [note for note in _NOTES if note not in notes]
    if missing or not equation:
        raise ParameterError(f"The docstring of the method {name!r} lacks {', '.join(missing) or 'an equation'}.")
    prose = tuple(line for line in plain if not line.startswith(tuple(f"{note}: " for note in _NOTES)))
    return Description(name, _unwrap(title), equation, prose, notes, tuple(parameters(method)))


def parameters(method: type[Method]) -> Iterator[Parameter]:
    """Hyper-parameters with their defaults and meanings, the method's own first."""
    shared = {field.name for field in fields(Method)}
    texts: dict[str, str] = {}
    for kind in reversed(method.__mro__):
        texts |= _attributes(kind)
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


def page() -> str:
    """The whole page."""
    first = ("pams", "msce", "ce")
    names = [*first, *(name for name in discover.available("methods") if name not in first)]
    return HEAD + "".join(section(describe(name)) for name in names)


def section(method: Description) -> str:
    """One method: title, equation, prose, notes, parameters."""
    equation = "\n".join(f"    {line}".rstrip() for line in method.equation.splitlines())
    prose = "\n\n".join(method.prose)
    notes = "\n".join(f"- **{note}:** {text}" for note, text in method.notes.items())
    own = [parameter for parameter in method.parameters if parameter.name not in SHARED]
    body = [f"## `{method.name}`", method.title, equation, prose, f"{notes}\n{trains(method)}", table(own)]
    return "\n" + "\n\n".join(part for part in body if part) + "\n"


def trains(method: Description) -> str:
    """The parameters that every method has, in one line."""
    default = {parameter.name: parameter.default for parameter in method.parameters}
    allowed = discover.load("methods", method.name).allowed_towers
    others = ", ".join(f'"{towers}"' for towers in allowed if towers != default["towers"])
    line = f'- **Towers:** "{default["towers"]}"' + (f"; allowed are also {others}." if others else ", no others.")
    if default["remix"] is None:
        return line
    options = ", ".join(f"{name} = {value}" for name, value in default["remix_options"].items())
    return f'{line}\n- **Remix:** "{default["remix"]}" with {options}.'


def table(parameters: Sequence[Parameter]) -> str:
    """The method's own parameters."""
    if not parameters:
        return ""
    rows = (f"| `{item.name}` | `{item.default!r}` | {item.text.replace('|', chr(92) + '|')} |" for item in parameters)
    return "| parameter | default | meaning |\n|---|---|---|\n" + "\n".join(rows)


if __name__ == "__main__":
    atomic.write_text(PAGE, page())
