"""How long each remix takes per bag, at the bag sizes of the paper's two cohorts, and how that grows.

Times are of this machine; the paper's were taken on its own GPU machine with FAISS.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from pams_mil import atomic
from pams_mil.experiments.arms import Arm, remix_arms
from pams_mil.experiments.printed import printed
from pams_mil.experiments.study import Section, Setting, Table
from pams_mil.experiments.study_figures import drawing, look
from pams_mil.remix.strategy import create_remix
from pams_mil.seeding import generator

DISCOVER = "run"
TITLE = "Time of the remix strategies"
NAME = "time-complexity"
SIZES = {"bracs": 3000, "in-house": 600}
"""Instances per bag that stand for the paper's cohorts; it does not print them."""
FEATURES = 384


def run(setting: Setting) -> Section:
    """Median seconds per remixed bag, beside the paper's."""
    repeats = 3 if setting.quick else 15
    growth = (250, 1000) if setting.quick else (250, 500, 1000, 2000, 4000, 8000)
    arms = [arm for arm in remix_arms() if arm.method["remix"] is not None]
    times = {(arm.printed, n): seconds(arm, n, repeats) for arm in arms for n in (*SIZES.values(), *growth)}
    numbers = printed("time_complexity")
    rows = tuple(
        (arm.label, *(f"{times[arm.printed, n]:.4f}" for n in SIZES.values()),
         *(f"{numbers[dataset, '', arm.printed, 'seconds'].mean:.3f}" for dataset in SIZES))
        for arm in arms
    )  # fmt: skip
    here = [f"n = {n} ({dataset}-like)" for dataset, n in SIZES.items()]
    head = ("remix", *here, "paper, BRACS", "paper, In-house")
    folder = setting.folder(NAME)
    lines = [(arm.label, n, times[arm.printed, n]) for arm in arms for n in growth]
    atomic.write_csv(folder / "seconds.csv", ("remix", "instances", "seconds"), lines)
    draw(setting, arms, growth, times)
    caption = f"Seconds per remixed bag, two bags of n instances of width {FEATURES}, median of {repeats}."
    return Section(
        NAME,
        TITLE,
        tables=(Table(caption, head, rows),),
        figures=(("growth", "Seconds per remixed bag over the number of instances."),),
        files=("seconds.csv",),
    )


def seconds(arm: Arm, instances: int, repeats: int) -> float:
    """Median time to remix two bags of clustered features."""
    remix = create_remix(arm.method["remix"])
    draw_of = generator(0, "time", instances)
    centers = torch.randn(12, FEATURES, generator=draw_of)
    bags = [
        centers[torch.randint(0, 12, (instances,), generator=draw_of)]
        + 0.5 * torch.randn(instances, FEATURES, generator=draw_of)
        for _ in range(2)
    ]
    taken = []
    # Another generator every time, the same for all strategies.
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        remix(bags[0], bags[1], generator(0, repeat))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])  # the first call warms up


def draw(setting: Setting, arms: Sequence[Arm], growth: Sequence[int], times: dict[tuple[str, int], float]) -> None:
    """Log-log lines, one per strategy."""
    with drawing(setting.folder(NAME), "growth", width=4.5, height=3.0) as (_, ax):
        for number, arm in enumerate(arms):
            ax.loglog(growth, [times[arm.printed, n] for n in growth], label=arm.label, markersize=4, **look(number))
        ax.set(xlabel="instances per bag", ylabel="seconds per remixed bag")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
