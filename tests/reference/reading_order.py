"""Reading orders written as loops, and a queue that is simulated case by case."""

from __future__ import annotations

import heapq
import random


def pile(is_urgent, part):
    positions = [number for number, urgent in enumerate(is_urgent, 1) if urgent]
    reads = 0
    while reads < part * len(is_urgent) - 1e-9:
        reads += 1
    early = sum(1 for position in positions if position <= reads)
    return sum(positions) / len(positions), max(positions), early / len(positions)


def cobham(called, utilization):
    waits = []
    for rank in range(len(called)):
        above = sum(called[other] for other in range(rank + 1, len(called)))
        waits.append(utilization / ((1 - utilization * above) * (1 - utilization * (above + called[rank]))))
    return waits


def simulate(confusion, ranks, utilization, cases, seed):
    """Mean wait of each true class with one reader who always takes the most urgently called, then the oldest, case."""
    draw = random.Random(seed)
    cells = [(t, r) for t in range(len(ranks)) for r in range(len(ranks))]
    weights = [confusion[t][r] for t, r in cells]
    clock, arrivals = 0.0, []
    for _ in range(cases):
        clock += draw.expovariate(utilization)
        arrivals.append((clock, *draw.choices(cells, weights)[0]))
    waiting, free, next_case = [], 0.0, 0
    total, count = [0.0] * len(ranks), [0] * len(ranks)
    while next_case < cases or waiting:
        if not waiting:
            free = max(free, arrivals[next_case][0])
        while next_case < cases and arrivals[next_case][0] <= free:
            when, true, called = arrivals[next_case]
            heapq.heappush(waiting, (-ranks[called], when, true))
            next_case += 1
        _, when, true = heapq.heappop(waiting)
        total[true] += free - when
        count[true] += 1
        free += draw.expovariate(1.0)
    return [a / b for a, b in zip(total, count, strict=True)]
