"""`pams extract`: slides in, bags of features out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from typer import Argument, Exit, Option

from pams_mil.cli.console import print_json, print_note, print_notice, print_result, progress_bar
from pams_mil.cli.options import out_folder
from pams_mil.errors import counted


def extract(
    slides: list[Path] = Argument(..., help="Slide files, or folders to search for slides."),
    out: Path = Option(..., callback=out_folder, help="Folder for h5_files/, failures.csv and previews/."),
    encoder: str = Option(
        "efficientnet-lite0", help="efficientnet-lite0, lunit-vits16, timm:MODEL, onnx:FILE, or your_module:YourClass."
    ),
    mpp: float = Option(1.0, help="Microns per pixel of the tiles."),
    tile_px: int = Option(256, help="Side of a tile in pixels."),
    min_tissue: float = Option(0.10, help="Least share of tissue in a tile."),
    mpp_of_slide: float | None = Option(None, help="Microns per pixel of slides that do not state it; never guessed."),
    mpp_table: Path | None = Option(None, help="Table with columns slide and mpp; always wins."),
    reader: Literal["auto", "openslide", "tiffslide", "image"] = Option(
        "auto", help="auto, openslide, tiffslide or image."
    ),
    on_bad_tile: Literal["fail", "skip"] = Option("fail", help="fail: give the slide up; skip: count and go on."),
    weights: Path | None = Option(None, help="Weight file of the encoder, for use offline."),
    device: str = Option("auto", help="auto, cpu, cuda, cuda:1 ..."),
    precision: str = Option("auto", help="auto, float32, bfloat16 or float16."),
    feature_dtype: Literal["float32", "float16"] = Option("float32", help="float32 or float16, as stored."),
    batch: int = Option(32, help="Tiles encoded at once."),
    workers: int | None = Option(None, help="Threads that read tiles; default: up to 4."),
    engine: Literal["local", "ray"] = Option("local", help="local, or ray to spread slides over a cluster."),
    preview: bool = Option(False, "--preview", help="Also draw tissue and tiles over each slide."),
    json: bool = Option(False, "--json", help="Print what was done as JSON."),
) -> None:
    """Cut slides into tiles of an exact physical size and encode them.

    Run it again at any time, also in several processes on one folder: it does only what is missing.

    Example: pams extract slides/ --out features --preview
    """
    from pams_mil.wsi.encoders.encoder import EncoderOptions, create_encoder
    from pams_mil.wsi.extract import extract as run
    from pams_mil.wsi.slide_sources import find_slides, read_mpp_table
    from pams_mil.wsi.tile_grid import TileSettings, WorkSettings

    settings = TileSettings(mpp, tile_px, min_tissue, on_bad_tile, reader, feature_dtype)
    work = WorkSettings(batch=batch, preview=preview, **({} if workers is None else {"workers": workers}))
    table = read_mpp_table(mpp_table) if mpp_table else None
    sources = find_slides(slides, mpp_of_slide=mpp_of_slide, mpp_table=table)
    options = EncoderOptions(device, precision, weights)
    with progress_bar() as progress:
        if engine == "ray":
            from pams_mil.wsi.ray_slides import extract_on_cluster

            outcome = extract_on_cluster(
                sources, out, encoder, options, settings, work, progress, print_note, print_notice
            )
        else:
            network = create_encoder(encoder, options, announce=print_notice)
            outcome = run(sources, out, network, settings, work, progress, print_note)
    if json:
        print_json({"out": str(out), **outcome.to_json()})
    else:
        extracted, there = counted(len(outcome.extracted), "slide"), len(outcome.reused)
        text = f"{extracted} extracted ({counted(outcome.tiles, 'tile')}), {there:,} {'was' if there == 1 else 'were'}"
        failed = f", {len(outcome.failed)} failed; see {out / 'failures.csv'}" if outcome.failed else ""
        print_result(f"{text} there already{failed}.")
    if not outcome.is_complete:
        raise Exit(1)
