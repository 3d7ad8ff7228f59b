"""The slides that trained a run and those that chose its epoch: `cohort.csv` in its folder.

The table that a run was started with may change afterwards, and then nobody could say any more whether a slide was
trained on. So a run keeps its own list. It stays in the run folder: checkpoints and exports carry digests only, since
names of patients are nobody else's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pams_mil import atomic
from pams_mil.data import tables
from pams_mil.data.exposure import Exposure, Role
from pams_mil.data.manifest.manifest import SlideRecord
from pams_mil.digests import digest
from pams_mil.errors import PamsError, RunError

FILE = "cohort.csv"
HELD_OUT = "held_out.csv"
"""The slides of the other splits as the table had them when the run was started: they have not been seen."""
COLUMNS = ("slide_id", "patient_id", "case_id", "label", "split")
_PLACE = {name: number for number, name in enumerate(COLUMNS)}
Row = tuple[str, ...]
Difference = tuple[str, Any, Any]
"""What differs, what it was, what it is."""


@dataclass(frozen=True)
class TrainedSlides:
    """Slide, patient, case, label and part of every slide that a run has seen, in the order of its table.

    >>> seen = TrainedSlides((("s1", "p1", "", "a", "train"), ("s2", "p2", "", "b", "val")))
    >>> seen.patients("train"), seen.slides("val")
    (('p1',), ('s2',))
    """

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, records: Iterable[SlideRecord], *parts: str) -> TrainedSlides:
        """The slides of some parts of a cohort."""
        return cls(tuple((r.slide_id, r.patient_id, r.case_id, r.label, r.split) for r in records if r.split in parts))

    def part(self, split: str) -> tuple[Row, ...]:
        """The rows of one part."""
        return tuple(row for row in self.rows if row[_PLACE["split"]] == split)

    def patients(self, *splits: str) -> tuple[str, ...]:
        """The patients of some parts, each once."""
        return self._cells("patient_id", splits)

    def slides(self, *splits: str) -> tuple[str, ...]:
        """The slides of some parts."""
        return self._cells("slide_id", splits)

    def _cells(self, column: str, splits: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row[_PLACE[column]] for split in splits for row in self.part(split)))

    def exposure(self, *, selects: bool, fingerprints: Mapping[str, str] | None = None) -> Exposure:
        """The roles of patients, slides and features: `val` has chosen the epoch where the run `selects` one."""
        roles: dict[str, Role] = {"train": "train", **({"val": "select"} if selects else {})}
        slide, patient, split = _PLACE["slide_id"], _PLACE["patient_id"], _PLACE["split"]
        rows = ((row[slide], row[patient], roles[row[split]]) for row in self.rows if row[split] in roles)
        return Exposure.of(rows, fingerprints)

    def summary(self) -> dict[str, dict[str, Any]]:
        """For every part how many slides of how many patients, and a digest of its rows."""
        parts = dict.fromkeys(row[_PLACE["split"]] for row in self.rows)
        return {
            subset: {
                "slides": len(self.slides(subset)),
                "patients": len(self.patients(subset)),
                "digest": digest([list(row) for row in self.part(subset)]),
            }
            for subset in sorted(parts)
        }

    def write(self, folder: Path, name: str = FILE) -> None:
        """Write `cohort.csv`, or a file of another name."""
        atomic.write_csv(folder / name, COLUMNS, self.rows)

    @classmethod
    def read(cls, folder: Path, expected: dict[str, Any]) -> TrainedSlides:
        """Read `cohort.csv`, which must be the one that `expected`, its summary, was made of."""
        try:
            table = tables.read_table(folder / FILE)
            slides = cls(tuple(zip(*(table[name] for name in COLUMNS), strict=True)))
        except (PamsError, KeyError, OSError) as error:
            raise RunError(
                f"Cannot determine which slides trained {folder}: {folder / FILE} cannot be read ({error}). "
                "Restore it from a copy."
            ) from error
        if slides.summary() != expected:
            raise RunError(
                f"Cannot determine which slides trained {folder}: {folder / FILE} was changed after it was written. "
                "Restore it from a copy."
            )
        return slides


def slide_differences(before: TrainedSlides, now: TrainedSlides) -> list[Difference]:
    """Which slides differ and in what.

    >>> one = TrainedSlides((("s1", "p1", "", "a", "train"), ("s2", "p2", "", "b", "val")))
    >>> two = TrainedSlides((("s1", "p1", "", "b", "train"), ("s3", "p3", "", "b", "val")))
    >>> for found in slide_differences(one, two):
    ...     print(*found, sep=": ")
    the label of slide 's1': a: b
    slide 's2': in val: not there
    slide 's3': not there: in val
    """
    old, new = ({row[0]: row for row in side.rows} for side in (before, now))
    differences: list[Difference] = []
    for slide in dict.fromkeys([*old, *new]):
        if slide not in old or slide not in new:
            places = [f"in {side[slide][_PLACE['split']]}" if slide in side else "not there" for side in (old, new)]
            differences.append((f"slide {slide!r}", places[0], places[1]))
            continue
        for column, name in (("label", "label"), ("split", "part"), ("patient_id", "patient"), ("case_id", "case")):
            one, two = old[slide][_PLACE[column]], new[slide][_PLACE[column]]
            if one != two:
                differences.append((f"the {name} of slide {slide!r}", one, two))
    if not differences and before.rows != now.rows:
        place = next(i for i, (one, two) in enumerate(zip(before.rows, now.rows, strict=True)) if one != two)
        differences.append((f"the slide in row {place + 1} of the table", before.rows[place][0], now.rows[place][0]))
    return differences


def changed_labels(run: Path, records: Iterable[SlideRecord]) -> dict[str, tuple[str, str]]:
    """Slides whose label is not the one that the table had when a run was started: what it was, and what it is."""
    before: dict[tuple[str, str], str] = {}
    for name in (FILE, HELD_OUT):
        if (run / name).is_file():
            table = tables.read_table(run / name)
            before |= dict(zip(zip(table["slide_id"], table["patient_id"], strict=True), table["label"], strict=True))
    return {
        record.slide_id: (before[key], record.label)
        for record in records
        if record.label and before.get(key := (record.slide_id, record.patient_id), record.label) != record.label
    }
