"""How long each remix takes per bag, at the bag sizes of the paper's two cohorts, and how that grows.

Times are of this machine; the paper's were taken on its own GPU machine with FAISS.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from pams_mil.experiments.paper import Study, paper_numbers
from pams_mil.remix.strategy import create_remix
from pams_mil.report.bench_page import Further
from pams_mil.report.page import ReportTable
from pams_mil.seeding import generator

REMIXES = {"ReMix": "remix", "PseudoMix": "pseudomix", "RandomMix": "randommix", "SFR": "sfr"}
SIZES = {"bracs": 3000, "in-house": 600}
"""Instances per bag that stand for the paper's cohorts; it does not print them."""
GROWTH = (250, 500, 1000, 2000, 4000, 8000)
FEATURES = 384


def time_study(repeats: int = 15, growth: Sequence[int] = GROWTH) -> Study:
    """Median seconds per remixed bag, beside the paper's, and over the number of instances."""
    numbers, rows, grown = paper_numbers("time"), [], []
    for label, name in REMIXES.items():
        here = [f"{seconds(name, size, repeats):.4f}" for size in SIZES.values()]
        rows.append([label, *here, *(f"{numbers[dataset, '', label, 'seconds'][0]:.3f}" for dataset in SIZES)])
        grown.append([label, *(f"{seconds(name, size, repeats):.4f}" for size in growth)])
    caption = f"Seconds per remixed bag, two bags of n instances of width {FEATURES}, median of {repeats}."
    here = [f"n = {size} ({dataset}-like)" for dataset, size in SIZES.items()]
    head = ["remix", *here, "paper, BRACS", "paper, In-house"]
    sizes = ["remix", *(f"n = {size}" for size in growth)]
    by_size = ReportTable(sizes, grown, caption="The same over the size of bags.")
    return Study("Time of the remix strategies", Further((ReportTable(head, rows, caption=caption), by_size)))


def seconds(name: str, instances: int, repeats: int) -> float:
    """Median time to remix two bags of clustered features."""
    remix = create_remix(name)
    random = generator(0, "time", instances)
    centers = torch.randn(12, FEATURES, generator=random)
    bags = [
        centers[torch.randint(0, 12, (instances,), generator=random)]
        + 0.5 * torch.randn(instances, FEATURES, generator=random)
        for _ in range(2)
    ]
    times = []
    # Another generator every time, the same for all strategies.
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        remix(bags[0], bags[1], generator(0, repeat))
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])  # the first call warms up
