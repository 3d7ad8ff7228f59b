"""What the worklist's order is worth on these very cases, for the page that answers it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pams_mil.arrays import Ints
from pams_mil.evaluate import reading_order
from pams_mil.metrics.confusion import count_cells
from pams_mil.view.verdict_journal import Journal
from pams_mil.view.worklist_cases import Cases

UTILIZATIONS = tuple(round(0.05 * step, 2) for step in range(1, 20))


def order_worth(cases: Cases, journal: Journal) -> dict[str, Any]:
    """Pile and queue against first in, first out; `basis` says what was taken for the truth.

    Labels come first, then the reader's verdicts, then, for the queue alone, the model's own probabilities as if they
    were calibrated: the expected count of class t among cases called r is the sum of p_t over them.
    """
    basis, truth = _truth(cases, journal)
    ranks = cases.hierarchy.ranks()
    known = np.flatnonzero(truth >= 0)
    if known.size:
        confusion = count_cells(truth[known], cases.call[known], len(ranks)).astype(np.float64)
    elif cases.probabilities is not None:
        confusion = np.zeros((len(ranks), len(ranks)))
        # Row r of the transpose is the column of calls r: it gets p_t of every case called r.
        np.add.at(confusion.T, cases.call, cases.probabilities)
    else:
        return {"basis": "none", "known": 0, "piles": [], "waits": None}
    waits = [reading_order.waits_by_truth(confusion, ranks, load).tolist() for load in UTILIZATIONS]
    return {
        "basis": basis,
        "known": int(known.size),
        "confusion": np.round(confusion, 2).tolist(),
        "piles": _piles(cases, truth, known),
        "waits": {
            "utilization": UTILIZATIONS,
            "by_class": np.array(waits).T.tolist(),
            "arrival_order": [reading_order.wait_in_arrival_order(load) for load in UTILIZATIONS],
        },
    }


def _truth(cases: Cases, journal: Journal) -> tuple[str, Ints]:
    if (cases.target >= 0).any():
        return "labels", cases.target
    read = np.full(len(cases), -1, np.int64)
    for slide, verdict in journal.states():
        if verdict.label:
            read[cases.row_of[slide]] = cases.hierarchy.index(verdict.label)
    return ("verdicts" if (read >= 0).any() else "probabilities"), read


def _piles(cases: Cases, truth: Ints, known: Ints) -> list[dict[str, Any]]:
    """For every boundary of urgency: the worklist's order against none, over the cases whose class is known."""
    if not known.size:
        return []
    ranks = cases.hierarchy.ranks()
    # Still in the order of the worklist, without the cases that nobody knows the class of.
    in_order = cases.order[np.isin(cases.order, known)]
    found = []
    for rank in np.unique(ranks)[1:].tolist():
        urgent = ranks[truth[in_order]] >= rank
        if not urgent.any():
            continue
        ours, chance = reading_order.read_pile(urgent), reading_order.unordered_pile(urgent.size, int(urgent.sum()))
        found.append({"rank": rank, "cases": ours.cases, "urgent": ours.urgent,
                      "worklist": _pile(ours), "arrival": _pile(chance)})  # fmt: skip
    return found


def _pile(pile: reading_order.PileReading) -> dict[str, Any]:
    return {
        "mean": pile.mean_position,
        "last": pile.last_position,
        "first": {f"{part:g}": share for part, share in pile.share_in_first.items()},
    }
