"""What `pams cv` and `pams tune` share: slides and folds from a table, as the options say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import print_note
from pams_mil.errors import ManifestError, listing

if TYPE_CHECKING:
    from pams_mil.data.manifest.manifest import Manifest
    from pams_mil.data.splits.stratify import Split
    from pams_mil.hierarchy import ClassHierarchy

FOLDS = typer.Option(None, "--folds", min=3, help="How many; default: the table's own fold_<k> columns, or 5.")
VAL_SHARE = typer.Option(
    None, "--val-share", help="Share of all patients that validates each fold; default: a fold's worth."
)
DEFAULT_FOLDS = 5
CALIB = ("calib",)
"""Never in a fold of a cross-validation: these patients certify."""


def fold_cohort(
    path: Path,
    hierarchy: ClassHierarchy,
    folds: int | None,
    val_share: float | None,
    seed: int,
    reading: dict[str, Any],
    *,
    held_out: tuple[str, ...] = CALIB,
) -> tuple[Manifest, Split, int]:
    """The slides, their folds (new ones, or the table's own), and how many test slides of the table are held out.

    The slides of the splits `held_out`, by the table's column split, are in no fold.
    """
    from pams_mil.data.examine import examine_manifest, refuse_errors
    from pams_mil.data.manifest.manifest import Manifest
    from pams_mil.data.splits.stratify import split_folds, with_validation
    from pams_mil.engine.grid.cross_validation import folds_of_table

    reading = {**reading, "classes": hierarchy}
    whole = Manifest.read(path, **reading)
    in_folds = [record.split not in held_out for record in whole]
    tested = sum(record.split == "test" and not keep for record, keep in zip(whole, in_folds, strict=True))
    _refuse_shared(whole, in_folds)
    records = tuple(record for record, keep in zip(whole, in_folds, strict=True) if keep)
    calibration = sum(record.split == "calib" and not keep for record, keep in zip(whole, in_folds, strict=True))
    if calibration:
        print_note(f"{calibration:,} slides of the split calib are in no fold: they are kept to certify.")
    if "test" not in held_out and any(record.split not in ("", "calib") for record in whole):
        print_note("The table's column split is not used: every slide is tested by one of the folds.")
    # Inside of the folds the column split means nothing, and must not be examined as if it did.
    cohort = replace(whole, records=records).with_splits([""] * len(records))
    refuse_errors(examine_manifest(cohort, hierarchy), cohort.where)
    own = folds_of_table(path, **reading) if folds is None else None
    if own is not None:
        print_note(f"The table's own {len(own.folds)} folds are used; --folds would make new ones.")
        # Folds of the table name the split of every slide; those held out are left out here, too.
        folded = (tuple(name for name, keep in zip(fold, in_folds, strict=True) if keep) for fold in own.folds)
        own = replace(own, folds=tuple(folded))
    split = own or split_folds(cohort, hierarchy, folds=folds or DEFAULT_FOLDS, seed=seed)
    if val_share is not None:
        split = with_validation(split, cohort, hierarchy, share=val_share, seed=seed)
    return cohort, split, tested


def _refuse_shared(whole: Manifest, in_folds: list[bool]) -> None:
    inside = {record.patient_id for record, keep in zip(whole, in_folds, strict=True) if keep}
    outside = {record.patient_id for record, keep in zip(whole, in_folds, strict=True) if not keep}
    if inside & outside:
        raise ManifestError(
            f"{whole.where}: patients have slides in test or calib and elsewhere: {listing(sorted(inside & outside))}. "
            "Test scores would be inflated; split by patient with 'pams split'."
        )
