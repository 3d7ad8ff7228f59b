"""`pams split`: patient-disjoint, stratified splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from typer import Argument, Option

from pams_mil.cli.console import fits, make_table, output, print_json, print_result
from pams_mil.cli.options import TableOptions, out_folder
from pams_mil.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from pams_mil.data.manifest.manifest import Manifest
    from pams_mil.data.splits import WrittenSplit
    from pams_mil.hierarchy import ClassHierarchy


def split(
    manifest: Path = Argument(..., help="Cohort table: CSV, TSV, xlsx or parquet."),
    classes: str = Option(..., help="A preset (see 'pams classes') or a class file, .yaml or .csv."),
    out: Path = Option(..., callback=out_folder, help="Folder for manifest.csv and splits_<k>.csv."),
    folds: int | None = Option(None, min=3, help="Cross-validation with this many folds."),
    fractions: str = Option("0.7,0.1,0.2", help="Shares of train, val, test without --folds."),
    val_share: float | None = Option(
        None, help="Share of all patients in val; default: a fold's worth, or as --fractions says."
    ),
    calib_share: float | None = Option(
        None, "--calib-share", "--calib", help="Share of all patients, taken from train, for 'pams certify'."
    ),
    seed: int = Option(0, help="Same seed, same files."),
    hold_out_tag: str | None = Option(
        None, help="Slides with this tag, e.g. mixed or findings=mixed, are for testing only."
    ),
    reading: TableOptions = TableOptions(),
    force: bool = Option(False, "--force", help="Replace the split that is in --out already."),
    json: bool = Option(False, "--json", help="Print the counts as JSON."),
) -> None:
    """Split a cohort by patient, balanced over the finest classes.

    Writes manifest.csv (with a column split, or fold_0, fold_1, ...) and CLAM's splits_<k>.csv.

    Example: pams split labels.csv --classes bracs --folds 5 --out splits
    """
    from dataclasses import asdict

    from pams_mil.data.examine import examine_manifest, refuse_errors
    from pams_mil.data.manifest.manifest import Manifest
    from pams_mil.data.splits import split_folds, split_once, with_subset, write_split
    from pams_mil.hierarchy import as_hierarchy

    if (out / "manifest.csv").exists() and not force:
        raise OutputError(
            f"{out} already holds a split, and runs may have been trained on it. Choose another folder, or replace it "
            "with --force."
        )
    hierarchy = as_hierarchy(classes)
    table = Manifest.read(manifest, classes=hierarchy, **reading.options())
    table = table.with_splits([""] * len(table))  # new splits replace any that the table has
    problems = examine_manifest(table, hierarchy)
    # Two spellings of one patient could be dealt into two splits.
    refuse_errors([replace(p, error=p.error or p.kind == "look-alike patients") for p in problems], table.where)
    if folds is None:
        assigned = split_once(table, hierarchy, fractions=_numbers(fractions), seed=seed, hold_out_tag=hold_out_tag)
    else:
        assigned = split_folds(table, hierarchy, folds=folds, seed=seed, hold_out_tag=hold_out_tag)
    if val_share is not None:
        assigned = with_subset("val", assigned, table, hierarchy, share=val_share, seed=seed)
    if calib_share is not None:
        assigned = with_subset("calib", assigned, table, hierarchy, share=calib_share, seed=seed)
    written = write_split(out, table, hierarchy, assigned, is_folds=folds is not None)
    if json:
        print_json({"out": str(out), **asdict(written)})
    else:
        _show(written, table, hierarchy)


def _show(written: WrittenSplit, manifest: Manifest, hierarchy: ClassHierarchy) -> None:
    """Classes, or groups where these are too many, down; patients, slides, and those of the parts of folds across."""
    from pams_mil.data.splits import patients_by_class
    from pams_mil.report.page import readable_level, readable_rows

    for line in written.lines:
        print_result(line)
    level, (_, groups) = readable_level(hierarchy), readable_rows(hierarchy)
    only = dict.fromkeys(groups, written.num_patients)
    patients = {
        **(only if level is None else patients_by_class(manifest, hierarchy, level)),
        "all": written.num_patients,
    }
    several, parts = len(written.counts) > 1, "/".join(written.counts[0])

    def table(folds: range) -> Table:
        rows = []
        for name, classes in {**groups, "all": hierarchy.classes}.items():
            slides = [[sum(of[one] for one in classes) for of in written.counts[fold].values()] for fold in folds]
            shown = ("/".join(map(str, fold)) for fold in slides)
            rows.append((name, f"{patients[name]:,}", f"{sum(slides[0]):,}", *shown))
        heads = ("class", "patients", "slides", *(f"fold {fold}" if several else parts for fold in folds))
        return make_table(heads, rows, title=f"Slides in {parts} of each fold" if several else "", wrap=False)

    first, end = 0, len(written.counts)
    while first < end:  # as many folds beside each other as there is room for
        last = first + 1
        while last < end and fits(table(range(first, last + 1))):
            last += 1
        output.print(table(range(first, last)))
        first = last


def _numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"--fractions must be numbers like 0.7,0.1,0.2; found {text!r}.") from None
