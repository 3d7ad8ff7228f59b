"""Rows that cost no training: the same probabilities, decided or restored otherwise.

MSCE is in good part a decision rule: its most probable class is nearly that of cross-entropy under `implied_cost`. Two
rows show how much of a difference that is. Cross-entropy decided with this cost is PAMS' operating point without PAMS'
training; PAMS with the bias of MSCE removed is PAMS' training at an ordinary operating point.
"""

from __future__ import annotations

from collections.abc import Sequence

from pams_mil.engine.grid.grid import GridRun
from pams_mil.evaluate.debias import TrainingBias
from pams_mil.evaluate.decide import redecide
from pams_mil.methods.pams import Pams
from pams_mil.report.bench import Entry
from pams_mil.severity import implied_cost, loss_weight

OF_THE_WEIGHT = ("alpha", "costs", "orientation", "distance")
"""Options of MSCE's weight; with another one its bias is another one."""


def with_untrained(done: GridRun, entries: Sequence[Entry]) -> list[Entry]:
    """The entries, and after the first of cross-entropy and of PAMS an untrained row, for models that have both.

    The first alone: arms that vary a method repeat what its first row shows, and every row more weakens the others'
    corrected p.
    """
    methods = {(cell.model, cell.method): cell.config.method for cell in done.cells}
    names = {key: choice.name for key, choice in methods.items()}
    found: list[Entry] = []
    shown: set[tuple[str, str]] = set()
    for entry in entries:
        found.append(entry)
        here = {name for (model, _), name in names.items() if model == entry.model}
        scored = all(run.probabilities is not None for run in entry.runs.values())
        name, options = names[entry.model, entry.method], methods[entry.model, entry.method].options
        if not ({"ce", "pams"} <= here and scored) or (entry.model, name) in shown:
            continue
        shown.add((entry.model, name))
        hierarchy = next(iter(entry.runs.values())).hierarchy
        if name == "ce":
            cost = implied_cost(loss_weight(hierarchy))
            runs = {key: redecide(run, rule="risk", cost=cost) for key, run in entry.runs.items()}
            found.append(Entry(entry.model, f"{entry.method} + MSCE's cost", runs))
        elif name == "pams" and all(
            options.get(key, getattr(Pams, key)) == getattr(Pams, key) for key in OF_THE_WEIGHT
        ):
            bias = TrainingBias(loss_weight(hierarchy), bool(options.get("detach_weight", False)))
            runs = {key: redecide(run, debias=bias) for key, run in entry.runs.items()}
            found.append(Entry(entry.model, f"{entry.method}, bias removed", runs))
    return found
