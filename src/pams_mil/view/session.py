"""What the server shows: the cases, their slides, heatmaps and verdicts, and what the browser may know of them now.

In blind mode a case's call, probabilities, heatmap and place in the order stay here until the reader has given one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pams_mil.errors import BagError, SlideError
from pams_mil.evaluate import urgency
from pams_mil.view.heat import HeatMaker
from pams_mil.view.pyramid import OVERLAP_PX, TILE_PX, Pyramid
from pams_mil.view.shelf import Shelf
from pams_mil.view.verdict_journal import Journal, Verdict
from pams_mil.view.worklist_cases import Cases


@dataclass(frozen=True)
class Session:
    """Everything behind the page."""

    title: str
    cases: Cases
    shelf: Shelf
    heat: HeatMaker
    journal: Journal
    notes: tuple[str, ...] = ()
    promise: str = ""

    @property
    def blind(self) -> bool:
        """Whether calls are hidden until the reader has given one."""
        return self.journal.blind

    def row(self, key: str) -> int | None:
        """The row of a key from the browser, None for anything else."""
        return self.cases.rows.get(key)

    def hides(self, row: int) -> bool:
        """Whether the reader may not yet see what the model says about a case."""
        if not self.blind:
            return False
        verdict = self.journal.state(self.cases.slide_ids[row])
        return verdict is None or verdict.verdict == "defer"

    def overview(self) -> dict[str, Any]:
        """What does not change while the server runs."""
        tree = self.cases.hierarchy
        ranks, names = tree.ranks().tolist(), tree.names()
        return {
            "title": self.title,
            "classes": [
                {"name": label, "shown": tree.display(label), "rank": rank}
                for label, rank in zip(names, ranks, strict=True)
            ],
            "order": tree.order(),
            "boundaries": self.boundaries,
            "reviewer": self.journal.reviewer,
            "blind": self.blind,
            "models": list(self.cases.models),
            "slides": self.shelf.found,
            "cases": len(self.cases),
            "promise": self.promise,
            "scored": self.cases.probabilities is not None,
            "grouped": len(set(self.cases.groups)) < len(self.cases),
            "notes": [*self.notes, *self.cases.notes],
        }

    @cached_property
    def boundaries(self) -> list[dict[str, Any]]:
        """Every rank above the lowest with the class that starts it; `coarse` where a group of the top level starts."""
        tree = self.cases.hierarchy
        ranks, names = tree.ranks(), tree.names()
        top, top_ranks = tree.groups(0), tree.ranks(0)
        found = []
        for rank in np.unique(ranks)[1:].tolist():
            first = int(np.flatnonzero(ranks == rank)[0])
            # Classes are listed from the least urgent on, so the class before has the next lower rank.
            starts = tree.num_levels > 1 and top_ranks[top[first]] > top_ranks[top[first - 1]]
            label = tree.names(0)[top[first]] if starts else names[first]
            found.append({"rank": rank, "class": names[first], "shown": tree.display(label), "coarse": bool(starts)})
        # One level, or groups of one rank: then every boundary is worth a line.
        if not any(one["coarse"] for one in found):
            for one in found:
                one["coarse"] = True
        return found

    def worklist(self) -> dict[str, Any]:
        """One list per column; null where a blind reader may not look yet."""
        cases = self.cases
        hidden = np.fromiter((self.hides(row) for row in range(len(cases))), bool, len(cases))
        has_slide = [self.shelf.has(row) for row in range(len(cases))]
        found: dict[str, Any] = {
            "key": cases.keys, "slide": cases.slide_ids, "patient": cases.patient_ids, "group": cases.groups,
            "has_slide": has_slide, "call": _shown(cases.call, hidden), "severity": _shown(cases.severity, hidden),
            # The order itself would tell a blind reader which cases the model finds urgent.
            "order": [] if self.blind else cases.order.tolist(),
        }  # fmt: skip
        if cases.probabilities is not None:
            reached = urgency.at_least(cases.probabilities, cases.hierarchy.ranks())
            found["uncertainty"] = _shown(urgency.uncertainty(cases.probabilities), hidden)
            found["probabilities"] = [_shown(column, hidden) for column in cases.probabilities.T]
            found["at_least"] = [_shown(column, hidden) for column in reached.T]
        if cases.agreement is not None:
            found["agreement"] = _shown(cases.agreement, hidden)
        if cases.certified is not None:
            found["certified"] = _shown(cases.certified.call, hidden)
            found["lowest"] = None if cases.certified.low is None else _shown(cases.certified.low, hidden)
        return found

    def reviews(self) -> dict[str, Any]:
        """All verdicts in force."""
        self.journal.refresh()
        verdicts = {self._key(slide): self._verdict(slide, verdict) for slide, verdict in self.journal.states()}
        # A case whose verdicts were all undone has an event number, which the next verdict must name.
        undone = {
            self._key(slide): self._verdict(slide, None)
            for slide in self.cases.slide_ids
            if self.journal.last_event(slide) and self.journal.state(slide) is None
        }
        return {"revision": self.journal.revision, "verdicts": {**undone, **verdicts}}

    def verdict_of(self, row: int) -> dict[str, Any]:
        """One case's verdict, with what a blind reader may see now."""
        slide = self.cases.slide_ids[row]
        found = {"verdict": self._verdict(slide, self.journal.state(slide)), "revision": self.journal.revision}
        if self.blind and not self.hides(row):
            found["revealed"] = self._revealed(row)
        return found

    def slide(self, row: int) -> dict[str, Any]:
        """Size, scale and state of one slide; problems in words, never an error."""
        slide_id = self.cases.slide_ids[row]
        found: dict[str, Any] = {
            "key": self.cases.keys[row], "slide": slide_id, "patient": self.cases.patient_ids[row], "mpp": None,
            "tile_px": TILE_PX, "overlap_px": OVERLAP_PX, "has_picture": False, "problem": None,
            "regions": self.journal.regions.get(slide_id, []),
        }  # fmt: skip
        try:
            with self.shelf.use(row) as entry:
                found.update(self._size(entry.pyramid), mpp=entry.mpp, has_picture=True, reader=entry.slide.reader_name)
        except SlideError as error:
            found["problem"] = str(error)
            self._size_from_tiles(slide_id, found)
        return found

    def _size_from_tiles(self, slide_id: str, found: dict[str, Any]) -> None:
        try:
            width, height = self.heat.of(slide_id).extent
        except BagError:
            return
        found.update(self._size(Pyramid(width, height)))

    @staticmethod
    def _size(pyramid: Pyramid) -> dict[str, Any]:
        return {"width": pyramid.width, "height": pyramid.height, "top": pyramid.top}

    def _key(self, slide_id: str) -> str:
        return self.cases.keys[self.cases.row_of[slide_id]]

    def _verdict(self, slide_id: str, verdict: Verdict | None) -> dict[str, Any]:
        shown = {} if verdict is None else verdict.to_json()
        return {**shown, "last": self.journal.last_event(slide_id)}

    def _revealed(self, row: int) -> dict[str, Any]:
        cases = self.cases
        found: dict[str, Any] = {"call": int(cases.call[row]), "severity": float(cases.severity[row])}
        if cases.probabilities is not None:
            one = cases.probabilities[row : row + 1]
            found["probabilities"] = one[0].tolist()
            found["at_least"] = urgency.at_least(one, cases.hierarchy.ranks())[0].tolist()
            found["uncertainty"] = float(urgency.uncertainty(one)[0])
        if cases.agreement is not None:
            found["agreement"] = float(cases.agreement[row])
        if cases.certified is not None:
            found["certified"] = int(cases.certified.call[row])
            found["lowest"] = None if cases.certified.low is None else int(cases.certified.low[row])
        return found


def _shown(values: npt.NDArray[Any], hidden: npt.NDArray[np.bool_]) -> list[Any]:
    plain = (np.round(values, 5) if values.dtype.kind == "f" else values).tolist()
    if not hidden.any():
        return list(plain)
    return [None if hide else value for value, hide in zip(plain, hidden.tolist(), strict=True)]
