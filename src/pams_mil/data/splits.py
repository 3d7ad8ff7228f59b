"""Patient-disjoint, stratified splits, and the files they are written to: a manifest, and CLAM's `splits_<k>.csv`.

A patient counts as the most urgent class of its slides; every subset gets its share of the patients of every class to
within one, and its share of slides as nearly as whole patients allow (see `deal`). The result depends on the seed and
the set of slides, not on the order of the table. `calib` neither trains nor chooses an epoch; it is kept for
certificates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from pams_mil.arrays import Array, Ints
from pams_mil.data.manifest.foreign_tables import write_splits
from pams_mil.data.manifest.manifest import FOLD_COLUMN, PARTS, Manifest, most_urgent
from pams_mil.errors import ManifestError, ParameterError, counted, listing, nearest
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.seeding import derive


@dataclass(frozen=True)
class Split:
    """Splits of a manifest: for every fold, the split of every slide in table order.

    `held_out` counts the slides that carry the held-out tag, `followed` those that went with their patient.
    """

    folds: tuple[tuple[str, ...], ...]
    held_out: int = 0
    followed: int = 0


def split_folds(
    manifest: Manifest, hierarchy: ClassHierarchy, *, folds: int, seed: int = 0, hold_out_tag: str | None = None
) -> Split:
    """K folds: fold k tests on part k, validates on the next part and trains on the others.

    Slides with `hold_out_tag`, and all slides of their patients, are in the test split of every fold.
    """
    if folds < 3:
        raise ParameterError(f"Cross-validation needs at least 3 folds (train, val and test differ), found {folds}.")
    if folds > len(manifest.patients):
        raise ParameterError(
            f"{folds} folds need at least as many patients, found {len(manifest.patients)} in {manifest.where}. "
            "Ask for fewer folds."
        )
    named = [
        ["test" if subset == fold else "val" if subset == (fold + 1) % folds else "train" for subset in range(folds)]
        for fold in range(folds)
    ]
    return _dealt(manifest, hierarchy, [1 / folds] * folds, named, seed, hold_out_tag)


def split_once(
    manifest: Manifest,
    hierarchy: ClassHierarchy,
    *,
    fractions: Sequence[float] = (0.7, 0.1, 0.2),
    seed: int = 0,
    hold_out_tag: str | None = None,
) -> Split:
    """One split into train, val and test with the given shares of patients.

    Slides with `hold_out_tag`, and all slides of their patients, are in the test split beside its share.
    """
    if len(fractions) != 3 or min(fractions) <= 0 or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        raise ParameterError(
            f"The shares of train, val and test must be three positive numbers with sum 1, found {list(fractions)}."
        )
    return _dealt(manifest, hierarchy, list(fractions), [("train", "val", "test")], seed, hold_out_tag)


def _dealt(
    manifest: Manifest,
    hierarchy: ClassHierarchy,
    fractions: list[float],
    named: Sequence[Sequence[str]],
    seed: int,
    tag: str | None,
) -> Split:
    """Patients dealt to parts once; `named` says for every fold which split each part is."""
    tagged = [] if tag is None else [record for record in manifest if record.has_tag(tag)]
    held = {record.patient_id for record in tagged}
    if tag is not None and not tagged:
        known = {word for record in manifest for word in (*record.tags, *record.extra.values())}
        raise ManifestError(
            f"No slide of {manifest.where} has the tag {tag!r}, in a column 'tags' or any other.{nearest(tag, known)}"
        )
    if tagged and len(held) == len(manifest.patients):
        raise ManifestError(f"Every patient has a slide with the tag {tag!r}; nothing would be left to train on.")
    part_of = deal_patients(manifest, hierarchy, fractions, seed, held)
    folds = tuple(
        tuple("test" if r.patient_id in held else names[part_of[r.patient_id]] for r in manifest) for names in named
    )
    return Split(folds, len(tagged), sum(record.patient_id in held for record in manifest) - len(tagged))


def deal_patients(
    manifest: Manifest, hierarchy: ClassHierarchy, fractions: list[float], seed: int, held: set[str]
) -> dict[str, int]:
    """Patient to subset, for all patients but those in `held`."""
    targets: dict[str, list[int]] = {}
    for record, target in zip(manifest, manifest.targets(hierarchy).tolist(), strict=True):
        if record.patient_id not in held:
            targets.setdefault(record.patient_id, []).append(target)
    # An order that depends on the seed and the patient's name alone, not on the table's.
    patients = sorted(targets, key=lambda patient: derive(seed, "split", patient))
    slides = np.zeros((len(patients), hierarchy.num_classes()))
    for row, patient in enumerate(patients):
        for target in targets[patient]:
            slides[row, target] += 1
    parts = deal(slides, [most_urgent(targets[patient], hierarchy) for patient in patients], fractions)
    return dict(zip(patients, parts, strict=True))


_MOST_EXCHANGED = 240  # patients; beyond, the greedy deal is already even
_MOST_ROUNDS = 8
_MOST_PARTNERS = 8  # tried for a patient, the best first; the best is often refused to keep patients to within one


def deal(slides_of: Array, class_of: Sequence[int], fractions: Sequence[float]) -> list[int]:
    """The part of every patient; patients must come in the order in which ties are to be broken.

    Parts have their share f of the patients of every class to within one; with N slides of class c in part p, their
    distance to whole shares is kept small:

        X = sum over p, c of (N_pc - f_p N_c)^2 / (f_p N_c)

    >>> deal(np.array([[3.0, 0], [2, 0], [1, 0], [0, 1]]), [0, 0, 0, 1], [0.5, 0.5])
    [0, 1, 1, 0]
    """
    share, classes = np.asarray(fractions, np.float64), np.asarray(class_of, np.int64)
    weight = 1 / (share[:, None] * np.maximum(slides_of.sum(axis=0), 1))
    part_of: Ints = np.full(len(classes), -1, np.int64)
    slides, filled = np.zeros((len(share), slides_of.shape[1])), np.zeros(len(share))
    counts = np.bincount(classes, minlength=slides_of.shape[1])
    # The rarest class first: later, larger classes even out what rounding leaves.
    for c in sorted(np.flatnonzero(counts).tolist(), key=lambda c: (counts[c], c)):
        left = np.array(shares(int(counts[c]), fractions, filled.tolist()))
        # Running debt of every part in patients: the next class repays it where remainders are equal.
        filled += left - counts[c] * share
        members = np.flatnonzero(classes == c)
        # Large patients first, while there is room to choose; a stable sort keeps the seeded order of equal ones.
        for patient in members[np.argsort(-slides_of[members].sum(axis=1), kind="stable")]:
            added = slides_of[patient]
            # The change of X is weight * (2 N + a) a, up to a term that is equal for all parts.
            cost = ((2 * slides + added) * added * weight).sum(axis=1)
            subset = int(np.argmin(np.where(left > 0, cost, np.inf)))
            left[subset] -= 1
            part_of[patient] = subset
            slides[subset] += added
    if len(classes) <= _MOST_EXCHANGED:  # n^2 pairs per round
        _exchange(part_of, slides_of, np.eye(slides_of.shape[1])[classes], share, weight)
    return [int(subset) for subset in part_of]


def shares(count: int, fractions: Sequence[float], filled: Sequence[float]) -> list[int]:
    """Whole numbers that add up to `count`, each within one of its share.

    What remains after rounding down goes to the largest remainders, and among equal ones to the part that is
    furthest below its share so far (`filled`: how full each part is, in patients above its share).

    >>> shares(10, [0.7, 0.1, 0.2], [0, 0, 0])
    [7, 1, 2]
    >>> shares(1, [0.5, 0.5], [0.5, -0.5])
    [0, 1]
    """
    ideal = [count * fraction for fraction in fractions]
    # 7 patients times 1/7 may come out as 0.9999999.
    whole = [math.floor(value + 1e-9) for value in ideal]
    # Remainders that differ by rounding errors alone are equal, or the order of parts would be chance.
    order = sorted(
        range(len(fractions)),
        key=lambda subset: (-round(ideal[subset] - whole[subset], 9), round(filled[subset], 9), subset),
    )
    for subset in order[: count - sum(whole)]:
        whole[subset] += 1
    return whole


def _exchange(part_of: Ints, slides_of: Array, class_of: Array, share: Array, weight: Array) -> None:
    """Exchange pairs of patients, in place, while that lowers X and every part keeps its patients to within one.

    `slides_of` and `class_of` [n, c] count the slides of every patient by class, and the patient by its own class.
    """
    slides_ideal, patients_ideal = (np.outer(share, counts.sum(axis=0)) for counts in (slides_of, class_of))
    for _ in range(_MOST_ROUNDS):
        improved = False
        for first in range(len(part_of)):
            inside = (part_of == np.arange(len(share))[:, None]).astype(np.float64)
            slides, patients = inside @ slides_of, inside @ class_of
            p, q = int(part_of[first]), part_of
            change = slides_of - slides_of[first]  # what part p would gain, per partner [n, c]
            # Only parts p and q of X change: their terms as they are, and as they would be.
            distance = (weight * (slides - slides_ideal) ** 2).sum(axis=1)
            p_then = (weight[p] * (slides[p] + change - slides_ideal[p]) ** 2).sum(axis=1)
            q_then = (weight[q] * (slides[q] - change - slides_ideal[q]) ** 2).sum(axis=1)
            gain = np.where(q != p, distance[p] + distance[q] - (p_then + q_then), -np.inf)
            # Stable: of equal gains the patient that comes first by seed, so that results repeat.
            for partner in np.argsort(-gain, kind="stable")[:_MOST_PARTNERS]:
                if gain[partner] <= 1e-9:
                    break
                both, moved = [p, int(q[partner])], class_of[partner] - class_of[first]
                off = np.abs(patients[both] + [moved, -moved] - patients_ideal[both])[:, moved != 0]
                # Within one of the ideal, strictly: what the greedy deal ensures still holds.
                if (off < 1 - 1e-9).all():
                    part_of[[first, partner]] = part_of[[partner, first]]
                    improved = True
                    break
        if not improved:
            return


def with_subset(
    subset: Literal["val", "calib"], split: Split, manifest: Manifest, hierarchy: ClassHierarchy, *, share: float,
    seed: int = 0,
) -> Split:  # fmt: skip
    """The same test parts, with a share of all patients moved from train to calib; or to val, instead of its own."""
    if not 0 < share < 1:
        word = {"val": "validation", "calib": "calibration"}[subset]
        raise ParameterError(f"The share of {word} patients must be above 0 and below 1, found {share!r}.")
    folds = []
    for fold in split.folds:
        names = tuple("train" if name == subset == "val" else name for name in fold)
        others = {record.patient_id for record, name in zip(manifest, names, strict=True) if name != "train"}
        total, training = len(manifest.patients), len(manifest.patients) - len(others)
        if share * total >= training:
            raise ParameterError(
                f"A share of {share:g} of {total} patients leaves none of the {training} training patients to train "
                "on; use a smaller share."
            )
        # The share is of all patients; those in train have to give more than that share of themselves.
        wanted = share * total / training
        part_of = deal_patients(manifest, hierarchy, [1 - wanted, wanted], seed, others)
        rows = zip(manifest, names, strict=True)
        folds.append(tuple(subset if part_of.get(record.patient_id) == 1 else name for record, name in rows))
    return replace(split, folds=tuple(folds))


MOST_LINES = 20
"""Absent classes that have a line each."""


@dataclass(frozen=True)
class WrittenSplit:
    """The counts of a split that was written.

    Attributes:
        lines: Sentences for people.
        counts: Slides of every fold by split and class; one entry where there are no folds.
        patients: By class, the patients who have a slide of it.
        num_patients: All patients, each once.
    """

    lines: tuple[str, ...]
    counts: tuple[dict[str, dict[str, int]], ...]
    patients: dict[str, int]
    num_patients: int


def write_split(
    out: Path | str, manifest: Manifest, hierarchy: ClassHierarchy, split: Split, *, is_folds: bool
) -> WrittenSplit:
    """Write the split manifest last, so that a folder which has one is complete."""
    out = Path(out)
    lines = list(manifest.notes)
    # a small share of calibration patients may come to none in some folds: all are counted alike
    present = [subset for subset in PARTS if subset != "calib" or any(subset in names for names in split.folds)]
    targets = manifest.targets(hierarchy).tolist()
    tallies = [Counter(zip(names, targets, strict=True)) for names in split.folds]
    counts = tuple(
        {subset: {name: tally[subset, index] for index, name in enumerate(hierarchy.names())} for subset in present}
        for tally in tallies
    )
    patients = patients_by_class(manifest, hierarchy)
    for number, names in enumerate(split.folds):
        write_splits(out / f"splits_{number}.csv", manifest, names)
    lines += absent_classes(counts, patients)
    if split.held_out:
        lines.append(
            f"{split.held_out:,} slides are held out for testing by their tag; {split.followed:,} more slides of the "
            "same patients went with them."
        )
    # Folds of an earlier split would be taken for those of this one.
    others = ({name: cell for name, cell in r.extra.items() if not FOLD_COLUMN.fullmatch(name)} for r in manifest)
    records = tuple(replace(record, extra=extra) for record, extra in zip(manifest, others, strict=True))
    table = replace(manifest, records=records)
    if is_folds:
        columns = {f"fold_{number}": names for number, names in enumerate(split.folds)}
        table.write(out / "manifest.csv", columns=columns)
    else:
        table.with_splits(split.folds[0]).write(out / "manifest.csv")
    lines.append(f"{counted(len(counts), 'split')} of {len(manifest):,} slides written to {out}.")
    return WrittenSplit(tuple(lines), counts, patients, len(manifest.patients))


def absent_classes(counts: Sequence[dict[str, dict[str, int]]], patients: dict[str, int]) -> list[str]:
    """Which class is missing where, and what to do about it.

    >>> absent_classes([{"train": {"N": 5, "IC": 1}, "val": {"N": 1, "IC": 0}}], {"N": 6, "IC": 1})[0]
    "warning  absent class: 'IC' (1 patient) is not in val."
    """
    lines, absent = [], dict[str, list[str]]()
    for name, count in patients.items():
        places = []
        for subset in counts[0]:
            folds = [str(number) for number, fold in enumerate(counts) if not fold[subset][name]]
            named = f"fold{'s' if len(folds) > 1 else ''} {', '.join(folds)}"
            where = "" if len(counts) == 1 else f" of {'every fold' if len(folds) == len(counts) else named}"
            places += [f"{subset}{where}"] if folds else []
        if places:
            who = counted(count, "patient")
            lines.append(f"warning  absent class: {name!r} ({who}) is not in {' and not in '.join(places)}.")
        for place in places:
            absent.setdefault(place, []).append(name)
    if len(lines) > MOST_LINES:  # hundreds of classes: one line per subset instead
        lines = [
            f"warning  absent classes: {len(names):,} of {len(patients):,} are not in {place}: {listing(names)}."
            for place, names in absent.items()
        ]
    if lines:
        lines.append(
            "What to do: a class can be in train, val and test only if three patients have it, and in the test part of "
            "every fold only if as many patients have it as there are folds. Use fewer folds, merge the class with one "
            "beside it in the class file, or score all folds together, as 'pams cv' does. A model cannot learn a class "
            "that its train part lacks."
        )
    return lines


def patients_by_class(manifest: Manifest, hierarchy: ClassHierarchy, level: int = -1) -> dict[str, int]:
    """How many patients have a slide of each class of a level."""
    targets = hierarchy.lift(manifest.targets(hierarchy), level).tolist()
    having: dict[int, set[str]] = {}
    for record, target in zip(manifest, targets, strict=True):
        having.setdefault(target, set()).add(record.patient_id)
    return {name: len(having.get(index, ())) for index, name in enumerate(hierarchy.names(level))}
