"""A reader's verdicts: a journal that only grows, and the table that is made from it.

`journal.jsonl` has one line per event with a digest. Nothing is ever rewritten, an undo is one more line, and a
line cut short by a kill is skipped. The journal also says which slides the reader was shown something about, so that a
later reading of them never counts as blind. `reviews.csv` is made from the journal alone, for `pams audit`; it keeps
verdicts on slides and predictions that are no longer open. Several windows and several servers may share a journal:
each event is added under a lock, after reading what others added, and only if the case is still in the state that the
reader saw.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pams_mil import atomic
from pams_mil.data.finding_labels import joined_names
from pams_mil.digests import sealed, unsealed
from pams_mil.errors import (
    LabelError,
    OutputError,
    PamsError,
    ParameterError,
    require_choice,
    require_count,
    require_number,
)  # fmt: skip
from pams_mil.evaluate.predictions.reviews import HEADER
from pams_mil.hierarchy import ClassHierarchy

FORMAT, VERSION = "pams-verdict", 1
MOST_NOTE = 2000
MOST_SECONDS = 86_400.0
MOST_PX0 = 1e7
_WAIT_S = 10.0
FACTS = ("patient_id", "target", "model_call", "kappa", "cannot_exclude")
"""What the reader could see of a case when the verdict was given; empty for what was hidden."""


class ReviewError(PamsError):
    """A verdict that cannot be taken; `code` is the HTTP status that says why."""

    def __init__(self, message: str, *, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what is wrong with a request into a refusal of it."""
    try:
        yield
    except (ParameterError, LabelError) as error:
        raise ReviewError(str(error)) from error


@dataclass(frozen=True)
class Verdict:
    """What a reader said about a case: a class, or that it is deferred; `number` is its event in the journal."""

    number: int
    verdict: str
    label: str
    note: str
    seconds: float
    blind: bool
    time: str
    case: str
    facts: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """For the browser."""
        return {"number": self.number, "verdict": self.verdict, "class": self.label, "note": self.note,
                "seconds": round(self.seconds, 1), "time": self.time}  # fmt: skip


class Journal:
    """The verdicts of one reader, in a folder; `blind` says whether the reader's session hides calls.

    `digests` say what each slide's verdicts are about, as `Cases.digests`; those on anything else are kept, not shown.
    `targets`, the true classes where known, reach the table for slides that the reader has given a class.
    """

    def __init__(
        self,
        folder: Path,
        reviewer: str,
        hierarchy: ClassHierarchy,
        digests: Mapping[str, str],
        targets: Mapping[str, str],
        *,
        blind: bool = False,
    ) -> None:
        self.reviewer, self.hierarchy, self.digests, self.blind = reviewer, hierarchy, digests, blind
        self.targets = targets
        self.path, self.table = folder / "journal.jsonl", folder / "reviews.csv"
        self.skipped = 0
        self.regions: dict[str, list[dict[str, Any]]] = {}
        self.shown: set[str] = set()
        """Slides that the reader was shown a call of, in whatever session."""
        self.read: set[str] = set()
        """Slides that the reader gave a class, as they are predicted now; an undo does not make it unknown."""
        self._stacks: dict[tuple[str, str], list[Verdict]] = {}
        self._last: dict[str, int] = {}
        self._read_bytes = 0
        self.revision = 0
        """How many events there are."""
        self._guard = threading.RLock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"Reviews cannot be stored in {folder}: {error.strerror}.") from error
        self._lock = FileLock(str(folder / "journal.lock"))
        self.refresh()

    def state(self, slide_id: str) -> Verdict | None:
        """The verdict in force."""
        stack = self._stacks.get((slide_id, self.digests.get(slide_id, "")))
        return stack[-1] if stack else None

    def last_event(self, slide_id: str) -> int:
        """The number of the case's last event, an undo included; 0 when there is none."""
        return self._last.get(slide_id, 0)

    def states(self) -> Iterator[tuple[str, Verdict]]:
        """Every case with a verdict, in the order of the worklist's file."""
        for slide in self.digests:
            verdict = self.state(slide)
            if verdict is not None:
                yield slide, verdict

    def of_other_predictions(self) -> int:
        """How many verdicts speak of slides or predictions that are not open."""
        return sum(bool(stack) and self.digests.get(slide) != case for (slide, case), stack in self._stacks.items())

    def give(self, slide_id: str, content: Mapping[str, Any], facts: Mapping[str, str]) -> Verdict | None:
        """Add an event: `{"action": "read" | "defer" | "undo", "class", "note", "seconds", "seen"}`."""
        event = self._checked(slide_id, content, facts)
        with self._writing():
            # Compared under the lock, after reading on: no event of another window can come in between.
            if event.pop("seen") != self.last_event(slide_id):
                raise ReviewError("This case was changed in another window; its present state is shown.", code=409)
            if event["action"] == "undo" and self.state(slide_id) is None:
                raise ReviewError("There is no verdict to undo.", code=409)
            event["blind"] = self.blind and slide_id not in self.shown
            self._append(event)
            self.write_table()
        return self.state(slide_id)

    def mark(self, slide_id: str, content: Mapping[str, Any]) -> None:
        """Add a region: `{"action": "region" | "unmark", "box": [x, y, w, h] in level-0 pixels, "class", "region"}`."""
        event = self._region(slide_id, content)
        with self._writing():
            if event["action"] == "region":
                # The number of its own event: unique, and known under the lock only.
                event["region"] = self.revision + 1
            self._append(event)

    def reveal(self, slide_ids: Collection[str]) -> None:
        """Note, before it happens, that the reader is shown calls; once per slide."""
        if self.shown.issuperset(slide_ids):
            return
        with self._writing():
            fresh = [slide for slide in slide_ids if slide not in self.shown]
            if fresh:
                self._append({**self._stamp(""), "action": "reveal", "slides": fresh})

    def refresh(self) -> None:
        """Read what was added since; damaged lines are counted and skipped."""
        with self._guard:
            try:
                with self.path.open("rb") as file:
                    file.seek(self._read_bytes)
                    data = file.read()
            except FileNotFoundError:
                return
            except OSError as error:
                raise OutputError(f"{self.path} cannot be read: {error.strerror}.") from error
            # A line without its end may still be being written by another server; it is read the next time.
            complete = data[: data.rfind(b"\n") + 1]
            self._read_bytes += len(complete)
            for line in complete.splitlines():
                try:
                    event = unsealed(json.loads(line), FORMAT, VERSION)
                except ValueError:
                    self.skipped += bool(line.strip())
                else:
                    self._apply(event)

    def write_table(self) -> None:
        """Write reviews.csv, readable to its owner alone; with the true classes where all read cases have one."""
        # Under the lock and after reading on: a table made from older events would replace one with newer verdicts.
        with self._writing():
            atomic.write_csv(self.table, *self._rows(), private=True)

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of reviews.csv: of every slide the last verdict that was not undone."""
        last: dict[str, Verdict] = {}
        for (slide, _), stack in self._stacks.items():
            if stack and (slide not in last or last[slide].number < stack[-1].number):
                last[slide] = stack[-1]
        place = {slide: row for row, slide in enumerate(self.digests)}
        # Slides of this worklist in its order, then the others as they were read.
        slides = sorted(last, key=lambda slide: (place.get(slide, len(place)), last[slide].number))
        rows = []
        for slide in slides:
            verdict = last[slide]
            target = self.targets.get(slide) or verdict.facts["target"]
            rows.append({
                **verdict.facts, "slide_id": slide, "target": target if verdict.label else "",
                "reader_class": verdict.label, "verdict": verdict.verdict, "seconds": f"{verdict.seconds:.1f}",
                "blind": "yes" if verdict.blind else "no", "note": " ".join(verdict.note.split()),
                "reviewer": self.reviewer, "time": verdict.time, "run": verdict.case,
            })  # fmt: skip
        targets = [cells["target"] for cells in rows if cells["reader_class"]]
        header = [name for name in HEADER if name != "target" or (targets and all(targets))]
        return header, [[cells[name] for name in header] for cells in rows]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The journal, locked and read to its end."""
        with self._guard:
            try:
                lock = self._lock.acquire(timeout=_WAIT_S)
            except Timeout as error:
                raise ReviewError("Another program holds the journal of reviews; try again.", code=503) from error
            with lock:
                self.refresh()
                yield

    def _append(self, event: dict[str, Any]) -> None:
        event["number"] = self.revision + 1
        atomic.append_line(self.path, json.dumps(sealed(event, FORMAT, VERSION)))
        self.refresh()

    def _apply(self, event: dict[str, Any]) -> None:
        # The event says its own number; a damaged line before it must not make numbers come twice.
        self.revision = max(self.revision + 1, int(event["number"]))
        slide, action = event["slide_id"], event["action"]
        if action == "reveal":
            self.shown.update(event["slides"])
        elif event["classes"] != self.hierarchy.digest:
            self.shown.add(slide)  # of other classes: kept in the journal, but it cannot stand in one table with these
        elif action in ("region", "unmark"):
            remaining = [one for one in self.regions.get(slide, []) if one["region"] != event["region"]]
            self.regions[slide] = [*remaining, event] if action == "region" else remaining
        else:
            self._last[slide] = self.revision
            stack = self._stacks.setdefault((slide, event["case"]), [])
            if action == "undo":
                # The verdict before is in force again; nothing happens where there is none.
                del stack[-1:]
                return
            if action == "read":
                self.shown.add(slide)  # from now on the reader knows the model's call
                if event["case"] == self.digests.get(slide):
                    self.read.add(slide)
            stack.append(Verdict(
                self.revision, event["verdict"], event["class"], legible(event["note"]), float(event["seconds"]),
                bool(event["blind"]), event["time"], event["case"], {name: event[name] for name in FACTS},
            ))  # fmt: skip

    def _checked(self, slide_id: str, content: Mapping[str, Any], facts: Mapping[str, str]) -> dict[str, Any]:
        action, note, seconds = content.get("action"), content.get("note", ""), content.get("seconds", 0)
        with refusing():
            require_choice("action", action, ("read", "defer", "undo"))
            require_count("seen, the number of the last event that was seen,", content.get("seen"), at_least=0)
            require_number("seconds", seconds, at_least=0)
        if not isinstance(note, str) or len(note) > MOST_NOTE:
            raise ReviewError(f"A note has at most {MOST_NOTE} characters.")
        label = self._reading(content.get("class", "")) if action == "read" else ""
        verdict = ("agree" if label == facts["model_call"] else "override") if action == "read" else action
        return {
            **self._stamp(slide_id), **{name: facts[name] for name in FACTS}, "action": action, "verdict": verdict,
            "class": label, "note": legible(note), "seconds": min(float(seconds), MOST_SECONDS),
            "seen": content["seen"],
        }  # fmt: skip

    def _region(self, slide_id: str, content: Mapping[str, Any]) -> dict[str, Any]:
        with refusing():
            require_choice("action", content.get("action"), ("region", "unmark"))
            if content["action"] == "unmark":
                require_count("region", content.get("region"), at_least=1)
                return {**self._stamp(slide_id), "action": "unmark", "region": content["region"]}
            box = content.get("box")
            if not isinstance(box, list) or len(box) != 4:
                raise ReviewError("A region needs a box of four numbers.")
            for name, x in zip(("left", "top", "width", "height"), box, strict=True):
                low = {"above": 0.0} if name in ("width", "height") else {"at_least": -MOST_PX0}
                require_number(f"The {name} of a region", x, **low, at_most=MOST_PX0)
        label = self._label(content.get("class", ""))
        return {**self._stamp(slide_id), "action": "region", "region": 0, "class": label,
                "box": [round(float(x), 1) for x in box]}  # fmt: skip

    def _stamp(self, slide_id: str) -> dict[str, Any]:
        return {"slide_id": slide_id, "reviewer": self.reviewer, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "case": self.digests.get(slide_id, ""), "classes": self.hierarchy.digest}  # fmt: skip

    def _reading(self, label: object) -> str:
        """A class, or the findings of a slide as a table writes them, each once."""
        if self.hierarchy.findings == "one" or not isinstance(label, str):
            return self._label(label)
        with refusing():
            return joined_names(self.hierarchy.set_of(label), self.hierarchy)

    def _label(self, label: object) -> str:
        if not isinstance(label, str) or label not in self.hierarchy.names():
            raise ReviewError("The class of a reading must be one of the classes of the worklist.")
        return label


def legible(note: str) -> str:
    r"""The note with half an emoji and signs that no file should hold replaced by U+FFFD.

    >>> legible("a\ud83d b\nc") == "a\ufffd b\nc"
    True
    """
    return "".join(sign if sign.isprintable() or sign.isspace() else "\ufffd" for sign in note)
