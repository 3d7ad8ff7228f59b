"""What each remix selects, scored against the truth of every instance.

Run: python benchmarks/remix_truth.py [--real FOLDER] [--pairs 300]
For random pairs with Y_a above Y_b: the share of Z_a that is copied, and among the copied rows precision (those that
carry a's label), recall, lift over the share of carriers in Z_a, how often at least one carrier is copied, and the AUC
of the ranking that the selection rests on, where it rests on one. Intervals: 95 %, bootstrap over a's slides.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from pams_mil.remix import create_remix, score_evidence
from pams_mil.remix.clustering.prototypes import cluster
from pams_mil.remix.selection.neighbors import neighbor_distance
from pams_mil.remix.sfr import shares
from truth.cohorts import TruthCohort, cohorts

Ranking = Callable[[int, int], np.ndarray]
STRATEGIES: dict[str, tuple[str, dict]] = {
    "pseudomix": ("pseudomix", {"mix_probability": 1.0}),
    "pseudomix, urgent": ("pseudomix", {"mix_probability": 1.0, "labels": "urgent"}),
    "randommix 10": ("randommix", {"tau": 10}),
    "randommix 50": ("randommix", {"tau": 50}),
    "sfr as printed": ("sfr", {"init": "uniform"}),
    "sfr range": ("sfr", {"init": "range"}),
    "sfr quantile": ("sfr", {}),
    "sfr quantile, k=3": ("sfr", {"top_k": 3}),
    "sfr quantile, L=21 k=11": ("sfr", {"clusters": 21, "top_k": 11}),
    "sfr kmeans": ("sfr", {"init": "kmeans"}),
    "sfr neighbors": ("sfr", {"selection": "neighbors"}),
    "sfr evidence .3": ("sfr", {"selection": "evidence", "level": 0.3}),
    "sfr evidence .2": ("sfr", {"selection": "evidence", "level": 0.2}),
    "sfr evidence .1": ("sfr", {"selection": "evidence", "level": 0.1}),
}
COLUMNS = ("share", "precision", "recall", "lift", "any", "AUC")


def rankings(cohort: TruthCohort, evidence: list) -> dict[str, Ranking]:
    """The number per row of a that a selection rests on."""
    bags = cohort.bags

    def cluster_share(init: str) -> Ranking:
        def rank(a: int, b: int) -> np.ndarray:
            found = cluster((bags[a], bags[b]), init=init, generator=torch.Generator().manual_seed(0))
            share = shares(found, len(bags[a]))
            return np.array([share[label][0] for label in found.labels[: len(bags[a])].tolist()])

        return rank

    by_evidence = lambda a, b: evidence[a].numpy()  # noqa: E731
    return {
        "sfr as printed": cluster_share("uniform"),
        "sfr range": cluster_share("range"),
        "sfr quantile": cluster_share("quantile"),
        "sfr kmeans": cluster_share("kmeans"),
        "sfr neighbors": lambda a, b: neighbor_distance(bags[a], bags[b]).numpy(),
        **{name: by_evidence for name in STRATEGIES if "evidence" in name},
    }


def measure(cohort: TruthCohort, evidence: list, name: str, pairs: list[tuple[int, int]]) -> np.ndarray:
    """[pairs, columns]; NaN where a number is not defined."""
    strategy_name, options = STRATEGIES[name]
    strategy, rank = create_remix(strategy_name, **options), rankings(cohort, evidence).get(name)
    bags, carriers = cohort.bags, cohort.carriers
    rows = []
    for number, (a, b) in enumerate(pairs):
        carrier = carriers[a]
        known = {"evidence": evidence[a]} if getattr(strategy, "needs_evidence", False) else {}
        mixed = strategy(bags[a], bags[b], torch.Generator().manual_seed(number), **known)
        chosen = carrier[mixed.rows_from(0).numpy()]
        precision = chosen.mean() if len(chosen) else np.nan
        auc = roc_auc_score(carrier, rank(a, b)) if rank is not None and not carrier.all() else np.nan
        recall = chosen.sum() / carrier.sum()
        lift = precision / carrier.mean()
        rows.append((len(chosen) / len(carrier), precision, recall, lift, chosen.any(), auc))
    return np.array(rows, dtype=float)


def summary(values: np.ndarray, slides: np.ndarray, resamples: int = 300) -> str:
    """Means with intervals; slides of a are resampled, so that pairs sharing a slide are not taken for independent."""
    names = np.unique(slides)
    members = [np.flatnonzero(slides == name) for name in names]
    random, samples = np.random.default_rng(0), []
    for _ in range(resamples):
        rows = np.concatenate([members[i] for i in random.integers(len(names), size=len(names))])
        samples.append(means(values[rows]))
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)  # NaN where the mean is
    cells = []
    for value, bottom, top in zip(means(values), low, high, strict=True):
        cells.append("        -         " if np.isnan(value) else f"{value:6.3f} ({(top - bottom) / 2:.3f})  ")
    return "".join(cells)


def means(values: np.ndarray) -> np.ndarray:
    """Mean of each column over the pairs where it is defined; NaN when it never is."""
    defined = np.isfinite(values)
    count = defined.sum(0)
    return np.where(count > 0, np.where(defined, values, 0.0).sum(0) / np.maximum(count, 1), np.nan)


def main() -> None:
    """Score every strategy on every cohort."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=Path, help="folder with h5_files/, labels.csv and instance_labels.csv")
    parser.add_argument("--pairs", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for cohort in cohorts(given.real):
        start = time.perf_counter()
        evidence = score_evidence(cohort.bags.__getitem__, cohort.ranks, cohort.patients)
        took = time.perf_counter() - start
        bags = cohort.bags
        pairs = cohort.pairs(given.pairs)
        slides = np.array([a for a, _ in pairs])
        base = np.mean([cohort.carriers[a].mean() for a in slides])
        print(
            f"\n{cohort.name}: {len(bags)} bags, {len(pairs)} pairs, base rate {base:.3f}; evidence took {took:.1f} s"
        )
        print(f"{'(half width of the 95 % interval)':34s}" + "".join(f"{column:18s}" for column in COLUMNS))
        for name in STRATEGIES:
            print(f"{name:34s}{summary(measure(cohort, evidence, name, pairs), slides)}", flush=True)


if __name__ == "__main__":
    main()
