"""Writes docs/methods.md from the docstrings of the methods. Run: python docs/generate_methods.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from pams_mil import atomic, discover
from pams_mil.methods.describe import Description, Parameter, describe
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

The same as a pure function that returns one value per sample: `from pams_mil.methods.pams import msce_loss`. Modules:
`CELoss`, `WeightedCELoss`, `MSCELoss`, `HXELoss`, `SoftLabelsLoss`, `CDWCELoss`, `CO2Loss`, `EMDLoss`, `SORDLoss`,
`CORNLoss`.

Letters: t is the true class, r a predicted one, p the softmax, C the number of classes; class indices grow with
urgency. Levels h run from 1, the coarsest, to H; in code from 0. Matrices are `[true, predicted]`.

Every method also takes `towers`, `remix` and `remix_options`. Towers are the models it trains: `"finest"` is one for
the finest level, whose probabilities are summed for coarser ones, `"shared"` one with a head per level, `"per_level"`
one per level. A remix is named, or none; options that are not given keep the paper's values.

On a two-tier model (DTFD-MIL) every level loss is that of the bag plus the mean over its pseudo-bags.

![What each loss punishes](images/loss-penalties.png)

What each method adds to its loss when a model that should say FEA says another class with 80 % confidence, relative to
the method's own mean over the wrong classes. Red: a less urgent class, so an urgent finding is missed. Blue: a more
urgent one, a false alarm. Only PAMS makes every miss dearer than every false alarm (drawn by
`docs/draw_loss_penalties.py`).
"""


def page() -> str:
    """The whole page."""
    ordered = sorted(discover.available("methods"), key=lambda name: (name != "pams", name != "ce", name))
    return HEAD + "".join(section(describe(name)) for name in ordered)


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
