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
from pams_mil.report.bench import Entry
from pams_mil.severity import implied_cost, loss_weight

OTHER_WEIGHTS = {"alpha", "costs", "orientation", "distance"}
"""Options that give MSCE another weight; its bias is then another one."""


def with_untrained(done: GridRun, entries: Sequence[Entry]) -> list[Entry]:
    """The entries, and after each of cross-entropy and PAMS its untrained row, for models that have both."""
    methods = {(cell.model, cell.method): cell.config.method for cell in done.cells}
    names = {key: choice.name for key, choice in methods.items()}
    found: list[Entry] = []
    for entry in entries:
        found.append(entry)
        here = {name for (model, _), name in names.items() if model == entry.model}
        scored = all(run.probabilities is not None for run in entry.runs.values())
        if not ({"ce", "pams"} <= here and scored):
            continue
        name, options = names[entry.model, entry.method], methods[entry.model, entry.method].options
        hierarchy = next(iter(entry.runs.values())).hierarchy
        if name == "ce":
            cost = implied_cost(loss_weight(hierarchy))
            runs = {key: redecide(run, rule="risk", cost=cost) for key, run in entry.runs.items()}
            found.append(Entry(entry.model, f"{entry.method} + MSCE's cost", runs))
        elif name == "pams" and not set(options) & OTHER_WEIGHTS:
            bias = TrainingBias(loss_weight(hierarchy), bool(options.get("detach_weight", False)))
            runs = {key: redecide(run, debias=bias) for key, run in entry.runs.items()}
            found.append(Entry(entry.model, f"{entry.method}, bias removed", runs))
    return found
