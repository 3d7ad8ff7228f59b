"""`pams pack` and `pams unpack`: one fast, verified store per cohort, and back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from pams_mil.cli.check import read_table
from pams_mil.cli.console import output, progress_bar
from pams_mil.cli.out_option import out_folder
from pams_mil.errors import counted


def pack(
    manifest: Path = typer.Argument(..., help="Cohort table: CSV, TSV, xlsx or parquet."),
    features: Path = typer.Option(..., "--features", help="Folder of feature files in any known layout."),
    out: Path = typer.Option(
        ..., "--out", callback=out_folder, help="The pack's folder, e.g. cohort.pack; an unfinished one is completed."
    ),
    dtype: str = typer.Option("keep", "--dtype", help="keep, float16 or float32."),
    workers: int = typer.Option(4, "--workers", min=1, help="Segments written at the same time."),
    allow_larger: bool = typer.Option(False, "--allow-larger", help="Accept a pack larger than its feature files."),
    slide_column: str | None = typer.Option(None, "--slide-column", help="Column of the slide id."),
    label_column: str | None = typer.Option(None, "--label-column", help="Column of the label."),
    clini: Path | None = typer.Option(None, "--clini", help="STAMP's clinical table; MANIFEST is its slide table."),
    json: bool = typer.Option(False, "--json", help="Print counts and sizes as JSON."),
) -> None:
    """Pack a cohort's features for fast epochs: verified, checksummed, resumable.

    Example: pams pack labels.csv --features features --out cohort.pack
    """
    from dataclasses import asdict

    from pams_mil.atomic import strict_json
    from pams_mil.data.packs.pack_writer import write_pack

    columns = {"slide_id": slide_column, "label": label_column}
    table = read_table(manifest, columns, patients_are_slides=True, clini=clini)
    with progress_bar() as bar:
        advance = partial(bar, "Packing")
        done = write_pack(
            out, table, features, dtype=dtype, workers=workers, allow_larger=allow_larger,
            progress=lambda size, total: advance(size / total),
        )  # fmt: skip
    if json:
        print(strict_json({"out": str(out), **asdict(done)}))
        return
    kept = f"; {done.kept_shards} of {done.shards} shards were there already" if done.kept_shards else ""
    output.print(
        f"{counted(done.slides, 'bag')} packed into {out}: {done.source_bytes:,} bytes became "
        f"{done.pack_bytes:,}{kept}.",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def unpack(
    packed: Path = typer.Argument(..., metavar="PACK", help="A finished pack."),
    out: Path = typer.Option(..., "--out", callback=out_folder, help="Folder for the feature files."),
    layout: str = typer.Option("clam", "--layout", help="clam: h5_files/<slide>.h5."),
    json: bool = typer.Option(False, "--json", help="Print how many files were written as JSON."),
) -> None:
    """Write every bag of a pack as a feature file again.

    Example: pams unpack cohort.pack --out unpacked
    """
    from pams_mil.atomic import strict_json
    from pams_mil.data.packs.unpack import unpack as run

    with progress_bar() as bar:
        advance = partial(bar, "Unpacking")
        count = run(packed, out, layout=layout, progress=lambda done, total: advance(done / total))
    if json:
        print(strict_json({"out": str(out), "layout": layout, "files": count}))
        return
    output.print(f"{counted(count, 'feature file')} written to {out}.", highlight=False, markup=False, soft_wrap=True)
