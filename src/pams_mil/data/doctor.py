"""The bag doctor: one pass over a cohort that finds everything wrong with it, and a summary per class and split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pams_mil.data.bags.bag import BagInfo
from pams_mil.data.bags.feature_origin import agrees, known_widths, width_complaint
from pams_mil.data.bags.store import BagStore, open_store
from pams_mil.data.examine import Problem, class_counts, examine_manifest, grouped
from pams_mil.data.manifest.manifest import PARTS, Manifest, SlideRecord
from pams_mil.errors import BagError, LabelError, MissingBagError, counted, listing
from pams_mil.hierarchy import ClassHierarchy

SMALL_BAG = 8


def is_vector(info: BagInfo) -> bool:
    """Whether a bag is one vector for the whole slide or patient rather than tiles.

    >>> is_vector(BagInfo(layout="trident slide")), is_vector(BagInfo(layout="trident"))
    (True, False)
    """
    return info.layout.endswith((" slide", " patient"))


@dataclass(frozen=True)
class BagFacts:
    """What the doctor keeps of a bag after reading it."""

    record: SlideRecord
    rows: int
    width: int
    dtype: str
    info: BagInfo
    digest: str
    blank: bool = False
    """Whether all features are 0."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything found: the problems, counts per class and split, and what the bags are like."""

    manifest: Manifest
    hierarchy: ClassHierarchy
    problems: tuple[Problem, ...]
    bags: tuple[BagFacts, ...]
    read_features: bool

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that make the cohort unusable."""
        return tuple(problem for problem in self.problems if problem.error)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Slides per split and class, in the order of the hierarchy; slides in no split count under ''."""
        names = self.hierarchy.names()
        splits = [split for split in (*PARTS, "") if any(record.split == split for record in self.manifest)]
        table = {split: dict.fromkeys(names, 0) for split in splits}
        for record in self.manifest:
            try:
                table[record.split][names[self.hierarchy.index(record.label)]] += 1
            except (LabelError, KeyError):
                continue
        return table

    @property
    def notes(self) -> list[str]:
        """What is worth knowing of the table and its classes."""
        notes = [*self.manifest.notes, *self.hierarchy.tie_notes()]
        if self.hierarchy.findings == "several":
            counts = class_counts((record.label for record in self.manifest), self.hierarchy)
            named = ", ".join(f"{name} {slides:,}" for name, slides in counts.items() if name != self.hierarchy.nothing)
            notes.append(f"Slides are counted by their most urgent finding; slides with each finding: {named}.")
        return notes

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as plain values."""
        return {
            "manifest": str(self.manifest.source),
            "classes": {
                "name": self.hierarchy.name,
                "digest": self.hierarchy.digest,
                "order": list(self.hierarchy.names()),
            },
            "slides": len(self.manifest),
            "patients": len(self.manifest.patients),
            "patients_are_slides": self.manifest.patients_are_slides,
            "notes": self.notes,
            "counts": self.counts,
            "features_read": self.read_features,
            "bags": self.bag_summary(),
            "problems": [problem.to_json() for problem in self.problems],
            "usable": not self.errors,
        }

    def bag_summary(self) -> dict[str, Any]:
        """Layouts, widths and sizes of the bags that could be read."""
        sizes = sorted(facts.rows for facts in self.bags)
        return {
            "readable": len(self.bags),
            "layouts": dict(Counter(facts.info.layout for facts in self.bags)),
            "widths": {str(width): count for width, count in Counter(facts.width for facts in self.bags).items()},
            "precisions": dict(Counter(facts.dtype for facts in self.bags)),
            "encoders": dict(Counter(facts.info.encoder or "not stated" for facts in self.bags)),
            "instances": sum(sizes),
            "smallest": sizes[0] if sizes else 0,
            "median": round(median(sizes)) if sizes else 0,
            "largest": sizes[-1] if sizes else 0,
        }


def diagnose(
    manifest: Manifest,
    hierarchy: ClassHierarchy,
    *,
    features: Path | str | None,
    workers: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Examine the table and, unless `features` is None, every feature file."""
    training = any(record.split == "train" for record in manifest)
    problems = examine_manifest(manifest, hierarchy, training=training)
    bags: list[BagFacts] = []
    if features is not None:
        store, unreadable = open_store(features, manifest), []
        with ThreadPoolExecutor(max(1, workers)) as pool:
            # map keeps the order of the table, so that reports of the same cohort are the same.
            for done, outcome in enumerate(pool.map(lambda record: _facts(record, store), manifest), 1):
                if isinstance(outcome, Problem):
                    unreadable.append(outcome)
                else:
                    bags.append(outcome)
                if progress is not None:
                    progress(done, len(manifest))
        problems += _counted_missing(unreadable, len(manifest))
        for look in (_mixtures, _other_widths, _duplicates, _unlikely):
            problems += look(bags)
    return Diagnosis(manifest, hierarchy, tuple(problems), tuple(bags), features is not None)


def _facts(record: SlideRecord, store: BagStore) -> BagFacts | Problem:
    try:
        bag = store.read(record)
    except BagError as error:
        kind = "missing bag" if isinstance(error, MissingBagError) else "unusable bag"
        return Problem(kind, str(error), (record.slide_id,))
    blank = not bag.features.any()
    return BagFacts(record, bag.num_instances, bag.width, bag.features.dtype.name, bag.info, bag.feature_digest, blank)


def _counted_missing(unreadable: list[Problem], slides: int) -> list[Problem]:
    """Slides without a feature file as one problem with a count; a hundred near-identical lines hide the others."""
    missing = [problem for problem in unreadable if problem.kind == "missing bag"]
    if len(missing) < 2:
        return unreadable
    ids = tuple(slide for problem in missing for slide in problem.slides)
    message = f"{len(ids):,} of {slides:,} slides have no feature file: {listing(ids)}. First: {missing[0].message}"
    return [Problem("missing bag", message, ids), *(problem for problem in unreadable if problem not in missing)]


def _mixtures(bags: list[BagFacts]) -> Iterator[Problem]:
    """Bags of different encoders, widths, tile sizes or resolutions cannot be trained on together."""
    names = {"width": "feature widths", "encoder": "encoders", "tile_px": "tile sizes (px)", "mpp": "resolutions (mpp)",
             "magnification": "nominal magnifications"}  # fmt: skip
    for key, what in names.items():
        stated = (
            (facts.width if key == "width" else getattr(facts.info, key), facts.record.slide_id) for facts in bags
        )
        groups = grouped((answer, slide) for answer, slide in stated if answer is not None)
        if key == "mpp":
            groups = _same_optics(groups)
        if len(groups) > 1:
            # The largest group comes last and counts as what was meant; the slides of all others are the odd ones.
            ordered = sorted(groups.items(), key=lambda group: len(group[1]))
            shown = "; ".join(
                f"{answer}: {len(slides)} slides ({listing(slides, most=3)})" for answer, slides in ordered
            )
            odd = tuple(slide for _, slides in ordered[:-1] for slide in slides)
            yield Problem("mixed features", f"The bags have {len(groups)} different {what}. {shown}.", odd)


def _same_optics(groups: dict[float, list[str]]) -> dict[float, list[str]]:
    """Groups of resolutions that agree with the most frequent one among them.

    >>> _same_optics({0.2549: ["a"], 0.2551: ["b", "c"], 0.5: ["d"]})
    {0.2551: ['b', 'c', 'a'], 0.5: ['d']}
    """
    merged: dict[float, list[str]] = {}
    for mpp, slides in sorted(groups.items(), key=lambda group: -len(group[1])):
        same = next((other for other in merged if agrees("mpp", mpp, other)), mpp)
        merged.setdefault(same, []).extend(slides)
    return merged


def _other_widths(bags: list[BagFacts]) -> Iterator[Problem]:
    """Encoders that make features of another width than the bags have; the table may state what files do not."""
    complaints = []
    for facts in bags:
        encoder = facts.info.encoder or facts.record.extra.get("encoder", "").strip()
        # One row of no width of tiles: the one vector of a slide encoder.
        whole = facts.rows == 1 and facts.width not in known_widths(encoder)
        complaints.append((width_complaint(encoder, facts.width, slide_level=whole), facts.record.slide_id))
    for complaint, slides in grouped(complaints).items():
        if complaint:
            message = f"In {counted(len(slides), 'slide')} {complaint}: {listing(slides, most=3)}. "
            advice = "Name the encoder that computed them, or new slides will be encoded by another."
            yield Problem("encoder and width", message + advice, tuple(slides), error=False)


def _duplicates(bags: list[BagFacts]) -> Iterator[Problem]:
    """Equal features under two ids; across splits this is a leak."""
    for records in grouped((facts.digest, facts.record) for facts in bags).values():
        if len(records) < 2:
            continue
        ids = tuple(record.slide_id for record in records)
        leak = len({record.split for record in records if record.split}) > 1
        patients = {record.patient_id for record in records}
        where = " in different splits" if leak else ""
        message = f"{len(ids)} slides of {len(patients)} patients have equal features{where}: {listing(ids)}."
        yield Problem("duplicate features", message, ids, error=leak or len(patients) > 1)


def _unlikely(bags: list[BagFacts]) -> Iterator[Problem]:
    """Bags without content, of one vector, or of few tiles."""
    # Kind, which bags, how many are shown, and what is said of them and of the list.
    looks: list[tuple[str, Callable[[BagFacts], bool], int, str, str]] = [
        ("blank bag", lambda one: one.blank, 8, "of nothing but zeros", "Extract the slides again."),
        ("slide vectors", lambda one: is_vector(one.info), 3, "of one vector per slide or patient, by a slide encoder",
         "Train on them with --model linear, and with method.remix=null where the method remixes."),
        ("tiny bag", lambda one: one.rows < SMALL_BAG and not is_vector(one.info), 8,
         f"of fewer than {SMALL_BAG} instances", "Was the tissue found?"),
    ]  # fmt: skip
    for kind, applies, most, what, advice in looks:
        if slides := tuple(facts.record.slide_id for facts in bags if applies(facts)):
            message = f"{counted(len(slides), 'bag')} {what}: {listing(slides, most=most)}. {advice}"
            yield Problem(kind, message, slides, error=False)
