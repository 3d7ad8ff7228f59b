"""Parts of a chosen size, taken from the training patients of every fold, by patient and class by class.

`val` chooses the epoch; `calib` neither trains nor chooses an epoch and is kept for certificates. The test part stays
as it is.
"""

from __future__ import annotations

from dataclasses import replace

from pams_mil.data.manifest.manifest import Manifest
from pams_mil.data.splits.stratify import Split, deal_patients
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy


def with_validation(
    split: Split, manifest: Manifest, hierarchy: ClassHierarchy, *, share: float, seed: int = 0
) -> Split:
    """The same test parts, with a share of all patients in val instead of the val part that the split has."""
    merged = replace(
        split, folds=tuple(tuple("train" if name == "val" else name for name in names) for names in split.folds)
    )
    return _with_part("val", merged, manifest, hierarchy, share, seed)


def with_calibration(
    split: Split, manifest: Manifest, hierarchy: ClassHierarchy, *, share: float, seed: int = 0
) -> Split:
    """The same split with a share of all patients moved from train to calib."""
    return _with_part("calib", split, manifest, hierarchy, share, seed)


def _with_part(
    part: str, split: Split, manifest: Manifest, hierarchy: ClassHierarchy, share: float, seed: int
) -> Split:
    if not 0 < share < 1:
        word = {"val": "validation", "calib": "calibration"}[part]
        raise ParameterError(f"The share of {word} patients must be above 0 and below 1, found {share!r}.")
    return replace(split, folds=tuple(_carve(part, names, manifest, hierarchy, share, seed) for names in split.folds))


def _carve(
    part: str, names: tuple[str, ...], manifest: Manifest, hierarchy: ClassHierarchy, share: float, seed: int
) -> tuple[str, ...]:
    others = {record.patient_id for record, name in zip(manifest, names, strict=True) if name != "train"}
    total, training = len(manifest.patients), len(manifest.patients) - len(others)
    if share * total >= training:
        raise ParameterError(
            f"A share of {share:g} of {total} patients leaves none of the {training} training patients to train on; "
            "use a smaller share."
        )
    # The share is of all patients; those in train have to give more than that share of themselves.
    wanted = share * total / training
    part_of = deal_patients(manifest, hierarchy, [1 - wanted, wanted], seed, others)
    return tuple(
        part if part_of.get(record.patient_id) == 1 else name for record, name in zip(manifest, names, strict=True)
    )
