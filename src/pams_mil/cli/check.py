"""`pams check`: everything wrong with a cohort, said in one pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Exit, Option

from pams_mil.cli.console import make_table, output, print_json, print_result, progress_bar
from pams_mil.cli.options import TableOptions
from pams_mil.errors import ConfigError, counted

if TYPE_CHECKING:
    from pams_mil.data.doctor import Diagnosis
    from pams_mil.wsi.slide_sources import SlideFindings

MOST_PROBLEMS = 40


def check(
    manifest: Path = Argument(..., help="Cohort table: CSV, TSV, xlsx or parquet."),
    classes: str = Option(..., help="A preset (see 'pams classes') or a class file, .yaml or .csv."),
    features: Path | None = Option(None, help="Folder of feature files, or a pack."),
    no_features: bool = Option(False, "--no-features", help="Examine the table only."),
    slides: Path | None = Option(None, help="Folder of slide files: can each be opened?"),
    json: bool = Option(False, "--json", help="Print the findings as JSON."),
    workers: int = Option(2, min=1, help="Files read at the same time."),
    reading: TableOptions = TableOptions(),
    fold: int | None = Option(None, help="Take the splits from the column fold_<k>, or hold out the numbered fold."),
    splits: Path | None = Option(None, help="CLAM's splits_<k>.csv."),
) -> None:
    """Find everything wrong with a cohort before training.

    Exit code: 0 usable (there may be warnings), 1 problems found, 2 the table itself cannot be read.

    Example: pams check labels.csv --classes bracs --features features
    """
    from pams_mil.data.doctor import diagnose
    from pams_mil.data.manifest.manifest import Manifest
    from pams_mil.hierarchy import ClassHierarchy

    if features is None and slides is None and not no_features:
        raise ConfigError("Give the folder of feature files with --features, or examine the table only: --no-features.")
    hierarchy = ClassHierarchy.load(classes)
    table = Manifest.read(manifest, fold=fold, splits=splits, classes=hierarchy, **reading.options())
    with progress_bar() as bar:
        diagnosis = diagnose(
            table, hierarchy, features=None if no_features else features, workers=workers,
            progress=lambda done, total: bar("Reading bags", done / total),
        )  # fmt: skip
    opened = None
    if slides is not None:
        from pams_mil.wsi.slide_sources import check_slides

        ids = [record.slide_id for record in table]
        with progress_bar() as bar:
            opened = check_slides(
                ids, slides, workers=workers, progress=lambda done, total: bar("Opening slides", done / total)
            )
        diagnosis = replace(diagnosis, problems=(*diagnosis.problems, *opened.problems))
    if json:
        print_json({**diagnosis.to_json(), "slide_files": opened and opened.summary()})
    else:
        show(diagnosis, opened)
    raise Exit(1 if diagnosis.errors else 0)


def show(diagnosis: Diagnosis, opened: SlideFindings | None = None) -> None:
    """Print the diagnosis for people."""
    from pams_mil.report.page import readable_rows

    manifest = diagnosis.manifest
    print_result(
        f"{counted(len(manifest), 'slide')} of {counted(len(manifest.patients), 'patient')} in {manifest.where}."
    )
    for note in diagnosis.notes:
        print_result(f"Note: {note}")
    counts, (head, groups) = diagnosis.counts, readable_rows(diagnosis.hierarchy)
    rows = [(row, *(f"{sum(of[name] for name in names):,}" for of in counts.values())) for row, names in groups.items()]
    rows.append(("all", *(f"{sum(of.values()):,}" for of in counts.values())))
    output.print(make_table((head, *(split or "no split" for split in counts)), rows))
    if diagnosis.read_features:
        print_result(_features(diagnosis.bag_summary()))
    if opened is not None:
        print_result(_slide_files(opened.summary()))
    ordered = sorted(diagnosis.problems, key=lambda problem: not problem.error)
    for problem in ordered[:MOST_PROBLEMS]:
        print_result(f"{'ERROR' if problem.error else 'warning'}  {problem.kind}: {problem.message}")
    if len(ordered) > MOST_PROBLEMS:
        print_result(f"and {len(ordered) - MOST_PROBLEMS} more; --json lists them all.")
    verdict = counted(len(diagnosis.errors), "problem") if diagnosis.errors else "Usable"
    print_result(f"{verdict}, {counted(len(diagnosis.problems) - len(diagnosis.errors), 'warning')}.")


def _features(summary: dict[str, Any]) -> str:
    widths, precisions, encoders = (", ".join(summary[key]) or "none" for key in ("widths", "precisions", "encoders"))
    return (
        f"{summary['readable']:,} bags read; layout: {_counts(summary['layouts']) or 'none'}; width: {widths}; "
        f"precision: {precisions}; encoder: {encoders}; instances: {summary['instances']:,}, per bag "
        f"{summary['smallest']:,} to {summary['largest']:,}, median {summary['median']:,}."
    )


def _slide_files(summary: dict[str, Any]) -> str:
    readers, scales = _counts(summary["readers"]) or "none", _counts(summary["mpp"]) or "none stated"
    return f"{summary['readable']:,} slide files opened; reader: {readers}; microns per pixel: {scales}."


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in counts.items())
