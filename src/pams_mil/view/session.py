"""What one reader is shown: the cases, their slides, heatmaps and verdicts, and what may be known of each case now.

Models, labels, heatmaps and certificates are private to the session. They leave it through `visible` and `heat_of`
alone: in a blind session only for cases that the reader has given a class, in any other session after the journal says
that the reader was shown them. A route that is added later can hand out nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from pams_mil.arrays import Ints
from pams_mil.data.exposure import ROLES, Role
from pams_mil.errors import BagError, PamsError, PredictionsError, SlideError, require_number
from pams_mil.evaluate.decisions.reveal import reveal
from pams_mil.evaluate.decisions.worklist import order_worth
from pams_mil.report.page import short_order
from pams_mil.view.heat import Heat, HeatMaker, class_color
from pams_mil.view.shelf import OVERLAP_PX, THUMBNAIL_PX, TILE_PX, Pyramid, Shelf
from pams_mil.view.verdict_journal import FACTS, Journal, refusing
from pams_mil.view.worklist_cases import Cases
from pams_mil.wsi.heatmap import Region, encoded, geojson_pieces, overlay
from pams_mil.wsi.physical_pixels import Overview, read_scaled

MOST_KAPPA = 1e9
PATCH_PX = 128
MOST_PATCH_PX0 = 8192.0
BADGES: Mapping[Role, str] = {
    "train": "training", "select": "choice of the epoch", "tune": "choice of the recipe",
    "calibrate": "probability calibration", "certify": "certificate",
}  # fmt: skip
"""What a patient was seen in, for the badge of its slides."""


class HiddenError(PamsError):
    """What a blind reader may not see yet."""

    code = 403

    def __init__(self) -> None:
        super().__init__("Hidden until you have given your reading.")


class Session:
    """Everything behind the page."""

    def __init__(
        self,
        title: str,
        cases: Cases,
        shelf: Shelf,
        heat: HeatMaker,
        journal: Journal,
        notes: tuple[str, ...] = (),
        guarantee: str = "",
    ) -> None:
        self.title, self.shelf, self.journal, self.notes, self.guarantee = title, shelf, journal, notes, guarantee
        self.cases = cases.slides
        self._cases, self._heat = cases, heat

    @property
    def blind(self) -> bool:
        """Whether calls are hidden until the reader has given one."""
        return self.journal.blind

    def hides(self, row: int) -> bool:
        """Whether the reader may not yet see what the model says about a case."""
        return self.blind and self.cases.slide_ids[row] not in self.journal.read

    def visible(self) -> tuple[Ints, Cases]:
        """The rows that the reader may see now, and these cases alone."""
        if not self.blind:
            self.journal.reveal(self.cases.slide_ids)
            return np.arange(len(self.cases)), self._cases
        return self._with()

    def heat_of(self, row: int) -> Heat:
        """The layers of a slide, for whoever may see them."""
        if self.hides(row):
            raise HiddenError
        self.journal.reveal([self.cases.slide_ids[row]])
        return self._heat.of(self.cases.slide_ids[row])

    def pyramid(self, row: int) -> Pyramid:
        """The Deep Zoom levels of a slide without a picture: as large as its tiles reach."""
        return Pyramid(*self._heat.of(self.cases.slide_ids[row]).extent)

    def tile(self, row: int, level: int, column: int, line: int) -> bytes | None:
        """A tile as JPEG; of a slide without a picture, white under its heatmap; None where there is no such tile."""
        try:
            shown = self.shelf.use(row)
        except SlideError:
            box = self.pyramid(row).tile(level, column, line)
            return None if box is None else encoded(Image.new("RGB", (box.width, box.height), "white"), "JPEG")
        box = shown.pyramid.tile(level, column, line)
        return None if box is None else shown.tile(box)

    def thumbnail(self, row: int, heat: Heat | None) -> bytes:
        """The slide at most 320 pixels long, with the heat for its call if given; without a picture, on white."""
        if self.shelf.has(row):
            overview = self.shelf.use(row).thumbnail()
        elif heat is None:
            raise BagError("There is neither a slide nor tiles to show.")
        else:
            width, height = heat.extent
            scale = max(1.0, max(width, height) / THUMBNAIL_PX)
            shape = (max(1, round(height / scale)), max(1, round(width / scale)), 3)
            overview = Overview(np.full(shape, 255, np.uint8), scale)
        pixels = overview.pixels
        if heat is not None:
            colors, shades = heat.shades(int(self._cases.predicted[row]))
            pixels = overlay(overview, heat, shades, colors=colors, opacity=0.6)
        return encoded(Image.fromarray(pixels), "JPEG")

    def patch(self, row: int, heat: Heat, index: int) -> bytes | None:
        """One tile of the features as the slide shows it; None where there is no such tile."""
        if not 0 <= index < len(heat.coords_px0):
            return None
        if heat.tile_px0 > MOST_PATCH_PX0:
            raise BagError("The tiles of this slide are too large for small pictures.")
        x, y = heat.coords_px0[index].tolist()
        shown = self.shelf.use(row)
        return shown.jpeg(read_scaled(shown.slide, x, y, heat.tile_px0 / PATCH_PX, PATCH_PX, PATCH_PX))

    def overview(self) -> dict[str, Any]:
        """What does not change while the server runs."""
        tree, cases = self.cases.hierarchy, self.cases
        ranks, names = tree.ranks().tolist(), tree.names()
        return {
            "title": self.title,
            "classes": [
                {"name": label, "shown": tree.display(label), "rank": rank}
                for label, rank in zip(names, ranks, strict=True)
            ],
            "order": short_order(tree),
            "orders": cases.orders,
            "findings": tree.finding_classes.tolist() if tree.findings == "several" else [],
            "boundaries": self.boundaries,
            "reviewer": self.journal.reviewer,
            "blind": self.blind,
            "models": list(cases.models),
            "slides": self.shelf.num_files,
            "cases": len(cases),
            "guarantee": self.guarantee,
            "grouped": len(set(cases.groups)) < len(cases),
            # What models say about their predictions may name slides.
            "notes": [*self.notes, *(() if self.blind else self._cases.notes)],
        }

    @cached_property
    def boundaries(self) -> list[dict[str, Any]]:
        """Every rank above the lowest with the class that starts it; `coarse` where a group of the top level starts."""
        tree = self.cases.hierarchy
        ranks, names = tree.ranks(), tree.names()
        top, top_ranks = tree.groups(0), tree.ranks(0)
        bounds = []
        for rank in np.unique(ranks)[1:].tolist():
            first = int(np.flatnonzero(ranks == rank)[0])
            # Classes are listed from the least urgent on, so the class before has the next lower rank.
            starts = tree.num_levels > 1 and top_ranks[top[first]] > top_ranks[top[first - 1]]
            label = tree.names(0)[top[first]] if starts else names[first]
            bounds.append({"rank": rank, "class": names[first], "shown": tree.display(label), "coarse": bool(starts)})
        # One level, or groups of one rank: then every boundary is worth a line.
        if not any(one["coarse"] for one in bounds):
            for one in bounds:
                one["coarse"] = True
        return bounds

    def worklist(self) -> dict[str, Any]:
        """One list per column, one entry per case; null where a blind reader may not look yet."""
        cases = self.cases
        rows, shown = self.visible()
        table: dict[str, Any] = {
            "key": cases.keys, "slide": cases.slide_ids, "patient": cases.patient_ids, "group": cases.groups,
            "has_slide": [self.shelf.has(row) for row in range(len(cases))],
            "seen": [", ".join(BADGES[role] for role in ROLES if role in roles) for roles in cases.roles or ()],
            # The order itself would tell a blind reader which cases the model finds urgent.
            "order": [] if self.blind else shown.order.tolist(),
        }  # fmt: skip
        for name, values in shown.listed.items():
            table[name] = [None] * len(cases)
            for row, value in zip(rows.tolist(), values, strict=True):
                table[name][row] = value
        return table

    def reviews(self) -> dict[str, Any]:
        """All verdicts in force."""
        self.journal.refresh()
        # A case whose verdicts were all undone has an event number, which the next verdict must name.
        touched = [slide for slide in self.cases.slide_ids if self.journal.last_event(slide)]
        verdicts = {self.cases.keys[self.cases.row_of[slide]]: self._verdict(slide) for slide in touched}
        return {"revision": self.journal.revision, "verdicts": verdicts}

    def give(self, row: int, content: Mapping[str, Any]) -> None:
        """Take a verdict. With `kappa` in it, the call that is agreed with or overruled is the one at that κ."""
        kappa = content.get("kappa")
        with refusing():
            if kappa is not None:
                require_number("kappa", kappa, at_least=0, at_most=MOST_KAPPA)
        facts = dict.fromkeys(FACTS, "")
        facts["patient_id"] = self.cases.patient_ids[row]
        # A reading lifts the blind of its case, so what is known of it may stand beside; a deferral does not.
        if content.get("action") == "read" or not self.hides(row):
            facts["target"] = self.journal.targets.get(self.cases.slide_ids[row], "")
            facts["model_call"] = self._cases.call_at(row, kappa)
            facts["kappa"] = "" if kappa is None else repr(kappa)
            rows, shown = self._with(row)
            facts["cannot_exclude"] = shown.cannot_exclude[rows.tolist().index(row)]
        self.journal.give(self.cases.slide_ids[row], content, facts)

    def verdict_of(self, row: int) -> dict[str, Any]:
        """One case's verdict, with what a blind reader may see now."""
        answer = {"verdict": self._verdict(self.cases.slide_ids[row]), "revision": self.journal.revision}
        if self.blind and not self.hides(row):
            rows, shown = self.visible()
            place = rows.tolist().index(row)
            answer["revealed"] = {name: values[place] for name, values in shown.listed.items()}
        return answer

    def order_worth(self) -> dict[str, Any]:
        """What the worklist's order is worth, over the cases that the reader may see."""
        _, shown = self.visible()
        read = np.full(len(shown), -1, np.int64)
        for slide, verdict in self.journal.states():
            if verdict.label and slide in shown.slides.row_of:
                read[shown.slides.row_of[slide]] = shown.hierarchy.index(verdict.label)
        worth = order_worth(
            {"labels": shown.target, "verdicts": read}, shown.predicted, shown.order, shown.hierarchy.ranks(),
            shown.probabilities,
        )  # fmt: skip
        return {**worth, "revealed": self._revealed(shown, read)}

    def _revealed(self, shown: Cases, read: Ints) -> str:
        """The cost ratio that the verdicts act by, in words, or why there is none; empty without verdicts."""
        rows = np.flatnonzero(read >= 0)
        if shown.probabilities is None or not len(rows):
            return ""
        states = dict(self.journal.states())
        verdicts = [states[shown.slide_ids[row]] for row in rows.tolist()]
        calls = [shown.hierarchy.index(verdict.facts["model_call"]) for verdict in verdicts]
        try:
            result = reveal(
                shown.probabilities[rows], read[rows], shown.hierarchy,
                patients=[shown.slides.patient_ids[row] for row in rows.tolist()],
                blind=[verdict.blind for verdict in verdicts], calls=calls,
                kappa=[float(verdict.facts.get("kappa") or 1) for verdict in verdicts],
            )  # fmt: skip
            return " ".join(result.sentences)
        except PredictionsError as error:
            return str(error)

    def slide(self, row: int) -> dict[str, Any]:
        """Size, scale and state of one slide; problems in words, never an error."""
        slide_id = self.cases.slide_ids[row]
        facts: dict[str, Any] = {
            "key": self.cases.keys[row], "slide": slide_id, "patient": self.cases.patient_ids[row], "mpp": None,
            "tile_px": TILE_PX, "overlap_px": OVERLAP_PX, "has_picture": False, "problem": None,
            "regions": self.journal.regions.get(slide_id, []),
        }  # fmt: skip
        try:
            shown = self.shelf.use(row)
            pyramid: Pyramid | None = shown.pyramid
            facts.update(mpp=shown.mpp, has_picture=True, reader=shown.slide.reader_name)
        except SlideError as error:
            facts["problem"] = str(error)
            try:
                pyramid = self.pyramid(row)
            except BagError:
                pyramid = None
        if pyramid is not None:
            facts.update(width=pyramid.width, height=pyramid.height, top=pyramid.top)
        return facts

    def geojson(self, row: int) -> Iterator[str]:
        """Marked regions as annotations and, unless they are hidden or missing, tiles with their values, for QuPath."""
        heat: Heat | None = None
        with suppress(BagError, HiddenError):
            heat = self.heat_of(row)
        names = self.cases.hierarchy.names()
        regions = []
        for mark in self.journal.regions.get(self.cases.slide_ids[row], []):
            x, y, width, height = mark["box"]
            color = class_color(names.index(mark["class"]), len(names))
            regions.append(Region(x, y, width, height, mark["class"], color))
        layers = {} if heat is None else heat.layers
        values = {name: values for name, (kind, values) in layers.items() if kind != "flat"}
        return geojson_pieces(heat, values, regions)

    def _with(self, *more: int) -> tuple[Ints, Cases]:
        rows = np.array([row for row in range(len(self.cases)) if row in more or not self.hides(row)], np.int64)
        return rows, self._cases.take(rows) if len(rows) < len(self.cases) else self._cases

    def _verdict(self, slide_id: str) -> dict[str, Any]:
        verdict = self.journal.state(slide_id)
        return {**({} if verdict is None else verdict.to_json()), "last": self.journal.last_event(slide_id)}
