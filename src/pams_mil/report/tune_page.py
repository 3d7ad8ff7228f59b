"""The page of a tuning: what was tried, where each recipe was dropped, and why the chosen one was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pams_mil.evaluate.audit import Audit
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.audit_html import audit_screen
from pams_mil.report.charts import score_chart
from pams_mil.report.live import SLIDES_FILE, Links
from pams_mil.report.page import Column, Mark, ReportTable, TableCell, render

PLACES = {
    "report_held_out": "Held-out slides, which neither training nor the choice has seen, by all runs together",
    "report": "Out-of-fold slides, each fold by recipes that were chosen without the patients that it tests",
}
"""What a comparison was made on, by the folder of its page."""


def tune_page(
    record: Mapping[str, Any],
    hierarchy: ClassHierarchy,
    audits: Mapping[str, Audit],
    *,
    held_out: int = 0,
    links: Mapping[str, Mapping[str, Links]] | None = None,
) -> str:
    """The record of a tuning (`tune.json`) and the comparisons of its choice as one HTML page.

    `audits` compare the choice with the reference, by the folder of their page beside this one; `held_out` slides were
    in no fold; `links` say where a recipe's slides lead, by the folder of the page and the recipe's name.
    """
    # The strictest comparison first: on slides that neither training nor the choice has seen, where there are any.
    place, leading = next((place, audits[place]) for place in PLACES if place in audits)
    scored = [rung for rung in record["rungs"] if rung["scores"]]
    return render(
        "tune.html.j2",
        record=record,
        choice=record["choice"],
        reference=record["asked"]["reference"],
        hierarchy=hierarchy,
        rungs=scored,
        recipes=recipe_table(record),
        screen=audit_screen(leading, (links or {}).get(place), file=f"{place}/{SLIDES_FILE}"),
        place=place,
        charts=[
            score_chart(rung["scores"], record["choice"]["recipe"], record["asked"]["reference"]) for rung in scored
        ],
        audits=audits,
        by_fold=record["choice"]["by_fold"],
        means=len({frozenset(one["mean_of"]) for one in record["choice"]["by_fold"]}),
        held_out=held_out,
        places=PLACES,
        together=next(s["urgency_auc"] for s in scored[-1]["scores"] if s["recipe"] == record["choice"]["recipe"]),
    )


def recipe_table(record: Mapping[str, Any]) -> ReportTable:
    """Every recipe of the space: its scores by rung, and what became of it; the furthest and best first."""
    words, chosen = record["asked"]["in_words"], record["choice"]["recipe"]
    scores = {name: _scores(record, name) for name in words}

    def score(number: int, name: str) -> TableCell | None:
        one = scores[name].get(number)
        if one is None:
            return None
        mark: Mark = "best" if name == chosen else ""
        return TableCell(f"{100 * one['urgency_auc']:.1f}", f"± {100 * one['standard_error']:.1f}", mark)

    def place(name: str) -> tuple[int, float]:
        own = list(scores[name].values())
        return -len(own), -own[-1]["urgency_auc"] if own else 0.0

    meaning = "urgency AUC in percent on the validation slides of this rung; ±: standard error over patients"
    columns = [
        Column("recipe", lambda name: TableCell(name, mark="best" if name == chosen else "")),
        Column("what it is", words.get),
        *(Column(f"rung {number + 1}", partial(score, number), meaning) for number in range(len(record["rungs"]))),
        Column("what became of it", partial(_fate, record)),
    ]
    return ReportTable.of(sorted(words, key=place), columns, text=(0, 1, len(columns) - 1))


def _scores(record: Mapping[str, Any], name: str) -> dict[int, Mapping[str, Any]]:
    """The scores of a recipe by the number of the rung."""
    return {n: one for n, rung in enumerate(record["rungs"]) for one in rung["scores"] if one["recipe"] == name}


def _fate(record: Mapping[str, Any], name: str) -> str:
    rungs = record["rungs"]
    entered = [number for number, rung in enumerate(rungs) if name in rung["recipes"]]
    failure = next((rung["failed"][name] for rung in rungs if name in rung["failed"]), "")
    if name == record["choice"]["recipe"]:
        return "chosen"
    if failure:
        return f"failed: {failure}"
    if not entered:
        return "not tried"
    if name == record["asked"]["reference"]:
        return "the reference"
    # Entered and not scored: the budget ended before.
    if entered[-1] not in _scores(record, name):
        return f"not finished in rung {entered[-1] + 1}"
    return "measured to the end" if entered[-1] == len(rungs) - 1 else f"dropped after rung {entered[-1] + 1}"
