"""What the ways of pooling cost beside AB-MIL, in process CPU time: training step and inference, one thread.

    python benchmarks/pooling_cost.py

Contenders take turns and ratios are taken within a round, so that a busy machine does not favor any; the median over
the rounds is shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pams_mil.models import MILModel, create_model

WIDTH, CLASSES = 384, 7
CONTENDERS = {
    "abmil": ("abmil", {}),
    "priority, attention": ("priority", {}),
    "priority, smooth_max": ("priority", {"pooling": "smooth_max"}),
    "priority, mean": ("priority", {"pooling": "mean"}),
    "mean_pool": ("mean_pool", {}),
    "clam_sb": ("clam_sb", {}),
    "clam_mb": ("clam_mb", {}),
}
ROUNDS = {500: 11, 2000: 7, 8000: 5}


def spent(action: Callable[[], object]) -> float:
    """Seconds of CPU time of this process."""
    start = time.process_time()
    action()
    return time.process_time() - start


def take_turn(model: MILModel, bag: Tensor) -> tuple[float, float]:
    """The cost of a training step without the optimizer's part, and of a look."""
    model.train().zero_grad()
    step = spent(lambda: cross_entropy(model(bag).logits, torch.tensor([CLASSES - 1])).backward())
    model.eval()
    with torch.inference_mode():
        return step, spent(lambda: model(bag))


def main() -> None:
    """Time every contender at every size."""
    torch.set_num_threads(1)
    models = {
        name: create_model(model, in_features=WIDTH, num_classes=CLASSES, **options)
        for name, (model, options) in CONTENDERS.items()
    }
    for n, rounds in ROUNDS.items():
        bag = torch.randn(n, WIDTH)
        turns = [{name: take_turn(model, bag) for name, model in models.items()} for _ in range(rounds)]
        for name in models:
            step, look = (
                statistics.median(turn[name][part] / turn["abmil"][part] for turn in turns) for part in (0, 1)
            )
            print(f"n = {n:5d}  {name:22s} training step x {step:.2f}  inference x {look:.2f}", flush=True)


if __name__ == "__main__":
    main()
