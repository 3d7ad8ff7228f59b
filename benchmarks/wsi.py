"""Slides to features: the pipeline against its encoder alone and against a plain loop, and memory on a huge slide.

    python benchmarks/wsi.py [--rounds 3] [--slides 2] [--skip-memory]

Rounds are interleaved and medians compared, because development machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from goals import Goals
from pams_mil.cohorts.synthetic_slides import Piece, Scene, write_slide

MPP, TILE_PX = 1.0, 256
MEMORY_LIMIT_MIB = 512


def make_slides(folder: Path, count: int) -> list[Path]:
    """One slide as a 20x scanner writes it (0.5 microns per pixel, JPEG, levels down to 8), under several names."""
    scene = Scene(5400.0, 5400.0, (Piece(2700.0, 2700.0, 2050.0, 1950.0),), seed=1)
    write_slide(folder / "s0.tiff", scene, mpp=0.5, levels=5)
    for number in range(1, count):
        shutil.copy(folder / "s0.tiff", folder / f"s{number}.tiff")
    return sorted(folder.glob("*.tiff"))


def pipeline(paths: list[Path], encoder) -> tuple[int, float]:
    """Tiles and seconds of `pams extract` without the start of the program."""
    from pams_mil.wsi.extract import extract
    from pams_mil.wsi.slide_sources import find_slides
    from pams_mil.wsi.tile_grid import TileSettings

    with tempfile.TemporaryDirectory() as out:
        started = time.perf_counter()
        outcome = extract(find_slides(paths), Path(out), encoder, TileSettings(mpp=MPP, tile_px=TILE_PX))
        return outcome.tiles, time.perf_counter() - started


def read_tiles(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """All tiles of a slide and their level-0 corners, for the encoder alone and the loop."""
    from concurrent.futures import ThreadPoolExecutor

    from pams_mil.wsi.slide_sources import find_slides
    from pams_mil.wsi.slide_to_bag import prepare
    from pams_mil.wsi.tile_grid import TileSettings, WorkSettings

    with ThreadPoolExecutor(2) as pool:
        source = find_slides([path])[0]
        with closing(prepare(source, TileSettings(mpp=MPP, tile_px=TILE_PX), WorkSettings(), pool)) as slide:
            return np.concatenate([block.tiles for block in slide.stream]), slide.plan.coords_px0


def encoder_alone(tiles: np.ndarray, times: int, encoder) -> float:
    """Seconds to encode tiles that are in memory already."""
    started = time.perf_counter()
    for _ in range(times):
        for start in range(0, len(tiles), 32):
            encoder(tiles[start : start + 32])
    return time.perf_counter() - started


def plain_loop(paths: list[Path], corners: np.ndarray, encoder, batch: int) -> float:
    """Read a square at level 0, resize it, encode; `batch` tiles at a time, one after the other."""
    import openslide
    from PIL import Image

    started = time.perf_counter()
    for path in paths:
        with openslide.OpenSlide(str(path)) as slide:
            side = round(TILE_PX * MPP / float(slide.properties[openslide.PROPERTY_NAME_MPP_X]))
            for start in range(0, len(corners), batch):
                tiles = [
                    slide.read_region((x, y), 0, (side, side))
                    .convert("RGB")
                    .resize((TILE_PX, TILE_PX), Image.Resampling.BILINEAR)
                    for x, y in corners[start : start + batch].tolist()
                ]
                encoder(np.stack([np.asarray(tile) for tile in tiles]))
    return time.perf_counter() - started


def compare_speed(rounds: int, count: int, goals: Goals) -> None:
    """Print tiles per second and ratios."""
    from pams_mil.wsi.encoders.encoder import create_encoder

    encoder = create_encoder("efficientnet-lite0")
    with tempfile.TemporaryDirectory() as folder:
        paths = make_slides(Path(folder), count)
        tiles, corners = read_tiles(paths[0])
        encoder(tiles[:32])
        seconds: dict[str, list[float]] = {}
        for _ in range(rounds):
            total, taken = pipeline(paths, encoder)
            seconds.setdefault("pipeline", []).append(taken)
            seconds.setdefault("encoder alone", []).append(encoder_alone(tiles, count, encoder))
            seconds.setdefault("loop, 32 tiles at a time", []).append(plain_loop(paths, corners, encoder, 32))
            seconds.setdefault("loop, one tile at a time", []).append(plain_loop(paths, corners, encoder, 1))
    ours = statistics.median(seconds["pipeline"])
    print(f"{total} tiles of {count} slides, {TILE_PX} px at {MPP} mpp from 0.5 mpp, {encoder.name}")
    for name, values in seconds.items():
        taken = statistics.median(values)
        print(f"{name:26s} {total / taken:7.1f} tiles/s   pipeline / this: {taken / ours:.2f}")
        if name.startswith("loop"):
            goals.at_least(f"the pipeline against a {name}", taken / ours, 1.0)


HUGE = """
import json, resource, sys, time
from pathlib import Path
from pams_mil.wsi.encoders.encoder import create_encoder
from pams_mil.wsi.extract import extract
from pams_mil.wsi.tile_grid import TileSettings
from pams_mil.wsi.slide_sources import find_slides
encoder = create_encoder("efficientnet-lite0")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
outcome = extract(find_slides([Path(sys.argv[1])]), Path(sys.argv[2]), encoder, TileSettings())
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([before / 1024, after / 1024, outcome.tiles, time.perf_counter() - started]))
"""


def measure_memory(goals: Goals) -> None:
    """Print the peak memory of a slide that would take 24 GB decoded."""
    scene = Scene(25_000.0, 20_000.0, (Piece(6000.0, 9000.0, 1200.0, 900.0), Piece(20_000.0, 15_000.0, 700.0, 900.0)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "huge.tiff"
        write_slide(path, scene, mpp=0.25, levels=6)
        print(f"100,000 x 80,000 pixels, {path.stat().st_size / 2**20:.0f} MiB on disk")
        command = [sys.executable, "-c", HUGE, str(path), str(Path(folder) / "out")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    before, after, tiles, seconds = json.loads(done.stdout)
    print(
        f"peak memory {after:.0f} MiB, of which {before:.0f} before the first slide; {tiles} tiles in {seconds:.1f} s"
    )
    goals.at_most("memory that a huge slide takes, MiB", after - before, MEMORY_LIMIT_MIB)


def main() -> int:
    """Run both."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--slides", type=int, default=2)
    options.add_argument("--skip-memory", action="store_true")
    chosen = options.parse_args()
    goals = Goals()
    compare_speed(chosen.rounds, chosen.slides, goals)
    if not chosen.skip_memory:
        measure_memory(goals)
    return goals.end()


if __name__ == "__main__":
    sys.exit(main())
