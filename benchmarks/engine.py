"""What the engine costs besides the model, and what running a grid in parallel brings.

    python benchmarks/engine.py [--quick] [--only peer|overhead|parallel]

0. An epoch of `pams train` beside the same epoch as a plain PyTorch loop of a few lines (`plain_epoch`): 240 bags of
   about 30 x 1280 with two AB-MIL towers of width 128, and 24 bags of 1,200 x 384 with two TransMIL towers. One thread,
   processor time, the two taking turns epoch by epoch. Small bags also with `training.batch: 8`.
1. One epoch of 395 bags (n lognormal with median 1,200, D = 384, two TransMIL levels, PAMS with SFR): the wall time
   split into model (forward, backward, optimizer), remix, and everything else (loop, loader, logging, Fabric).
   Validation and checkpoints are reported beside it.
2. Eight AB-MIL runs: two processes with one thread each against the same runs one after the other.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from goals import Goals
from pams_mil.cohorts.cohort_writer import write_cohort
from pams_mil.cohorts.digits import Digits
from pams_mil.data.bags.bag import Bag, BagInfo
from pams_mil.data.bags.bag_file import write_bag
from pams_mil.data.bags.layouts import read_bag
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine import configure, train
from pams_mil.engine.config.grid_config import GridConfig
from pams_mil.engine.config.run_config import build
from pams_mil.engine.grid.engines import LocalEngine
from pams_mil.engine.grid.grid import default_workers, run_grid
from pams_mil.engine.training import loop as fit
from pams_mil.engine.training.observers import Watch
from pams_mil.engine.training.one_process import OneProcess
from pams_mil.engine.training.run_checkpoints import RunCheckpoints
from pams_mil.engine.training.training_bags import TrainingBags
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models import create_model

WIDTH = 384
USEFUL_GOAL, PARALLEL_GOAL = 0.95, 1.7


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


def make_bags(
    folder: Path,
    train_bags: int,
    median: int,
    *,
    width: int = WIDTH,
    spread: float = 0.6,
    least: int = 32,
    val: int = 14,
) -> None:
    """A cohort of random bags with sizes as in practice."""
    hierarchy, random = ClassHierarchy.load("bracs"), np.random.default_rng(0)
    records = []
    for split, count in (("train", train_bags), ("val", val)):
        for number in range(count):
            n = int(np.clip(random.lognormal(np.log(median), spread), least, 20 * median))
            slide = f"{split}-{number}"
            features = random.standard_normal((n, width)).astype(np.float32)
            write_bag(folder / "bags" / f"{slide}.h5", Bag(features, info=BagInfo(encoder="random", tile_px=256)))
            records.append(SlideRecord(slide, slide, hierarchy.names()[number % 7], split))
    Manifest(tuple(records)).write(folder / "manifest.csv")


class PlainABMIL(nn.Module):
    """AB-MIL as one would write it down."""

    def __init__(self, width: int, classes: int, hidden: int = 128) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(width, hidden), nn.Linear(hidden, classes)
        self.v, self.u, self.w = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, bag):
        """Logits [1, c] of a bag [n, d]."""
        h = torch.relu(self.project(bag))
        alpha = torch.softmax(self.w(torch.tanh(self.v(h)) * torch.sigmoid(self.u(h))), 0)
        return self.head(alpha.T @ h)


class Logits(nn.Module):
    """The logits of one of the project's own models; what is compared is then the loop alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, bag):
        """Logits [1, c] of a bag [n, d]."""
        return self.model(bag).logits


def plain_epoch(towers, optimizer, train_bags, val_bags) -> tuple[float, float]:
    """An epoch and its validation without PAMS; processor seconds of each."""
    started = time.process_time()
    towers.train()
    total = 0.0
    for index in torch.randperm(len(train_bags)).tolist():
        bag, targets = train_bags[index]
        loss = sum(functional.cross_entropy(tower(bag), target) for tower, target in zip(towers, targets, strict=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    trained = time.process_time()
    towers.eval()
    with torch.no_grad():
        for bag, _ in val_bags:
            [tower(bag).softmax(-1) for tower in towers]
    return trained - started, time.process_time() - trained


class TakeTurns(Watch):
    """Runs a plain epoch after every epoch of a run, and notes the processor time of both."""

    def __init__(self, plain) -> None:
        self.plain, self.seconds = plain, defaultdict(list)

    def epoch_started(self, *_) -> None:
        """Start the clock."""
        self.started = time.process_time()

    def stepped(self, terms, bags=1) -> None:
        """Note when the last step ended."""
        self.stepped_at = time.process_time()

    def epoch_finished(self, row, *, best) -> None:
        """Stop the clock, and let the plain loop have its turn."""
        self.seconds["ours"].append(self.stepped_at - self.started)
        self.seconds["ours with validation"].append(time.process_time() - self.started)
        trained, validated = self.plain()
        self.seconds["plain"].append(trained)
        self.seconds["plain with validation"].append(trained + validated)

    def ratio(self, what: str = "") -> float:
        """Median of the epochs' ratios; the first epoch reads the bags."""
        pairs = zip(self.seconds[f"ours{what}"][1:], self.seconds[f"plain{what}"][1:], strict=True)
        return float(np.median([ours / plain for ours, plain in pairs]))


def peer(folder: Path, epochs: int, large_bags: int, goals: Goals) -> None:
    """Print how an epoch compares with the plain loop's."""
    torch.set_num_threads(1)
    hierarchy = ClassHierarchy.load("bracs")
    counts = [hierarchy.num_classes(level) for level in range(2)]
    make_bags(folder / "small", 240, 22, width=1280, spread=0.8, least=2, val=80)
    make_bags(folder / "large", large_bags, 1200, spread=0.0, val=4)
    abmil = {"name": "abmil", "embedding_features": 128, "attention_features": 128}
    small = nn.ModuleList(PlainABMIL(1280, count) for count in counts)
    large = nn.ModuleList(Logits(create_model("transmil", in_features=WIDTH, num_classes=count)) for count in counts)
    print("\nAn epoch of pams train beside a plain PyTorch loop; one thread, processor time, taking turns")
    for name, model, towers, batch, goal in (
        ("small", abmil, small, 1, 1.1), ("small", abmil, small, 8, 0.55), ("large", "transmil", large, 1, 1.02)
    ):  # fmt: skip
        bags = {split: plain_bags(folder / name, split, hierarchy) for split in ("train", "val")}
        optimizer = torch.optim.Adam(towers.parameters(), lr=1e-4, weight_decay=1e-4, fused=True)
        watch = TakeTurns(functools.partial(plain_epoch, towers, optimizer, bags["train"], bags["val"]))
        config = configure(
            folder / name / "manifest.csv", classes="bracs", method="ce", model=model, features=folder / name / "bags",
            epochs=epochs if name == "small" else max(3, epochs // 3), patience=None, batch=batch,
            compute={"accelerator": "cpu", "threads": 1},
        )  # fmt: skip
        train(config, folder / f"{name}-{batch}", watch=watch)
        found, whole = watch.ratio(), watch.ratio(" with validation")
        what = "240 bags of about 30 x 1280, AB-MIL" if name == "small" else f"{large_bags} of 1,200 x 384, TransMIL"
        seconds = [float(np.median(watch.seconds[key][1:])) for key in ("ours", "plain")]
        print(
            f"  {what:36s} batch {batch}: {seconds[0]:6.2f} s, plain {seconds[1]:6.2f} s, ratio {found:.2f} (goal: at "
            f"most {goal}); with validation and checkpoint {whole:.2f}"
        )
        goals.at_most(f"an epoch of {name} bags, batch {batch}, in plain loops", found, goal)


def plain_bags(folder: Path, split: str, hierarchy: ClassHierarchy):
    """Bags in memory with the classes of both levels."""
    groups, found = hierarchy.groups(0), []
    for record in Manifest.read(folder / "manifest.csv").select(split):
        features = torch.from_numpy(read_bag(folder / "bags" / f"{record.slide_id}.h5").features)
        target = hierarchy.index(record.label)
        found.append((features, [torch.tensor([int(groups[target])]), torch.tensor([target])]))
    return found


def overhead(folder: Path, train_bags: int, median: int, goals: Goals) -> None:
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
        ("loop", "loop and logging"),
    ):
        print(f"  {words:34s} {clock.seconds[what]:8.2f} s  {100 * clock.seconds[what] / epoch:5.1f} %")
    useful = (clock.seconds["model"] + clock.seconds["remix"]) / epoch
    print(f"  model compute and remix: {100 * useful:.1f} % (goal: at least {100 * USEFUL_GOAL:.0f} %)")
    goals.at_least("share of model compute and remix in an epoch", useful, USEFUL_GOAL)
    extra = total - epoch - clock.seconds["validation"] - clock.seconds["checkpoints"]
    print(f"  beside it: validation {clock.seconds['validation']:.2f} s, checkpoints "
          f"{clock.seconds['checkpoints']:.2f} s, start {extra:.2f} s")  # fmt: skip


def parallel(folder: Path, epochs: int, goals: Goals) -> None:
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
    print(f"  goal: at least {PARALLEL_GOAL} x")
    goals.at_least(f"gain of {cores} processes over one after the other", ratio, PARALLEL_GOAL if cores > 1 else 0.0)


def main() -> int:
    """Run the benchmarks in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller bags, fewer epochs")
    parser.add_argument("--only", choices=["peer", "overhead", "parallel"], help="one of them")
    arguments = parser.parse_args()
    goals, folder = Goals(), Path(tempfile.mkdtemp(prefix="pams-bench-"))
    try:
        if arguments.only in (None, "peer"):
            peer(folder / "peer", *((8, 8) if arguments.quick else (25, 24)), goals)
        if arguments.only in (None, "overhead"):
            overhead(folder / "overhead", *((40, 600) if arguments.quick else (395, 1200)), goals)
        if arguments.only in (None, "parallel"):
            parallel(folder / "parallel", 5 if arguments.quick else 20, goals)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return goals.end()


if __name__ == "__main__":
    sys.exit(main())
