"""What is wrong with a manifest by itself, before any feature file is opened: all of it, in one pass.

Also the labels of a table, counted for a class file; they are ordered by whoever knows their urgency.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pams_mil.data.bags.filenames import SLIDE_SUFFIXES
from pams_mil.data.bags.store import SUFFIXES
from pams_mil.data.exposure import same_person
from pams_mil.data.manifest.manifest import PARTS, Manifest
from pams_mil.data.tables import read_table
from pams_mil.errors import LabelError, ManifestError, ParameterError, counted, listing, nearest
from pams_mil.hierarchy import ClassHierarchy

_KNOWN_SUFFIXES = (*SLIDE_SUFFIXES, *SUFFIXES)
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Problem:
    """One finding. An error makes the cohort unusable; a warning is worth knowing."""

    kind: str
    message: str
    slides: tuple[str, ...] = ()
    error: bool = True

    def to_json(self) -> dict[str, Any]:
        """The problem as plain values."""
        level = "error" if self.error else "warning"
        return {"kind": self.kind, "level": level, "message": self.message, "slides": list(self.slides)}


def examine_manifest(
    manifest: Manifest, hierarchy: ClassHierarchy, *, whole: Manifest | None = None, training: bool = True
) -> list[Problem]:
    """Every problem of the table: ids, labels, patients, splits and paths.

    `whole` is the table that `manifest` is a part of: what runs across splits, and slides in a split that does not
    exist, can only be seen there. Without `training`, a finding that no slide has is worth a warning only.
    """
    if not manifest.records:
        return [Problem("no slides", f"{manifest.where} has no rows; expected one per slide.")]
    return [
        *_ids(manifest),
        *_labels(manifest, hierarchy),
        *examine_patients(whole or manifest),
        *_splits(whole or manifest),
        *_paths(manifest),
        *_absent_classes(manifest, hierarchy, training),
    ]


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of every key, in the order of their first appearance.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _ids(manifest: Manifest) -> Iterator[Problem]:
    counts = Counter(record.slide_id for record in manifest)
    if counts.get(""):
        yield Problem("no slide id", f"{counts['']} rows have no slide id; every slide needs one.")
    if twice := tuple(slide for slide, count in counts.items() if slide and count > 1):
        yield Problem("duplicate slide", f"{len(twice)} slide ids appear more than once: {listing(twice)}.", twice)
    alike = grouped((folded(slide), slide) for slide in counts)
    if confusable := tuple(slide for slides in alike.values() if len(slides) > 1 for slide in slides):
        yield Problem(
            "look-alike ids",
            f"{len(confusable)} slide ids differ from another only in case, extension or Unicode form: "
            f"{listing(confusable)}. They are kept apart; are they different slides?",
            confusable,
            error=False,
        )


def folded(slide_id: str) -> str:
    """What a careless reader or file system takes an id for.

    >>> folded("Slide1.SVS") == folded("slide1")
    True
    """
    text = slide_id.lower() if slide_id.isascii() else unicodedata.normalize("NFKC", slide_id).casefold()
    # Several suffixes may follow one another: slide.svs.h5.
    while text.endswith(_KNOWN_SUFFIXES):
        text = text[: text.rindex(".")]
    return text


def _labels(manifest: Manifest, hierarchy: ClassHierarchy) -> Iterator[Problem]:
    slides = grouped((record.label, record.slide_id) for record in manifest)
    unknown: dict[str, str] = {}
    for label, slide_ids in slides.items():
        try:
            if label.strip():
                hierarchy.set_of(label)
                continue
        except LabelError as error:
            unknown[label] = str(error)
            continue
        advice = ""
        if hierarchy.findings == "several":  # an empty cell may also mean that nobody looked
            nothing = hierarchy.nothing
            do = f"write {nothing!r}" if nothing else "name a class for that under 'nothing:' first"
            advice = f" If nothing was found, {do}; an empty cell may also mean that nobody looked."
        message = f"{len(slide_ids)} slides have no label: {listing(slide_ids)}.{advice}"
        yield Problem("no label", message, tuple(slide_ids))
    # Many, and each is simply no class: the class file of another cohort. One sentence says it.
    foreign = [label for label, reason in unknown.items() if reason.startswith(f"{label!r} is not a class of")]
    for label, reason in unknown.items():
        if label not in foreign or len(foreign) == 1:
            message = f"{len(slides[label])} slides ({listing(slides[label], most=3)}) have an unknown label: {reason}"
            yield Problem("unknown label", message, tuple(slides[label]))
    if len(foreign) > 1:
        names = hierarchy.names()
        hints = {label: nearest(label, names).strip().replace("Did", ", did", 1) for label in foreign[:10]}
        texts = [f"{label!r} ({len(slides[label])}{hint})" for label, hint in hints.items()]
        rest = f" and {len(foreign) - 10} more" if len(foreign) > 10 else ""
        everywhere = tuple(slide for label in foreign for slide in slides[label])
        yield Problem(
            "unknown label",
            f"{len(everywhere)} slides have labels that are not in {hierarchy.name!r}: {', '.join(texts)}{rest}. "
            f"Classes: {listing(names, most=30)}. Labels are matched exactly; other spellings can be declared under "
            "'aliases' in the class file.",
            everywhere,
        )


def examine_patients(manifest: Manifest) -> Iterator[Problem]:
    """Slides without a patient, and patients in several splits, in any spelling."""

    def slides_of(patients: Collection[str]) -> tuple[str, ...]:
        return tuple(record.slide_id for record in manifest if record.patient_id in patients)

    if nameless := tuple(record.slide_id for record in manifest if not record.patient_id.strip()):
        yield Problem("no patient", f"{len(nameless)} slides have no patient id: {listing(nameless)}.", nameless)
    named = [record for record in manifest if record.patient_id.strip()]
    splits = {
        patient: set(names) - {""}
        for patient, names in grouped((record.patient_id, record.split) for record in named).items()
    }
    if shared := {patient: None for patient, names in splits.items() if len(names) > 1}:
        yield Problem(
            "patient in two splits",
            f"{len(shared)} patients have slides in more than one split: {listing(shared)}. Scores would be inflated, "
            "certificates would claim too much; split by patient with 'pams split'.",
            slides_of(shared),
        )
    groups = [group for group in grouped((same_person(name), name) for name in splits).values() if len(group) > 1]
    # Probably one person, spelled in two ways: an error if they are in different splits, else a warning.
    for apart in (True, False):
        pairs = [group for group in groups if (len(set().union(*map(splits.__getitem__, group))) > 1) == apart]
        names = {patient for group in pairs for patient in group}
        # what cannot be seen is written out
        shown = "; ".join(" and ".join(map(ascii, group)) for group in pairs[:5])
        where = " and are in different splits" if apart else ""
        if pairs:
            yield Problem(
                "look-alike patients",
                f"{len(names)} patient ids differ from another only in case, spaces, invisible characters or Unicode "
                f"form{where}: {shown}. If they are one patient, give all slides the same id; if not, ids that differ "
                "visibly.",
                slides_of(names),
                error=apart,
            )


def _splits(manifest: Manifest) -> Iterator[Problem]:
    for split, slide_ids in grouped((record.split, record.slide_id) for record in manifest).items():
        if split and split not in PARTS:
            message = (
                f"{len(slide_ids)} slides ({listing(slide_ids, most=3)}) are in the unknown split {split!r}; expected "
                f"{listing(PARTS)}.{nearest(split, PARTS)}"
            )
            yield Problem("unknown split", message, tuple(slide_ids))
    outside = tuple(record.slide_id for record in manifest if not record.split)
    if outside and len(outside) < len(manifest):
        message = f"{len(outside)} slides are in no split and will not be used: {listing(outside)}."
        yield Problem("no split", message, outside, error=False)


def _paths(manifest: Manifest) -> Iterator[Problem]:
    if odd := tuple(record.slide_id for record in manifest if "\\" in record.path):
        yield Problem("backslash in path", f"{len(odd)} paths have backslashes; write them with '/'.", odd)
    stated = ((PurePosixPath(record.path), record.slide_id) for record in manifest if record.path)
    for path, slide_ids in grouped(stated).items():
        if len(set(slide_ids)) > 1:
            message = f"{len(slide_ids)} slides have the same feature file '{path}': {listing(slide_ids)}."
            yield Problem("shared feature file", message, tuple(slide_ids))


def _absent_classes(manifest: Manifest, hierarchy: ClassHierarchy, training: bool) -> Iterator[Problem]:
    """Classes that a split lacks; without splits, classes that the cohort lacks."""
    total = class_counts((record.label for record in manifest), hierarchy)
    never: list[str] = []
    if hierarchy.findings == "several" and training:
        never = [name for name in hierarchy.names() if name != hierarchy.nothing and not total[name]]
    if never:
        yield Problem(
            "finding without a slide",
            f"No slide has {listing(never)}, so nothing can be learned of it. Add slides, or take it out of the class "
            "file.",
        )
    present = [split for split in PARTS if any(record.split == split for record in manifest)]
    for split in present or [""]:
        counts = class_counts((record.label for record in manifest if split in ("", record.split)), hierarchy)
        if absent := [name for name, slides in counts.items() if not slides and name not in never]:
            where = f"The split {split!r}" if split else "The cohort"
            yield Problem("absent class", f"{where} has no slide of {listing(absent)}.", error=False)


def class_counts(labels: Iterable[str], hierarchy: ClassHierarchy) -> dict[str, int]:
    """How many slides have each class; one with several findings counts for each."""
    counts = dict.fromkeys(hierarchy.names(), 0)
    for label, slides in Counter(labels).items():
        with suppress(LabelError):  # told of by itself
            for member in hierarchy.set_of(label):
                counts[hierarchy.names()[member]] += slides
    return counts


def refuse_errors(problems: Iterable[Problem], where: str) -> None:
    """Raise one `ManifestError` that tells of the first five errors, if there are any."""
    errors = [problem.message for problem in problems if problem.error]
    if errors:
        shown = [*errors[:5], *([f"and {len(errors) - 5} more"] if len(errors) > 5 else [])]
        lines = "".join(f"\n- {line}" for line in shown)
        raise ManifestError(f"{where} cannot be used:{lines}\n'pams check' lists everything in one pass.")


Order = list[str | list[str]]
"""Classes, least urgent first; a nested list is equally urgent."""
_PLAIN = re.compile(r"[^\W\d_](?:[\w -]*\w)?")


def count_labels(path: Path | str, column: str | None = None) -> dict[str, int]:
    """Every label of a table and in how many rows it is, in the order of the alphabet."""
    table = read_table(path)
    name = column or next((name for name in table if name.casefold() == "label"), None)
    if name is None or name not in table:
        hint = nearest(name, table) if name else ""
        raise ManifestError(
            f"{path} has no column {name or 'label'!r}.{hint} Found {listing(table)}. Name it with --label-column."
        )
    counts = Counter(cell for cell in table[name] if cell.strip())
    if len(counts) < 2:
        raise ManifestError(
            f"The column {name!r} of {path} has {counted(len(counts), 'label')}; expected at least two."
        )
    return dict(sorted(counts.items()))


def ordered_labels(labels: Sequence[str], answer: str) -> Order:
    """Labels by their numbers from 1, least urgent first; '=' joins equally urgent ones.

    >>> ordered_labels(["ADH", "FEA", "N"], "3 1=2")
    ['N', ['ADH', 'FEA']]
    """
    groups = [group.split("=") for group in re.sub(r"\s*=\s*", "=", answer).replace(",", " ").split()]
    numbers = [number for group in groups for number in group]
    if sorted(numbers) != sorted(str(number + 1) for number in range(len(labels))):
        raise ParameterError(f"Expected every number from 1 to {len(labels)} once, found {answer!r}.")
    names = [[labels[int(number) - 1] for number in group] for group in groups]
    return [group if len(group) > 1 else group[0] for group in names]


def class_file_text(counts: Mapping[str, int], order: Order | None, *, source: str) -> str:
    """The class file; without an order its classes are commented out, so that none is ever taken from the alphabet.

    >>> print(class_file_text({"a": 2, "b": 1}, ["b", "a"], source="labels.csv"))
    # The labels of labels.csv, least urgent first. Check this file with: pams classes show {file}
    name: labels
    classes:
      - b  # 1 row
      - a  # 2 rows
    <BLANKLINE>
    """
    entries = []
    for item in counts if order is None else order:
        group = [item] if isinstance(item, str) else item
        names = ", ".join(map(_scalar, group))
        rows = counted(sum(counts[label] for label in group), "row")
        entries.append(f"  - {names if isinstance(item, str) else f'[{names}]'}  # {rows}\n")
    if order is not None:
        head = f"# The labels of {source}, least urgent first. Check this file with: pams classes show {{file}}\n"
        return head + f"name: {_scalar(Path(source).stem)}\nclasses:\n" + "".join(entries)
    return (
        f"# The labels of {source}, in the order of the alphabet. Order the lines below, least urgent first; write\n"
        "# [a, b] in one line for equally urgent classes. Then remove the '# ' before 'classes' and those lines.\n"
        "# Check this file with: pams classes show {file}\n"
        f"name: {_scalar(Path(source).stem)}\n# classes:\n" + "".join(f"# {entry}" for entry in entries)
    )


def _scalar(text: str) -> str:
    """A text as YAML has it, in quotes where it needs them."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
