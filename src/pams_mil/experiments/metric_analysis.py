"""Do the metrics see what matters? Two mirrored models, and rankings under other assumptions of harm.

The first part is the paper's scenario: two models of equal accuracy whose mistakes point in opposite directions.
ECC and EMC cannot tell them apart; AsCC, AsMC and E(Risk) can. The second part asks how the ranking of models
changes with the penalty P and when two neighboring classes trade places.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pams_mil import atomic
from pams_mil.evaluate.harm import Assumption, by_penalty, by_swap
from pams_mil.evaluate.predictions import Predictions
from pams_mil.evaluate.scores import score
from pams_mil.experiments.arms import main_arms
from pams_mil.experiments.entries import read_entries
from pams_mil.experiments.study import Section, Setting, Table, run_arms
from pams_mil.experiments.study_figures import drawing, look
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.metric import METRICS
from pams_mil.report.bench import pool

DISCOVER = "run"
TITLE = "What the metrics see, and how rankings depend on the assumed harm"
NAME = "metric-analysis"
SHOWN = ("acc", "ecc", "emc", "ascc", "asmc", "risk", "severe_errors")
PENALTIES = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
TOO_LOW = ((18, 1, 1, 0, 0), (4, 15, 1, 0, 0), (2, 3, 14, 1, 0), (2, 2, 2, 13, 1), (1, 2, 2, 3, 12))
"""Rows = true, columns = predicted, five classes i to v: a model whose mistakes mostly miss urgency."""


def run(setting: Setting) -> Section:
    """The scenario always; rankings of the trained methods where a cohort is given, of the scenario otherwise."""
    scenario = mirrored_models()
    models, source = scenario, "the two mirrored models"
    if setting.manifest is not None:
        entries = read_entries(run_arms(setting, main_arms(setting.hierarchy)))
        first = entries[0].model
        models = [pool(entry.method, entry.runs) for entry in entries if entry.model == first]
        source = f"the methods of the main table on {first}"
    folder = setting.folder(NAME)
    penalties, swaps = by_penalty(models, PENALTIES), by_swap(models)
    draw(folder, "penalty", penalties, [model.name for model in models], "penalty")
    draw(folder, "swap", swaps, [model.name for model in models], "classes that trade places")
    write(folder, models, [*penalties, *swaps])
    return Section(
        NAME,
        TITLE,
        lines=(f"Rankings by AsCC are of {source}.",),
        tables=(scenario_table(scenario), rank_table(penalties, models), rank_table(swaps, models)),
        figures=(
            ("penalty", "AsCC of each model over the penalty P; crossing lines change the ranking."),
            ("swap", "AsCC of each model when two neighboring classes trade places."),
        ),
        files=("ranks.csv",),
    )


def mirrored_models() -> list[Predictions]:
    """Five classes; B makes A's mistakes in the opposite direction, with the classes counted from the other end."""
    hierarchy = ClassHierarchy.flat(["i", "ii", "iii", "iv", "v"], name="scenario")
    a = np.asarray(TOO_LOW, dtype=np.int64)
    # Turning both axes around keeps every distance and swaps misses with false alarms.
    return [_as_predictions(name, hierarchy, matrix) for name, matrix in (("A", a), ("B", a[::-1, ::-1]))]


def _as_predictions(name: str, hierarchy: ClassHierarchy, matrix: npt.NDArray[np.int64]) -> Predictions:
    true, predicted = np.nonzero(matrix)
    counts = matrix[true, predicted]
    slides = [f"{name}{number}" for number in range(int(counts.sum()))]
    return Predictions(name, hierarchy, slides, np.repeat(true, counts), np.repeat(predicted, counts))


def scenario_table(models: Sequence[Predictions]) -> Table:
    """The scenario's scores: what is equal, and what tells the models apart."""
    rows = []
    for model in models:
        values = score(model, resamples=0)[-1].values
        rows.append(
            (model.name, *(f"{100 * values[k]:.1f}" if METRICS[k].percent else f"{values[k]:.2f}" for k in SHOWN))
        )
    head = ("model", *(METRICS[key].label for key in SHOWN))
    return Table("Two models with mirrored mistakes: equal by every symmetric metric.", head, tuple(rows))


def rank_table(assumptions: Sequence[Assumption], models: Sequence[Predictions]) -> Table:
    """AsCC and rank of each model under each assumption."""
    rows = [
        (model.name, *(f"{100 * a.scores[number]:.1f} ({a.ranks[number]})" for a in assumptions))
        for number, model in enumerate(models)
    ]
    return Table("AsCC in percent, rank in brackets.", ("model", *(a.name for a in assumptions)), tuple(rows))


def write(folder: Path, models: Sequence[Predictions], assumptions: Sequence[Assumption]) -> None:
    """Everything in long form."""
    rows = [
        (a.name, model.name, float(a.scores[number]), int(a.ranks[number]))
        for a in assumptions
        for number, model in enumerate(models)
    ]
    atomic.write_csv(folder / "ranks.csv", ("assumption", "model", "ascc", "rank"), rows)


def draw(folder: Path, name: str, assumptions: Sequence[Assumption], labels: Sequence[str], axis: str) -> None:
    """One line per model over the assumptions."""
    with drawing(folder, name, width=6.0, height=3.0) as (_, ax):
        for number, label in enumerate(labels):
            values = [100 * a.scores[number] for a in assumptions]
            ax.plot(range(len(assumptions)), values, label=label, linewidth=1, markersize=4, **look(number))
        ax.set_xticks(range(len(assumptions)), [a.name for a in assumptions], rotation=30, ha="right")
        ax.set(ylabel="AsCC (%)", xlabel=axis)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
