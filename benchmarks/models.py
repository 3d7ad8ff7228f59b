"""Speed and memory of the models, side by side with published compositions and torchmil, in one run.

    python benchmarks/models.py            n in {500, 2000, 8000, 30000}
    python benchmarks/models.py --quick    n in {500, 2000}

Contenders take turns, and a ratio is the median over the rounds of the ratio within a round, so that a slow moment of
the machine hits both sides of it. Peak memory is how far the resident size of a fresh process rises during its first
step. All contenders use the same optimizer and, for DTFD, clip gradients and decay weights as its authors do; only the
published DTFD keeps the two plain Adams of its authors, and clips each part of the model by itself. "loop" is the
leanest loop over pseudo-bags; torchmil's DTFD has no gates, which are half of the attention's work. `--clock cpu`
measures processor time instead of wall time, for machines that do other things as well. Peers that are not installed
are skipped and named; they can live in a folder of their own:

    pip install --no-deps --target peers torchmil tensordict pyvers orjson
    PYTHONPATH=peers python benchmarks/models.py
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from goals import Goals
from model_peers import WIDTH, LoopDTFD, build, copy_into_loop, installed
from pams_mil.models import create_model

SIZES, QUICK = (500, 2000, 8000, 30000), (500, 2000)
TASKS = ("train", "infer")
ROUNDS = {"transmil": 7, "dtfd": 25, "abmil": 25}
"""Of every model; a step of the last two takes a fraction of a second, too short for a few to mean much."""

TRAIN_GOALS = {("transmil", "published"): 2.2, ("dtfd", "torchmil"): 1.0, ("abmil", "torchmil"): 1.0}
"""How many times as fast as a contender a training step has to be, for every size of a bag."""
DTFD_GOAL = {2000: 1.9}
"""The same against the published DTFD."""
TRANSMIL_INFER_GOAL, TRANSMIL_MEMORY_LIMIT = 1.6, 0.4


def contenders(kind: str) -> list[str]:
    """Who takes part for a model, ours first."""
    names = ["pams"]
    if kind == "dtfd":
        names += ["loop", "published"]
    elif kind == "transmil" and installed("nystrom_attention"):
        names.append("published")
    if installed("torchmil"):
        names.append("torchmil")
    return names


class Runner:
    """One contender: a training step and an inference call on a bag."""

    def __init__(self, kind: str, contender: str) -> None:
        self.model, self.loss = build(kind, contender)
        self.clipped, decay = ([list(self.model.parameters())], 1e-4) if kind == "dtfd" else ([], 0.0)
        tiers = [list(self.model.parameters())]
        if (kind, contender) == ("dtfd", "published"):
            tiers, self.clipped = self.model.tiers(), self.model.parts()
        self.optimizers = [torch.optim.Adam(tier, lr=1e-4, weight_decay=decay, fused=len(tiers) == 1) for tier in tiers]

    def train(self, bag: torch.Tensor) -> None:
        """Forward, backward, Adam."""
        self.model.train()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        *first, last = self.loss(bag)
        for loss in first:
            loss.backward(retain_graph=True)
        last.backward()
        for part in self.clipped:
            torch.nn.utils.clip_grad_norm_(part, 5.0)
        for optimizer in self.optimizers:
            optimizer.step()

    def infer(self, bag: torch.Tensor) -> None:
        """Logits without gradients."""
        self.model.eval()
        with torch.inference_mode():
            self.model(bag)


def check_same_function(kind: str) -> str:
    """Largest difference of logits between ours and the published composition, for the same weights."""
    ours, _ = build(kind, "pams")
    theirs, _ = build(kind, "published")
    bag = torch.randn(1000, WIDTH)
    with torch.no_grad():
        if isinstance(theirs, LoopDTFD):
            copy_into_loop(ours, theirs)
            difference = ours.eval()(bag).logits - theirs.eval()(bag)[0]
        else:
            difference = ours.eval()(bag).logits - theirs.eval()(bag)
    largest = difference.abs().max().item()
    if largest > 1e-4:
        raise SystemExit(f"{kind}: ours and the published composition differ by {largest}; a ratio would mean nothing.")
    return f"largest difference of logits for the same weights: {largest:.1e}"


Seconds = dict[tuple[str, str], list[float]]
"""Of every contender and task, one per round."""


def times(kind: str, n: int, names: list[str], clock, rounds: int) -> Seconds:
    """Seconds of a training step and an inference call of every contender, round by round."""
    bag = torch.randn(n, WIDTH)
    runners = {name: Runner(kind, name) for name in names}
    seconds: Seconds = {(name, task): [] for name in names for task in TASKS}
    for round_number in range(rounds + 1):
        for name, runner in runners.items():
            for task in TASKS:
                start = clock()
                getattr(runner, task)(bag)
                if round_number:
                    seconds[name, task].append(clock() - start)
    return seconds


def times_faster(seconds: Seconds, other: str, task: str) -> float:
    """How many times as long as ours another contender takes, in the middle round."""
    pairs = zip(seconds[other, task], seconds["pams", task], strict=True)
    return statistics.median(theirs / ours for theirs, ours in pairs)


def missed_goals(kind: str, n: int, other: str, train: float, infer: float, memory: float) -> list[str]:
    """What falls short of its goal, in words."""
    goal = DTFD_GOAL.get(n) if (kind, other) == ("dtfd", "published") else TRAIN_GOALS.get((kind, other))
    against = f"{kind}, n = {n}, against {other}"
    missed = [f"{against}: training step {train:.2f} x, goal {goal} x"] if goal and train < goal else []
    if (kind, other) == ("transmil", "published"):
        if infer < TRANSMIL_INFER_GOAL:
            missed.append(f"{against}: inference {infer:.2f} x, goal {TRANSMIL_INFER_GOAL} x")
        if memory > TRANSMIL_MEMORY_LIMIT:
            missed.append(f"{against}: {memory:.0%} of its memory, limit {TRANSMIL_MEMORY_LIMIT:.0%}")
    return missed


def dtfd_products(n: int, clock, rounds: int) -> float:
    """Median seconds of the matrix products that one training step of DTFD cannot do without."""
    bag, instances, gates = torch.randn(n, WIDTH), torch.randn(n, 512), torch.randn(n, 256)
    projection, inner = torch.randn(512, WIDTH), torch.randn(256, 512)
    seconds = []
    for _ in range(rounds + 1):
        start = clock()
        bag @ projection.T, instances @ inner.T  # forward
        gates @ inner, gates.T @ instances, instances.T @ bag  # backward
        seconds.append(clock() - start)
    return statistics.median(seconds[1:])


def peak_megabytes(kind: str, contender: str, n: int) -> float:
    """How far the resident size of a fresh process rises during a training step, in MB."""
    command = [sys.executable, __file__, "--measure-memory", kind, contender, str(n)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(result.stdout))


def resident_kilobytes(field: str) -> int:
    """Current (VmRSS) or peak (VmHWM) resident size; getrusage would report the parent's peak after a fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def measure_memory(kind: str, contender: str, n: int) -> None:
    """The body of the fresh process: peak during its first step, over what model and bag took before it.

    Gradients and Adam's state are counted; libraries that load at first use are touched beforehand.
    """
    runner, bag = Runner(kind, contender), torch.randn(n, WIDTH)
    warm = create_model("transmil", in_features=8, num_classes=2, embedding_features=64, landmarks=32)
    warm(torch.randn(500, 8)).logits.sum().backward()
    torch.optim.Adam(warm.parameters(), fused=True).step()
    before = resident_kilobytes("VmRSS")
    runner.train(bag)
    print(json.dumps((resident_kilobytes("VmHWM") - before) * 1024 / 1e6))


def compare(kind: str, sizes: tuple[int, ...], clock, rounds: int) -> list[str]:
    """Print the tables of one model; the goals that were missed."""
    names = contenders(kind)
    print(f"\n## {kind}, D = {WIDTH}")
    if "published" in names:
        print(check_same_function(kind))
    others = names[1:]
    if not others:
        print("No peer is installed: nothing to compare with.")
    header = ["n", "pams train s", "pams infer s", "pams MB"]
    for other in others:
        header += [f"{other} train x", f"{other} infer x", f"our memory / {other}'s"]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    memory, limits, missed = {}, [], []
    for n in sizes:
        found = times(kind, n, names, clock, rounds)
        if kind == "dtfd":
            products = dtfd_products(n, clock, rounds)
            limits.append(f"{statistics.median(found['loop', 'train']) / products:.2f} at n = {n}")
        peaks = {name: peak_megabytes(kind, name, n) for name in names}
        memory[n] = peaks["pams"]
        row = [str(n), *(f"{statistics.median(found['pams', task]):.3f}" for task in TASKS), f"{peaks['pams']:.0f}"]
        for other in others:
            train, infer = (times_faster(found, other, task) for task in TASKS)
            share = peaks["pams"] / peaks[other]
            row += [f"{train:.2f}", f"{infer:.2f}", f"{share:.0%}"]
            missed += missed_goals(kind, n, other, train, infer, share)
        print("| " + " | ".join(row) + " |", flush=True)
    pairs = list(itertools.pairwise(sizes))
    text = ", ".join(f"{a} to {b}: {(memory[b] - memory[a]) / (b - a) * 1000:.1f}" for a, b in pairs)
    print(f"memory slope, kB per instance: {text}")
    if limits:
        print(
            "times faster than the loop that a step of nothing but its matrix products would be: " + ", ".join(limits)
        )
    return missed


def main() -> int:
    """Parse the options and run; 1 when a goal is missed and --strict is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small bags only")
    parser.add_argument("--models", nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--sizes", nargs="+", type=int)
    parser.add_argument("--rounds", type=int, help="instead of the number that a model has")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--measure-memory", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_memory:
        kind, contender, n = options.measure_memory
        measure_memory(kind, contender, int(n))
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    sizes = tuple(options.sizes or (QUICK if options.quick else SIZES))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.clock} time, x = times faster than")
    for package in ("nystrom_attention", "torchmil"):
        if not installed(package):
            print(f"peer {package} is not installed: skipped")
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    goals = Goals()
    for kind in options.models:
        goals.missed += compare(kind, sizes, clock, options.rounds or ROUNDS[kind])
    return goals.end()


if __name__ == "__main__":
    sys.exit(main())
