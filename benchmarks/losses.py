"""Each loss with its backward pass on [4096, 7], as a ratio to PyTorch's cross-entropy in the same run.

Run: python benchmarks/losses.py. Exits with 1 when a ratio is above its limit.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from goals import Goals
from pams_mil import methods
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.terms import LevelMargin, alignment_loss, child_counts

BATCH, ROUNDS, REPEATS = 4096, 40, 8
LIMIT, MSCE_LIMIT = 4.0, 3.0


def losses(hierarchy: ClassHierarchy) -> dict[str, Callable[[], Tensor]]:
    """Name -> a function that computes the scalar loss of the same random logits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(BATCH, hierarchy.num_classes(), generator=generator, requires_grad=True)
    coarse = torch.randn(BATCH, hierarchy.num_classes(0), generator=generator, requires_grad=True)
    target = torch.randint(hierarchy.num_classes(), (BATCH,), generator=generator)
    coarse_target = torch.from_numpy(hierarchy.lift(target.numpy(), 0))
    sizes = child_counts(hierarchy, 0)
    margin = LevelMargin(hierarchy.num_classes(0), margin=3.0, memory=256)
    names = [name for name in dir(methods) if name.endswith("Loss") and name != "LevelLoss"]
    modules = {name: getattr(methods, name)(hierarchy) for name in names}
    calls: dict[str, Callable[[], Tensor]] = {
        "torch cross_entropy": lambda: torch.nn.functional.cross_entropy(logits, target)
    }
    calls.update({name: lambda module=module: module(logits, target) for name, module in modules.items()})
    calls["alignment_loss"] = lambda: alignment_loss(coarse, logits, sizes).mean()
    calls["HAF margin (coarse level)"] = lambda: margin(coarse, coarse_target).mean()
    return calls


def seconds(call: Callable[[], Tensor]) -> float:
    """Mean time of one forward and backward pass."""
    start = time.perf_counter()
    for _ in range(REPEATS):
        call().backward()
    return (time.perf_counter() - start) / REPEATS


def main() -> int:
    """Interleave all losses, print medians and ratios."""
    torch.set_num_threads(1)
    calls = losses(ClassHierarchy.load("bracs"))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        seconds(call)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(seconds(call))
    anchor = times["torch cross_entropy"]
    goals = Goals()
    print(f"forward and backward on [{BATCH}, 7], one thread, median of {ROUNDS} interleaved rounds")
    for name, measured in times.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(measured, anchor, strict=True))
        limit = MSCE_LIMIT if name == "MSCELoss" else LIMIT
        goals.at_most(f"{name} against torch's cross-entropy", ratio, limit)
        verdict = "" if ratio <= limit else f"  above the limit of {limit:g}"
        print(f"{name:26s} {statistics.median(measured) * 1e6:8.0f} µs   {ratio:5.2f} x{verdict}")
    return goals.end()


if __name__ == "__main__":
    sys.exit(main())
