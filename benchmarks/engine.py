"""What the engine costs besides the model, and what running a grid in parallel brings.

    python benchmarks/engine.py [--quick]

1. One epoch of 395 bags (n lognormal with median 1,200, D = 384, two TransMIL levels, PAMS with SFR): the wall time
   split into model (forward, backward, optimizer), remix, and everything else (loop, loader, logging, Fabric).
   Validation and checkpoints are reported beside it.
2. Eight AB-MIL runs: two processes with one thread each against the same runs one after the other.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from pams_mil.cohorts.digits import Digits
from pams_mil.cohorts.made_cohort import write_cohort
from pams_mil.data.bags.bag import Bag, BagInfo
from pams_mil.data.bags.bag_file import write_bag
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine import configure, train
from pams_mil.engine.config.grid_config import GridConfig
from pams_mil.engine.config.run_config import build
from pams_mil.engine.grid.grid import default_workers, run_grid
from pams_mil.engine.grid.local_processes import LocalEngine
from pams_mil.engine.run.run_checkpoints import RunCheckpoints
from pams_mil.engine.training import loop as fit
from pams_mil.engine.training.one_process import OneProcess
from pams_mil.engine.training.training_bags import TrainingBags
from pams_mil.hierarchy import ClassHierarchy

WIDTH = 384


class Clock:
    """Adds up the time spent in chosen functions; inner calls are not counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside: list[str] = []

    def time(self, owner: object, name: str, what: str) -> None:
        """Time every call of `owner.name` under the heading `what`."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args, **kwargs):
            started = time.perf_counter()
            self._inside.append(what)
            try:
                return original(*args, **kwargs)
            finally:
                spent = time.perf_counter() - started
                self._inside.pop()
                self.seconds[what] += spent
                if self._inside:
                    self.seconds[self._inside[-1]] -= spent

        setattr(owner, name, timed)


def make_bags(folder: Path, train_bags: int, median: int) -> None:
    """A cohort of random bags with sizes as in practice."""
    hierarchy, random = ClassHierarchy.load("bracs"), np.random.default_rng(0)
    records = []
    for split, count in (("train", train_bags), ("val", 14)):
        for number in range(count):
            n = int(np.clip(random.lognormal(np.log(median), 0.6), 32, 20 * median))
            slide = f"{split}-{number}"
            features = random.standard_normal((n, WIDTH)).astype(np.float32)
            write_bag(folder / "bags" / f"{slide}.h5", Bag(features, info=BagInfo(encoder="random", tile_px=256)))
            records.append(SlideRecord(slide, slide, hierarchy.names()[number % 7], split))
    Manifest(tuple(records)).write(folder / "manifest.csv")


def overhead(folder: Path, train_bags: int, median: int) -> None:
    """Print where the time of one epoch goes."""
    make_bags(folder, train_bags, median)
    clock = Clock()
    clock.time(fit, "forward", "model")
    clock.time(OneProcess, "backward", "model")
    clock.time(torch.optim.Adam, "step", "model")
    clock.time(TrainingBags, "__getitem__", "loader")
    from pams_mil.remix.sfr import SFR

    clock.time(SFR, "__call__", "remix")
    clock.time(fit, "validate", "validation")
    clock.time(RunCheckpoints, "save_last", "checkpoints")
    clock.time(RunCheckpoints, "save_best", "checkpoints")
    clock.time(fit, "_train_epoch", "loop")
    config = configure(
        folder / "manifest.csv", classes="bracs", method="pams", model="transmil", features=folder / "bags",
        epochs=1, compute={"accelerator": "cpu"},
    )  # fmt: skip
    started = time.perf_counter()
    train(config, folder / "run")
    total = time.perf_counter() - started
    epoch = sum(clock.seconds[what] for what in ("model", "remix", "loader", "loop"))
    print(
        f"\nOne epoch, {train_bags} bags, median {median} x {WIDTH}, two TransMIL levels, PAMS with SFR: {epoch:.1f} s"
    )
    for what, words in (
        ("model", "model: forward, backward, Adam"),
        ("remix", "remix: SFR"),
        ("loader", "loader: reading bags"),
        ("loop", "loop, Fabric, logging"),
    ):
        print(f"  {words:34s} {clock.seconds[what]:8.2f} s  {100 * clock.seconds[what] / epoch:5.1f} %")
    useful = (clock.seconds["model"] + clock.seconds["remix"]) / epoch
    print(f"  model compute and remix: {100 * useful:.1f} % (goal: at least 95 %)")
    extra = total - epoch - clock.seconds["validation"] - clock.seconds["checkpoints"]
    print(f"  beside it: validation {clock.seconds['validation']:.2f} s, checkpoints "
          f"{clock.seconds['checkpoints']:.2f} s, start {extra:.2f} s")  # fmt: skip


def parallel(folder: Path, epochs: int) -> None:
    """Print how much faster a grid is than its runs one after the other."""
    cohort = Digits()
    write_cohort(folder / "digits", cohort.slides(), total=len(cohort))
    content = {
        "data": folder / "digits/manifest.csv", "classes": "digits", "methods": ["ce"], "seeds": list(range(8)),
        "training": {"epochs": epochs, "patience": None}, "compute": {"accelerator": "cpu"},
    }  # fmt: skip
    grid = build(GridConfig, content)
    cores = default_workers()
    seconds = {}
    arms = {
        f"one after the other, {cores} threads": LocalEngine(workers=1, threads=cores),
        "one after the other, 1 thread": LocalEngine(workers=1, threads=1),
        f"{cores} processes, 1 thread each": LocalEngine(workers=cores, threads=1),
    }
    for number, (name, engine) in enumerate(arms.items()):
        started = time.perf_counter()
        done = run_grid(grid, folder / f"grid-{number}", engine)
        seconds[name] = time.perf_counter() - started
        if done.failures:
            raise SystemExit(f"runs failed: {done.failures}")
    print(f"\nEight AB-MIL runs of {epochs} epochs on the digits cohort, {cores} cores")
    names = list(seconds)
    for name in names:
        ratio = min(seconds[names[0]], seconds[names[1]]) / seconds[name]
        print(f"  {name:38s} {seconds[name]:8.1f} s  {ratio:5.2f} x the faster sequential way")
    print("  goal: at least 1.7 x")


def main() -> None:
    """Run both benchmarks in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller bags, fewer epochs")
    parser.add_argument("--only", choices=["overhead", "parallel"], help="one of the two")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pams-bench-"))
    try:
        if arguments.only != "parallel":
            overhead(folder / "overhead", *((40, 600) if arguments.quick else (395, 1200)))
        if arguments.only != "overhead":
            parallel(folder / "parallel", 5 if arguments.quick else 20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
