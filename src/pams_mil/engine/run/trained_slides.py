"""The slides that trained a run and those that chose its epoch: `cohort.csv` in its folder.

The table that a run was started with may change afterwards, and then nobody could say any more whether a slide was
trained on. So a run keeps its own list. It stays in the run folder: checkpoints and exports carry digests only, since
names of patients are nobody else's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pams_mil import atomic
from pams_mil.data import tables
from pams_mil.data.exposure import Exposure, Fingerprints, Role
from pams_mil.data.manifest.manifest import SlideRecord
from pams_mil.digests import digest
from pams_mil.errors import PamsError, RunError

FILE = "cohort.csv"
HELD_OUT = "held_out.csv"
"""The slides of the other splits as the table had them when the run was started: they have not been seen."""
Difference = tuple[str, Any, Any]
"""What differs, what it was, what it is."""


class SeenSlide(NamedTuple):
    """A row of `cohort.csv`."""

    slide_id: str
    patient_id: str
    case_id: str
    label: str
    split: str


@dataclass(frozen=True)
class TrainedSlides:
    """The slides that a run has seen, in the order of its table.

    >>> seen = TrainedSlides((SeenSlide("s1", "p1", "", "a", "train"), SeenSlide("s2", "p2", "", "b", "val")))
    >>> seen.patients("train"), seen.slides("val")
    (('p1',), ('s2',))
    """

    rows: tuple[SeenSlide, ...]

    @classmethod
    def of(cls, records: Iterable[SlideRecord], *parts: str) -> TrainedSlides:
        """The slides of some parts of a cohort."""
        kept = (record for record in records if record.split in parts)
        return cls(tuple(SeenSlide(*(getattr(one, name) for name in SeenSlide._fields)) for one in kept))

    def patients(self, *splits: str) -> tuple[str, ...]:
        """The patients of some parts, each once."""
        return tuple(dict.fromkeys(row.patient_id for split in splits for row in self.rows if row.split == split))

    def slides(self, *splits: str) -> tuple[str, ...]:
        """The slides of some parts."""
        return tuple(dict.fromkeys(row.slide_id for split in splits for row in self.rows if row.split == split))

    def exposure(self, *, selects: bool, fingerprints: Fingerprints | None = None) -> Exposure:
        """The roles of patients, slides and features: `val` has chosen the epoch where the run `selects` one."""
        roles: dict[str, Role] = {"train": "train", **({"val": "select"} if selects else {})}
        rows = ((row.slide_id, row.patient_id, roles[row.split]) for row in self.rows if row.split in roles)
        return Exposure.of(rows, fingerprints)

    def summary(self) -> dict[str, dict[str, Any]]:
        """For every part how many slides of how many patients, and a digest of its rows."""
        return {
            split: {
                "slides": len(self.slides(split)),
                "patients": len(self.patients(split)),
                "digest": digest([list(row) for row in self.rows if row.split == split]),
            }
            for split in sorted({row.split for row in self.rows})
        }

    def write(self, folder: Path, name: str = FILE) -> None:
        """Write `cohort.csv`, or a file of another name."""
        atomic.write_csv(folder / name, SeenSlide._fields, self.rows)

    @classmethod
    def read(cls, folder: Path, expected: dict[str, Any]) -> TrainedSlides:
        """Read `cohort.csv`, which must be the one that `expected`, its summary, was made of."""
        unknown = f"Cannot determine which slides trained {folder}: {folder / FILE}"
        try:
            table = tables.read_table(folder / FILE)
            slides = cls(tuple(map(SeenSlide, *(table[name] for name in SeenSlide._fields))))
        except (PamsError, KeyError, OSError) as error:
            raise RunError(f"{unknown} cannot be read ({error}). Restore it from a copy.") from error
        if slides.summary() != expected:
            raise RunError(f"{unknown} was changed after it was written. Restore it from a copy.")
        return slides


def slide_differences(before: TrainedSlides, now: TrainedSlides) -> list[Difference]:
    """Which slides differ and in what.

    >>> one = TrainedSlides((SeenSlide("s1", "p1", "", "a", "train"), SeenSlide("s2", "p2", "", "b", "val")))
    >>> two = TrainedSlides((SeenSlide("s1", "p1", "", "b", "train"), SeenSlide("s3", "p3", "", "b", "val")))
    >>> for found in slide_differences(one, two):
    ...     print(*found, sep=": ")
    the label of slide 's1': a: b
    slide 's2': in val: not there
    slide 's3': not there: in val
    """
    old, new = ({row.slide_id: row for row in side.rows} for side in (before, now))
    differences: list[Difference] = []
    for slide in dict.fromkeys([*old, *new]):
        if slide not in old or slide not in new:
            was, is_now = (f"in {side[slide].split}" if slide in side else "not there" for side in (old, new))
            differences.append((f"slide {slide!r}", was, is_now))
            continue
        for name, column in (("label", "label"), ("part", "split"), ("patient", "patient_id"), ("case", "case_id")):
            one, two = (getattr(side[slide], column) for side in (old, new))
            if one != two:
                differences.append((f"the {name} of slide {slide!r}", one, two))
    if not differences and before.rows != now.rows:
        pairs = enumerate(zip(before.rows, now.rows, strict=True), 1)
        place, (first, second) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        differences.append((f"the slide in row {place} of the table", first.slide_id, second.slide_id))
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
