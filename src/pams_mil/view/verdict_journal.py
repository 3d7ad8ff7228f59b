"""A reader's verdicts: a journal that only grows, and the table that is made from it.

`journal.jsonl` has one line per event with a checksum. Nothing is ever rewritten, an undo is one more line, and a
line cut short by a kill is skipped. `reviews.csv` is the state after all events, for `pams audit`. Several windows
and several servers may share a journal: each event is added under a lock, after reading what others added, and only
if the case is still in the state that the reader saw.
"""

from __future__ import annotations

import json
import math
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pams_mil import atomic
from pams_mil.errors import OutputError, PamsError
from pams_mil.evaluate.reviews import HEADER
from pams_mil.view.worklist_cases import Cases

MOST_NOTE = 2000
MOST_SECONDS = 86_400.0
_WAIT_S = 10.0


class ReviewError(PamsError):
    """A verdict that cannot be taken; `code` is the HTTP status that says why."""

    def __init__(self, message: str, *, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Verdict:
    """What a reader said about a case: a class, or that it is put off; `number` is its event in the journal."""

    number: int
    verdict: str
    label: str
    note: str
    seconds: float
    blind: bool
    time: str

    def to_json(self) -> dict[str, Any]:
        """For the browser."""
        return {"number": self.number, "verdict": self.verdict, "class": self.label, "note": self.note,
                "seconds": round(self.seconds, 1), "time": self.time}  # fmt: skip


class Journal:
    """The verdicts of one reader on one set of predictions."""

    def __init__(self, folder: Path, cases: Cases, reviewer: str, *, blind: bool = False) -> None:
        self.folder, self.cases, self.reviewer, self.blind = folder, cases, reviewer, blind
        self.path, self.table = folder / "journal.jsonl", folder / "reviews.csv"
        self.skipped = 0
        self.of_other_predictions = 0
        self.regions: dict[str, list[dict[str, Any]]] = {}
        self._stacks: dict[str, list[Verdict]] = {}
        self._last: dict[str, int] = {}
        self._revealed: set[str] = set()
        self._read_bytes = 0
        self._number = 0
        self._guard = threading.RLock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"Reviews cannot be stored in {folder}: {error.strerror}.") from error
        self._lock = FileLock(str(folder / "journal.lock"))
        self.refresh()

    @property
    def revision(self) -> int:
        """How many events there are."""
        return self._number

    def state(self, slide_id: str) -> Verdict | None:
        """The verdict in force."""
        stack = self._stacks.get(slide_id)
        return stack[-1] if stack else None

    def last_event(self, slide_id: str) -> int:
        """The number of the case's last event, an undo included; 0 when there is none."""
        return self._last.get(slide_id, 0)

    def states(self) -> Iterator[tuple[str, Verdict]]:
        """Every case with a verdict, in the order of the worklist's file."""
        for slide in self.cases.slide_ids:
            verdict = self.state(slide)
            if verdict is not None:
                yield slide, verdict

    def give(self, slide_id: str, content: Mapping[str, Any]) -> Verdict | None:
        """Add an event: `{"action": "read" | "defer" | "undo", "class", "note", "seconds", "seen"}`."""
        event = self._checked(slide_id, content)
        with self._guard, self._held():
            self.refresh()
            # Compared under the lock, after reading on: no event of another window can come in between.
            if event.pop("seen") != self.last_event(slide_id):
                raise ReviewError("This case was changed in another window; its present state is shown.", code=409)
            if event["action"] == "undo" and self.state(slide_id) is None:
                raise ReviewError("There is no verdict to undo.", code=409)
            self._append(event)
            self.write_table()
        return self.state(slide_id)

    def mark(self, slide_id: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Add a region: `{"action": "region" | "unmark", "box": [x, y, w, h] in level-0 pixels, "class", "region"}`."""
        event = self._region(slide_id, content)
        with self._guard, self._held():
            self.refresh()
            if event["action"] == "region":
                # The number of its own event: unique, and known under the lock only.
                event["region"] = self._number + 1
            self._append(event)
        return event

    def refresh(self) -> None:
        """Read what was added since; damaged lines are counted and skipped."""
        with self._guard:
            self._read_on()

    def _read_on(self) -> None:
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
            event = _unsealed(line)
            if event is None:
                self.skipped += bool(line.strip())
            else:
                self._apply(event)

    def write_table(self) -> None:
        """Write reviews.csv; with the true classes where all reviewed cases have one."""
        # Under the lock and after reading on: a table made from older events would replace one with newer verdicts.
        with self._guard, self._held():
            self.refresh()
            atomic.write_csv(self.table, *self._table())

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of reviews.csv."""
        names = self.cases.hierarchy.names()
        found = list(self.states())
        target = [self.cases.target[self.cases.row_of[slide]] for slide, _ in found]
        known = bool(found) and all(label >= 0 for label in target)
        header = [*HEADER[:2], *(["target"] if known else []), *HEADER[2:]]
        rows = []
        for (slide, verdict), label in zip(found, target, strict=True):
            row = self.cases.row_of[slide]
            rows.append([
                slide, self.cases.patient_ids[row], *([names[label]] if known else []), names[self.cases.call[row]],
                self.cases.cannot_exclude[row], verdict.label, verdict.verdict, f"{verdict.seconds:.1f}",
                "yes" if verdict.blind else "no", " ".join(verdict.note.split()), self.reviewer, verdict.time,
                self.cases.digest,
            ])  # fmt: skip
        return header, rows

    def _held(self) -> Any:
        try:
            return self._lock.acquire(timeout=_WAIT_S)
        except Timeout as error:
            raise ReviewError("Another program holds the journal of reviews; try again.", code=503) from error

    def _append(self, event: dict[str, Any]) -> None:
        event["number"] = self._number + 1
        atomic.append_line(self.path, _sealed(event))
        self.refresh()

    def _apply(self, event: dict[str, Any]) -> None:
        # The event says its own number; a damaged line before it must not make numbers come twice.
        self._number = max(self._number + 1, int(event["number"]))
        slide = event["slide_id"]
        if event["run"] != self.cases.digest or slide not in self.cases.row_of:
            self.of_other_predictions += 1  # kept in the journal, but it speaks of other calls
            return
        if event["action"] in ("region", "unmark"):
            kept = [one for one in self.regions.get(slide, []) if one["region"] != event["region"]]
            self.regions[slide] = [*kept, event] if event["action"] == "region" else kept
            return
        self._last[slide] = self._number
        stack = self._stacks.setdefault(slide, [])
        if event["action"] == "undo":
            # The verdict before is in force again; nothing happens where there is none.
            del stack[-1:]
            return
        if event["action"] == "read":
            self._revealed.add(slide)  # from now on the reader knows the model's call
        stack.append(Verdict(
            self._number, event["verdict"], event["class"], event["note"], float(event["seconds"]),
            bool(event["blind"]), event["time"],
        ))  # fmt: skip

    def _checked(self, slide_id: str, content: Mapping[str, Any]) -> dict[str, Any]:
        action, label, note = content.get("action"), content.get("class", ""), content.get("note", "")
        if action not in ("read", "defer", "undo"):
            raise ReviewError("The action must be 'read', 'defer' or 'undo'.")
        if not isinstance(note, str) or len(note) > MOST_NOTE:
            raise ReviewError(f"A note has at most {MOST_NOTE} characters.")
        seen, seconds = content.get("seen"), content.get("seconds", 0)
        if not isinstance(seen, int) or isinstance(seen, bool):
            raise ReviewError("The number of the last event that was seen is missing.")
        if not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds < 0:
            raise ReviewError("The time spent must be a number of seconds.")
        verdict = action
        if action == "read":
            call = self.cases.hierarchy.names()[self.cases.call[self.cases.row_of[slide_id]]]
            verdict = "agree" if self._label(label) == call else "override"
        return {
            **self._facts(slide_id), "action": action, "verdict": verdict, "class": label if action == "read" else "",
            "note": note, "seconds": min(float(seconds), MOST_SECONDS), "seen": seen,
        }  # fmt: skip

    def _region(self, slide_id: str, content: Mapping[str, Any]) -> dict[str, Any]:
        action, name = content.get("action"), content.get("region")
        if action == "unmark" and isinstance(name, int) and not isinstance(name, bool):
            return {**self._facts(slide_id), "action": "unmark", "region": name}
        box = content.get("box")
        numbers = isinstance(box, list) and len(box) == 4 and all(isinstance(x, (int, float)) for x in box)
        if action != "region" or not isinstance(box, list) or not numbers:
            raise ReviewError("A region needs a box of four numbers.")
        if not all(math.isfinite(x) and abs(x) < 1e7 for x in box) or min(box[2:]) <= 0:
            raise ReviewError("The box of a region must have a positive size.")
        label = self._label(content.get("class", ""))
        return {**self._facts(slide_id), "action": "region", "region": 0, "class": label,
                "box": [round(float(x), 1) for x in box]}  # fmt: skip

    def _facts(self, slide_id: str) -> dict[str, Any]:
        return {"slide_id": slide_id, "reviewer": self.reviewer, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "blind": self.blind and slide_id not in self._revealed, "run": self.cases.digest}  # fmt: skip

    def _label(self, label: object) -> str:
        if not isinstance(label, str) or label not in self.cases.hierarchy.names():
            raise ReviewError("The class of a reading must be one of the classes of the worklist.")
        return label


def _sealed(event: Mapping[str, Any]) -> str:
    """The event with a checksum, so that a damaged line cannot pass for a verdict."""
    # Text within text: the checksum is of these very bytes, whatever a JSON library does to numbers.
    text = json.dumps(event, ensure_ascii=True, sort_keys=True)
    return json.dumps({"crc": zlib.crc32(text.encode()), "event": text})


def _unsealed(line: bytes) -> dict[str, Any] | None:
    try:
        outer = json.loads(line)
        if zlib.crc32(outer["event"].encode()) != outer["crc"]:
            return None
        event = json.loads(outer["event"])
        return event if isinstance(event, dict) and {"number", "slide_id", "run", "action"} <= event.keys() else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
