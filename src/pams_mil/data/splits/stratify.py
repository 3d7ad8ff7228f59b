"""Patient-disjoint, stratified splits.

A patient counts as the most urgent class of its slides; every part gets its share of the patients of every
class to within one, and its share of slides as nearly as whole patients allow (see `pams_mil.data.splits.deal`). The
result depends on the seed and the set of slides, not on the order of the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pams_mil.data.manifest.cases import most_urgent
from pams_mil.data.manifest.manifest import Manifest
from pams_mil.data.splits.deal import deal
from pams_mil.errors import ManifestError, ParameterError, nearest
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

    def manifest(self, manifest: Manifest, fold: int = 0) -> Manifest:
        """The manifest with the splits of one fold."""
        return manifest.with_splits(self.folds[fold])


def split_folds(
    manifest: Manifest, hierarchy: ClassHierarchy, *, folds: int, seed: int = 0, hold_out_tag: str | None = None
) -> Split:
    """K folds: fold k tests on part k, validates on the next part and trains on the others.

    Slides with `hold_out_tag`, and all slides of their patients, are in the test split of every fold.
    """
    if folds < 3:
        raise ParameterError(f"Cross-validation needs at least 3 folds (train, val and test differ), found {folds}.")
    named = [
        ["test" if part == fold else "val" if part == (fold + 1) % folds else "train" for part in range(folds)]
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
    held, held_out = _held_patients(manifest, tag)
    part_of = deal_patients(manifest, hierarchy, fractions, seed, held)
    folds = tuple(
        tuple("test" if r.patient_id in held else names[part_of[r.patient_id]] for r in manifest) for names in named
    )
    return Split(folds, held_out, sum(record.patient_id in held for record in manifest) - held_out)


def deal_patients(
    manifest: Manifest, hierarchy: ClassHierarchy, fractions: list[float], seed: int, held: set[str]
) -> dict[str, int]:
    """Patient to part, for all patients but those in `held`."""
    found: dict[str, list[int]] = {}
    for record, target in zip(manifest, manifest.targets(hierarchy).tolist(), strict=True):
        if record.patient_id not in held:
            found.setdefault(record.patient_id, []).append(target)
    # An order that depends on the seed and the patient's name alone, not on the table's.
    patients = sorted(found, key=lambda patient: derive(seed, "split", patient))
    slides = np.zeros((len(patients), hierarchy.num_classes()))
    for row, patient in enumerate(patients):
        for target in found[patient]:
            slides[row, target] += 1
    parts = deal(slides, [most_urgent(found[patient], hierarchy) for patient in patients], fractions)
    return dict(zip(patients, parts, strict=True))


def _held_patients(manifest: Manifest, tag: str | None) -> tuple[set[str], int]:
    if tag is None:
        return set(), 0
    tagged = [record for record in manifest if record.has_tag(tag)]
    if not tagged:
        known = {word for record in manifest for word in (*record.tags, *record.extra.values())}
        raise ManifestError(
            f"No slide of {manifest.where} has the tag {tag!r}, in a column 'tags' or any other.{nearest(tag, known)}"
        )
    held = {record.patient_id for record in tagged}
    if len(held) == len(manifest.patients):
        raise ManifestError(f"Every patient has a slide with the tag {tag!r}; nothing would be left to train on.")
    return held, len(tagged)
