"""The page of a tuning: what was tried, where each recipe was dropped, and why the chosen one was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pams_mil.evaluate.audit import Audit
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.report.audit_html import audit_screen
from pams_mil.report.charts import score_chart
from pams_mil.report.live import SLIDES_FILE, Links
from pams_mil.report.page import Mark, ReportTable, TableCell, TableHead, render

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

    Args:
        record: What `tune.json` holds.
        hierarchy: The class hierarchy.
        audits: Comparisons of the choice with the reference by the folder of their page, beside this one.
        held_out: Slides that were in no fold.
        links: Where a recipe's slides lead, by the folder of the page and the recipe's name.
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
    rungs, choice = record["rungs"], record["choice"]["recipe"]
    rows: list[tuple[tuple[int, float], list[str | TableCell]]] = []
    for name, words in record["asked"]["in_words"].items():
        scores = [next((s for s in rung["scores"] if s["recipe"] == name), None) for rung in rungs]
        entered = [number for number, rung in enumerate(rungs) if name in rung["recipes"]]
        failure = next((rung["failed"][name] for rung in rungs if name in rung["failed"]), "")
        # Entered and not reached: the budget ended before the recipe was scored there.
        reached = [number for number, score in enumerate(scores) if score is not None]
        last = scores[reached[-1]] if reached else None
        fate = _fate(name, entered, reached, len(rungs), failure, choice, record["asked"]["reference"])
        mark: Mark = "best" if name == choice else ""
        cells: list[str | TableCell] = [TableCell(name, mark=mark), words]
        for score in scores:
            if score is None:
                cells.append("–")
            else:
                value, error = 100 * score["urgency_auc"], 100 * score["standard_error"]
                cells.append(TableCell(f"{value:.1f}", f"± {error:.1f}", mark))
        cells.append(f"{fate}: {failure}" if failure else fate)
        rows.append(((-len(reached), 0.0 if last is None else -last["urgency_auc"]), cells))
    meaning = "urgency AUC in percent on the validation slides of this rung; ±: standard error over patients"
    heads = [TableHead(f"rung {number}", meaning) for number in range(1, len(rungs) + 1)]
    head: list[str | TableHead] = ["recipe", "what it is", *heads, "what became of it"]
    return ReportTable(head, [cells for _, cells in sorted(rows, key=lambda row: row[0])], text=(0, 1, len(head) - 1))


def _fate(
    name: str, entered: Sequence[int], reached: Sequence[int], rungs: int, failure: str, choice: str, reference: str
) -> str:
    if name == choice:
        return "chosen"
    if failure:
        return "failed"
    if not entered:
        return "not tried"
    if name == reference:
        return "the reference"
    if not reached or reached[-1] != entered[-1]:
        return f"not finished in rung {entered[-1] + 1}"
    return "measured to the end" if entered[-1] == rungs - 1 else f"dropped after rung {entered[-1] + 1}"
