"""`pams pack` and `pams unpack`: one fast, verified store per cohort, and back."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from pams_mil.cli.console import print_json, print_result, progress_bar
from pams_mil.cli.options import Clini, LabelColumn, SlideColumn, TableOptions, out_folder
from pams_mil.errors import counted


def pack(
    manifest: Path = Argument(..., help="Cohort table: CSV, TSV, xlsx or parquet."),
    features: Path = Option(..., help="Folder of feature files in any known layout."),
    out: Path = Option(
        ..., callback=out_folder, help="The pack's folder, e.g. cohort.pack; an unfinished one is completed."
    ),
    dtype: str = Option("keep", help="keep, float16 or float32."),
    workers: int = Option(4, min=1, help="Segments written at the same time."),
    allow_larger: bool = Option(False, "--allow-larger", help="Accept a pack larger than its feature files."),
    slide_column: SlideColumn = None,
    label_column: LabelColumn = None,
    clini: Clini = None,
    json: bool = Option(False, "--json", help="Print counts and sizes as JSON."),
) -> None:
    """Pack a cohort's features for fast epochs: verified, checksummed, resumable.

    Example: pams pack labels.csv --features features --out cohort.pack
    """
    from dataclasses import asdict

    from pams_mil.data.bags.pack_writer import write_pack
    from pams_mil.data.manifest.manifest import Manifest

    reading = TableOptions(True, slide_column, None, label_column, clini)
    table = Manifest.read(manifest, labels=label_column is not None, **reading.options())  # a pack holds no labels
    with progress_bar() as bar:
        done = write_pack(
            out, table, features, dtype=dtype, workers=workers, allow_larger=allow_larger,
            progress=lambda size, total: bar("Packing", size / total),
        )  # fmt: skip
    if json:
        print_json({"out": str(out), **asdict(done)})
        return
    already = f"; {done.kept_shards} of {done.shards} shards were there already" if done.kept_shards else ""
    print_result(
        f"{counted(done.slides, 'bag')} packed into {out}: {done.source_bytes:,} bytes became "
        f"{done.pack_bytes:,}{already}."
    )


def unpack(
    packed: Path = Argument(..., metavar="PACK", help="A finished pack."),
    out: Path = Option(..., callback=out_folder, help="Folder for h5_files/<slide>.h5 and paths.csv."),
    json: bool = Option(False, "--json", help="Print how many files were written as JSON."),
) -> None:
    """Write every bag of a pack as a feature file again.

    Example: pams unpack cohort.pack --out unpacked
    """
    from pams_mil.data.bags.pack_writer import unpack as run

    with progress_bar() as bar:
        count = run(packed, out, progress=lambda done, total: bar("Unpacking", done / total))
    if json:
        print_json({"out": str(out), "files": count})
        return
    print_result(f"{counted(count, 'feature file')} written to {out}.")
