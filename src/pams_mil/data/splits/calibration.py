"""A fourth part, `calib`: patients that neither train nor choose an epoch, kept for certificates.

They are taken from the training part of every fold, by patient and class by class, so that val and test stay as they
are.
"""

from __future__ import annotations

from dataclasses import replace

from pams_mil.data.manifest.manifest import Manifest
from pams_mil.data.splits.stratify import Split, deal_patients
from pams_mil.errors import ParameterError
from pams_mil.hierarchy import ClassHierarchy


def with_calibration(
    split: Split, manifest: Manifest, hierarchy: ClassHierarchy, *, share: float, seed: int = 0
) -> Split:
    """The same split with a share of all patients moved from train to calib."""
    if not 0 < share < 1:
        raise ParameterError(f"The share of calibration patients must be above 0 and below 1, found {share!r}.")
    return replace(split, folds=tuple(_carve(names, manifest, hierarchy, share, seed) for names in split.folds))


def _carve(
    names: tuple[str, ...], manifest: Manifest, hierarchy: ClassHierarchy, share: float, seed: int
) -> tuple[str, ...]:
    others = {record.patient_id for record, name in zip(manifest, names, strict=True) if name != "train"}
    total, training = len(manifest.patients), len(manifest.patients) - len(others)
    if share * total >= training:
        raise ParameterError(
            f"A share of {share:g} of {total} patients leaves none of the {training} training patients to train on; "
            "use a smaller share."
        )
    part = share * total / training
    part_of = deal_patients(manifest, hierarchy, [1 - part, part], seed, others)
    return tuple(
        "calib" if part_of.get(record.patient_id) == 1 else name for record, name in zip(manifest, names, strict=True)
    )
