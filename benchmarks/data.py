"""Epochs from packs beside CLAM's and TRIDENT's files, packing beside copying, and 100,000-slide manifests.

Run: python benchmarks/data.py [FOLDER] [--bags N]. Files of 2,000 x 384 float32 are written to a temporary folder
(about 5 GB at 400 bags; give FOLDER to choose the disk) and read warm, in one process, in rounds that alternate between
the layouts; medians of rounds are printed as ratios. The peers' files are read with h5py as their own tools do.
Packing writes, flushes to disk, reads back and checksums; it is compared with copying the same files and flushing them.
Exits with 1 when a ratio is below its target or a manifest command needs 20 s or 1 GiB.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch

from goals import Goals
from pams_mil.data import BagDataset, Manifest, SlideRecord, write_pack
from pams_mil.hierarchy import ClassHierarchy

ROWS, WIDTH, ROUNDS = 2000, 384, 3
CLAM_TARGET, TRIDENT_TARGET, COPY_TARGET = 3.0, 15.0, 0.5
SLIDES, MOST_SECONDS, MOST_KIB = 100_000, 20.0, 1 << 20
TREE = ClassHierarchy.load("bracs")


def write_layout(folder: Path, bags: int, chunk_rows: int) -> None:
    """Feature files that grew batch by batch, with chunks of so many rows."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(bags):
        features = generator.standard_normal((ROWS, WIDTH), dtype=np.float32)
        coords = generator.integers(0, 90_000, (ROWS, 2)).astype(np.int32)
        with h5py.File(folder / f"s{number}.h5", "w") as file:
            for name, values in (("features", features), ("coords", coords)):
                shape = (None, values.shape[1])
                file.create_dataset(name, data=values, chunks=(chunk_rows, values.shape[1]), maxshape=shape)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def read_peer(folder: Path, order: list[int]) -> None:
    """One epoch as the peers' datasets read it."""
    for number in order:
        with h5py.File(folder / f"s{number}.h5", "r") as file:
            torch.from_numpy(file["features"][:]).sum()


def read_ours(dataset: BagDataset, order: list[int]) -> None:
    """One epoch of our dataset; every value is touched."""
    for number in order:
        dataset[number].features.sum()


def copy_durably(source: Path, target: Path, *, durable: bool) -> None:
    """Copy a folder; `durable` also flushes every file to disk, as packing does."""
    shutil.copytree(source, target)
    for path in target.iterdir() if durable else ():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def epochs(root: Path, manifest: Manifest, goals: Goals) -> None:
    """A shuffled epoch from a pack beside the peers' layouts."""
    dataset = BagDataset(manifest, TREE, root / "pack")
    folder = BagDataset(manifest, TREE, root / "clam")
    order = list(range(len(manifest)))
    work = {
        "pack": lambda: read_ours(dataset, order),
        "clam": lambda: read_peer(root / "clam", order),
        "trident": lambda: read_peer(root / "trident", order),
        "our reader on clam": lambda: read_ours(folder, order),
    }
    for name in work:  # warm the page cache and verify checksums once
        work[name]()
    times: dict[str, list[float]] = {name: [] for name in work}
    for seed in range(ROUNDS):
        random.Random(seed).shuffle(order)
        for name in work:
            times[name].append(seconds(work[name]))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        print(f"epoch, {name:18} {1e3 * value / len(order):8.3f} ms per bag   {value / medians['pack']:6.1f} x pack")
    ratios = (medians["clam"] / medians["pack"], medians["trident"] / medians["pack"])
    print(
        f"a pack is {ratios[0]:.1f} x CLAM (target {CLAM_TARGET}), {ratios[1]:.1f} x TRIDENT (target {TRIDENT_TARGET})"
    )
    goals.at_least("reading a pack against CLAM's files", ratios[0], CLAM_TARGET)
    goals.at_least("reading a pack against TRIDENT's files", ratios[1], TRIDENT_TARGET)


def packing(root: Path, manifest: Manifest, goals: Goals) -> None:
    """Packing beside copying the same files."""
    times: dict[str, list[float]] = {"pack": [], "copy, flushed": [], "copy, not flushed": []}
    for _ in range(ROUNDS):
        for name, values in times.items():
            for used in ("pack", "copy"):
                shutil.rmtree(root / used, ignore_errors=True)
            os.sync()
            if name == "pack":
                values.append(seconds(lambda: write_pack(root / "pack", manifest, root / "clam")))
            else:
                durable = name == "copy, flushed"
                values.append(
                    seconds(lambda durable=durable: copy_durably(root / "clam", root / "copy", durable=durable))
                )
    size = sum(path.stat().st_size for path in (root / "clam").iterdir())
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:18} {size / value / 1e9:6.2f} GB/s   {medians['pack'] / value:6.2f} x the speed of packing")
    shutil.rmtree(root / "copy", ignore_errors=True)
    write_pack(root / "pack", manifest, root / "clam")
    ratio = medians["copy, flushed"] / medians["pack"]
    print(f"packing runs at {ratio:.2f} of the speed of a flushed copy (target {COPY_TARGET})")
    goals.at_least("packing against a flushed copy", ratio, COPY_TARGET)


def manifests(root: Path, goals: Goals) -> None:
    """`pams check --no-features` and `pams split` on a large table, each in a process of its own."""
    generator = random.Random(0)
    table = root / "large.csv"
    with table.open("w") as file:
        file.write("slide_id,patient_id,label\n")
        patient = 0
        for number in range(SLIDES):
            patient += generator.random() < 0.2
            file.write(f"slide_{number:06d},patient_{patient:06d},{generator.choice(TREE.names())}\n")
    for verb, options in (("check", ["--no-features"]), ("split", ["--folds", "5", "--out", str(root / "splits")])):
        command = [sys.executable, "-c", "from pams_mil.cli.main import main; main()", verb, str(table)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        start = time.perf_counter()
        subprocess.run([*command, "--classes", "bracs", *options], check=True, stdout=subprocess.DEVNULL)
        elapsed = time.perf_counter() - start
        peak = max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
        print(f"pams {verb}: {SLIDES:,} slides in {elapsed:.1f} s, at most {peak >> 10} MiB")
        goals.at_most(f"seconds of pams {verb}", elapsed, MOST_SECONDS)
        goals.at_most(f"memory of pams {verb}, MiB", peak / 1024, MOST_KIB / 1024)


def main() -> int:
    """Run all; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where to put the temporary files")
    parser.add_argument("--bags", type=int, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    goals = Goals()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        root = Path(temporary)
        manifests(root, goals)
        write_layout(root / "clam", arguments.bags, 32)
        write_layout(root / "trident", arguments.bags, 1)
        manifest = Manifest(tuple(SlideRecord(f"s{n}", f"p{n}", "N") for n in range(arguments.bags)))
        packing(root, manifest, goals)
        epochs(root, manifest, goals)
    return goals.end()


if __name__ == "__main__":
    sys.exit(main())
