"""One slide from file to bag, in two steps: prepare (open, find tissue, plan) and finish (encode, write).

The first step needs no encoder and runs on a reader thread while the slide before is being encoded. Every bag has
a record of how it was extracted: the slide, the settings, and the fate of every grid cell.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py
import numpy as np

from pams_mil.data.bags.bag import Bag, BagInfo
from pams_mil.data.bags.bag_file import write_bag
from pams_mil.digests import sealed, unsealed
from pams_mil.errors import BagError, SlideError
from pams_mil.wsi.encoders.encoder import Encoder, weights_digest
from pams_mil.wsi.heatmap import write_png
from pams_mil.wsi.physical_pixels import Overview, read_overview
from pams_mil.wsi.slide import Slide
from pams_mil.wsi.slide_sources import SlideSource, file_fingerprint
from pams_mil.wsi.tile_grid import Grid, TilePlan, TileSettings, WorkSettings, draw_preview, plan_tiles
from pams_mil.wsi.tile_stream import TileStream, encode
from pams_mil.wsi.tissue import Tissue, find_tissue


class NoTissueError(SlideError):
    """A slide on which no tile holds enough tissue."""

    reason = "no tissue"


@dataclass(frozen=True)
class PreparedSlide:
    """An open slide with its plan, the first tiles on their way."""

    source: SlideSource
    slide: Slide
    fingerprint: str
    overview: Overview
    tissue: Tissue
    plan: TilePlan
    stream: TileStream

    def close(self) -> None:
        """Stop reading and close the file."""
        self.stream.stop()
        self.slide.close()


def prepare(source: SlideSource, settings: TileSettings, work: WorkSettings, pool: Executor) -> PreparedSlide:
    """Open a slide, find its tissue and plan its tiles; the readers of `pool` start on the first of them."""
    slide = Slide(source.path, reader=settings.reader, mpp_of_slide=source.mpp, mpp_is_certain=source.mpp_is_certain)
    try:
        # Taken before the pixels are read: a file replaced meanwhile will not match its bag, and the next run says so.
        fingerprint = file_fingerprint(source.path)
        overview = read_overview(slide)
        tissue = find_tissue(overview, slide.mpp)
        size = (slide.width, slide.height)
        try:
            grid = Grid.over(*size, mpp_of_slide=slide.mpp, mpp=settings.mpp, tile_px=settings.tile_px)
        except SlideError as error:
            raise SlideError(f"{slide.path.name}: {error}.") from error
        plan = plan_tiles(grid, tissue, min_tissue=settings.min_tissue)
        skip = settings.on_bad_tile == "skip"
        stream = TileStream(slide, plan, pool, ahead=work.workers + 2, skip_unreadable=skip)
        stream.prefetch()
    # Also on an interrupt: whoever prepares has no handle yet by which others could close the slide.
    except BaseException:
        slide.close()
        raise
    return PreparedSlide(source, slide, fingerprint, overview, tissue, plan, stream)


def finish(
    prepared: PreparedSlide,
    path: Path,
    encoder: Encoder,
    settings: TileSettings,
    work: WorkSettings,
    advance: Callable[[int], None],
    preview: Path | None = None,
) -> int:
    """Encode a prepared slide and write its bag; returns the number of tiles."""
    plan, source = prepared.plan, prepared.source
    if preview is not None:
        write_png(preview, draw_preview(prepared.overview, prepared.tissue, plan))
    if not len(plan.cells):
        raise NoTissueError(
            f"{source.path.name}: no tile has {settings.min_tissue:.0%} tissue or more; {prepared.tissue.fraction:.1%} "
            "of the slide looks like tissue. Look at it with --preview; lower --min-tissue, or leave the slide out."
        )
    try:
        encoded = encode(prepared.stream, encoder, batch=work.batch, advance=advance)
    except SlideError as error:
        hint = "" if settings.on_bad_tile == "skip" else " Use --on-bad-tile skip to leave such tiles out."
        raise SlideError(f"{error}.{hint}") from error
    bag = Bag(
        encoded.features.astype(np.dtype(settings.feature_dtype), copy=False),
        # The plan's own corners, rounded as they were read, so that a coordinate leads to the very pixels.
        plan.coords_px0[encoded.rows].astype(np.int32),
        BagInfo(
            encoder=encoder.name,
            tile_px=settings.tile_px,
            tile_px0=plan.grid.tile_px0,
            mpp=settings.mpp,
            level0_mpp=prepared.slide.mpp,
        ),
    )
    slide, tissue, cells, kept = prepared.slide, prepared.tissue, plan.grid.num_cells, len(encoded.rows)
    record = ExtractionRecord(
        slide_file=slide.path.name,
        slide_fingerprint=prepared.fingerprint,
        slide_size_px0=(slide.width, slide.height),
        reader=slide.reader_name,
        mpp_of_slide=slide.mpp,
        mpp_origin=slide.resolution.origin,
        encoder=encoder.name,
        encoder_digest=weights_digest(encoder),
        min_tissue=settings.min_tissue,
        tissue_threshold=tissue.threshold,
        tissue_share=tissue.fraction,
        counts=CellCounts(cells, kept, background=cells - len(plan.cells), unreadable=encoded.unreadable),
    )
    write_extracted(path, bag, record)
    return kept


ATTRIBUTE = "pams_extraction"


@dataclass(frozen=True)
class CellCounts:
    """What became of the grid: cells = kept + background + unreadable."""

    cells: int
    kept: int
    background: int
    unreadable: int


@dataclass(frozen=True)
class ExtractionRecord:
    """Stored in the bag file as JSON with a digest of its own; holds no time or path, so reruns are bit-identical."""

    slide_file: str
    slide_fingerprint: str
    slide_size_px0: tuple[int, int]
    reader: str
    mpp_of_slide: float
    mpp_origin: str
    encoder: str
    encoder_digest: str
    min_tissue: float
    tissue_threshold: float
    tissue_share: float
    counts: CellCounts


def write_extracted(path: Path, bag: Bag, record: ExtractionRecord) -> None:
    """Write a bag and its record as one file, atomically."""
    # A digest of its own: that of the bag does not cover the file's attributes.
    write_bag(path, bag, attributes={ATTRIBUTE: json.dumps(sealed(asdict(record), ATTRIBUTE, 1))})


def read_record(path: Path) -> ExtractionRecord | None:
    """The record in a bag file; None where the file has none, an error where it is damaged."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            stored = file.attrs.get(ATTRIBUTE)
            if stored is None:
                return None
            values = unsealed(json.loads(stored), ATTRIBUTE, 1)
            values["counts"] = CellCounts(**values["counts"])
            values["slide_size_px0"] = tuple(values["slide_size_px0"])
            return ExtractionRecord(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BagError(f"{path} is damaged: {error}. Remove it and extract the slide again.") from error
