"""Speed of SFR and of the other remixes, beside FAISS, scikit-learn and the matrix products alone.

Run: python benchmarks/remix_speed.py [--threads N] [--quick]
Wall time on an otherwise idle machine; with `--threads 1` the clock is the processor time of this process, for machines
with other load. Every number is the median of interleaved rounds. Two comparisons with each k-means: "from two
bags" joins the bags, trains (6 iterations, no subsampling) and assigns, which is what SFR needs of it; "train alone"
leaves out joining and assigning. Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from goals import Goals
from pams_mil.remix import Remix, create_remix
from pams_mil.remix.clustering import cluster

CLUSTERS, ITERATIONS = 11, 6
REST_SECONDS = 0.005
SHARE_LIMIT = 0.02
GOAL = 1.0
PRODUCT_LIMIT = 6.0
PAPER_SECONDS = {
    "remix": (0.233, 0.061),
    "pseudomix": (0.015, 0.004),
    "randommix": (0.005, 0.003),
    "sfr": (0.023, 0.005),
}
SIZES = {"BRACS-like": 2000, "colon-like": 500}


def features(rows: int, width: int, seed: int) -> torch.Tensor:
    """Rows with a common mean and variances that fall off, like those of a pretrained encoder."""
    random = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, width + 1).float() ** -0.5
    return torch.randn(rows, width, generator=random) * scale + 0.9 * width**-0.5


def timed(calls: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median milliseconds of each call; the calls take turns so that a slow spell hits all of them.

    Every turn is a rest, a call that is not timed and one that is. Threads of a call go on spinning for a while after
    it, on a core that the next one then lacks: the rest lets them fall asleep. The call that is not timed wakes
    up the threads of whose turn it is, and brings its data back into the cache.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(REST_SECONDS)
            call()
            start = clock()
            call()
            samples[name].append(1e3 * (clock() - start))
    return {name: statistics.median(values) for name, values in samples.items()}


def kmeans_calls(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], object]]:
    """FAISS and scikit-learn, with and without joining and assigning."""
    joined = torch.cat([a, b])

    def sklearn_fit(rows: torch.Tensor) -> object:
        return KMeans(CLUSTERS, init="random", n_init=1, max_iter=ITERATIONS, tol=0, random_state=0).fit(rows.numpy())

    calls: dict[str, Callable[[], object]] = {
        "sklearn": lambda: sklearn_fit(torch.cat([a, b])),
        "sklearn train alone": lambda: sklearn_fit(joined),
    }
    try:
        import faiss
    except ImportError:
        print("FAISS is not installed: comparing with scikit-learn only")
        return calls

    def faiss_fit(rows: torch.Tensor, *, assign: bool) -> object:
        model = faiss.Kmeans(
            rows.shape[1], CLUSTERS, niter=ITERATIONS, spherical=True, max_points_per_centroid=10**9, seed=1
        )
        model.train(rows.numpy())
        return model.index.search(rows.numpy(), 1) if assign else model

    calls["faiss"] = lambda: faiss_fit(torch.cat([a, b]), assign=True)
    calls["faiss train alone"] = lambda: faiss_fit(joined, assign=False)
    return calls


def clustering(width: int, rows: int, rounds: int, clock: Callable[[], float]) -> list[str]:
    """One line of the table; the goals that were missed."""
    a, b = features(rows, width, 0), features(rows, width, 1)
    joined, weight = torch.cat([a, b]), torch.randn(16, width)
    sfr = create_remix("sfr")
    generator = torch.Generator()
    calls = {
        "cluster": lambda: cluster((a, b)),
        "whole remix": lambda: sfr(a, b, generator),
        "products": lambda: [torch.mm(joined, weight.T) for _ in range(ITERATIONS)],
        **kmeans_calls(a, b),
    }
    ms = timed(calls, rounds, clock)
    live = cluster((a, b)).live
    whole = min(ms[name] for name in ("faiss", "sklearn") if name in ms) / ms["cluster"]
    alone = min(ms[name] for name in ms if "train alone" in name) / ms["cluster"]
    over = ms["cluster"] / ms["products"]
    faiss_ms = ms.get("faiss", float("nan"))
    print(
        f"{width:5d} {rows:6d} {live:5d} {ms['cluster']:9.2f} "
        f"{ms['whole remix']:9.2f} {faiss_ms:9.2f} {ms['sklearn']:9.2f} {ms['products']:9.2f} "
        f"{whole:9.2f} {alone:9.2f} {over:9.2f}",
        flush=True,
    )
    missed = []
    if whole < GOAL:
        missed.append(f"n = {rows}, D = {width}: {whole:.2f} times the faster k-means, goal {GOAL}")
    if over > PRODUCT_LIMIT:
        missed.append(f"n = {rows}, D = {width}: {over:.2f} times the matrix products, limit {PRODUCT_LIMIT}")
    return missed


def complexity(rounds: int, clock: Callable[[], float], width: int = 384) -> None:
    """The paper's table of seconds per sample, and how SFR grows with n, L and T."""
    print("\nSeconds per sample (paper: FAISS on one RTX A6000, in brackets)")
    print(f"{'':12s}" + "".join(f"{name + f', n = {rows}':>26s}" for name, rows in SIZES.items()))
    for name, printed in PAPER_SECONDS.items():
        strategy = create_remix(name, **({"mix_probability": 1.0} if name == "pseudomix" else {}))
        cells = []
        for rows, paper in zip(SIZES.values(), printed, strict=True):
            a, b = features(rows, width, 0), features(rows, width, 1)
            ms = timed({name: partial(_remix_once, strategy, a, b)}, rounds, clock)
            cells.append(f"{ms[name] / 1e3:14.4f} ({paper:.3f})    ")
        print(f"{name:12s}" + "".join(cells))
    print("\nGrowth of SFR's clustering from n = 2000, L = 11, T = 6 (time relative to it)")
    base = (2000, 11, 6)
    steps = {"n": [(k * 2000, 11, 6) for k in (1, 2, 4, 8)], "L": [(2000, k, 6) for k in (11, 22, 44)]}
    steps["T"] = [(2000, 11, k) for k in (3, 6, 12)]
    for name, settings in steps.items():
        calls = {str(setting): _growth_call(*setting, width) for setting in (base, *settings)}
        ms = timed(calls, rounds, clock)
        print(f"  {name}: " + ", ".join(f"{s['nLT'.index(name)]}: {ms[str(s)] / ms[str(base)]:.2f}" for s in settings))


def _remix_once(strategy: Remix, a: torch.Tensor, b: torch.Tensor) -> object:
    return strategy(a, b, torch.Generator().manual_seed(0))


def _growth_call(rows: int, clusters: int, iterations: int, width: int) -> Callable[[], object]:
    bags = [features(rows, width, seed) for seed in (0, 1)]
    return lambda: cluster(bags, clusters=clusters, iterations=iterations)


def epoch_share(rounds: int, clock: Callable[[], float], rows: int = 2000, width: int = 384) -> float:
    """How much of a TransMIL epoch SFR takes at probability 0.5, and how much its larger bags cost."""
    from pams_mil.models.core.factory import create_model

    a, b = features(rows, width, 0), features(rows, width, 1)
    sfr = create_remix("sfr")
    mixed = sfr(a, b, torch.Generator()).features
    model = create_model("transmil", in_features=width, num_classes=7)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(bag: torch.Tensor) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(bag).logits, torch.tensor([0])).backward()
        optimizer.step()

    ms = timed(
        {"plain": lambda: step(a), "mixed": lambda: step(mixed), "sfr": lambda: sfr(a, b, torch.Generator())},
        rounds,
        clock,
    )
    epoch = 0.5 * ms["plain"] + 0.5 * (ms["mixed"] + ms["sfr"])
    print(
        f"\nTransMIL step, n = {rows}: {ms['plain']:.0f} ms; on a remixed bag of {len(mixed)} rows {ms['mixed']:.0f} ms"
    )
    print(f"SFR itself: {0.5 * ms['sfr'] / epoch:.1%} of an epoch at probability 0.5 (goal: at most {SHARE_LIMIT:.0%})")
    print(f"Larger bags: {0.5 * (ms['mixed'] - ms['plain']) / epoch:.1%} of it")
    return 0.5 * ms["sfr"] / epoch


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="small bags and few rounds")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore", module="sklearn")
    clock = time.process_time if given.threads == 1 else time.perf_counter
    goals = Goals()
    with threadpool_limits(given.threads):
        print(f"Clustering of two bags of n rows, milliseconds, {given.threads} thread(s); x = times faster")
        columns = ["cluster", "remix", "faiss", "sklearn", "products", "x_whole", "x_alone", "/products"]
        print("    D      n  live" + "".join(f"{column:>10s}" for column in columns))
        for width in (384, 1024):
            for rows in (500, 2000) if given.quick else (500, 2000, 8000, 30000):
                goals.missed += clustering(width, rows, max(3, min(25, 60000 // rows)), clock)
        complexity(5, clock)
        goals.at_most("SFR's share of a TransMIL epoch", epoch_share(3, clock), SHARE_LIMIT)
    return goals.end()


if __name__ == "__main__":
    sys.exit(main())
