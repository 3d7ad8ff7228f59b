"""What each remix selects, scored against the truth of every instance.

Run: python benchmarks/remix_truth.py [--real FOLDER]... [--pairs 300]
For random pairs with Y_a above Y_b: the share of Z_a that is copied, and among the copied rows precision (those that
carry a's label), recall, lift over the share of carriers in Z_a, how often at least one carrier is copied, and the AUC
of the ranking that the selection rests on, where it rests on one. Intervals: 95 %, bootstrap over a's slides.

"attention" takes the rows whose attention is at least 1 / n. The attention is that of AB-MIL trained with cross-entropy
on the other half of the slides, so it is what a run could use after a first run, not what SFR has today.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from pams_mil import seeding
from pams_mil.models import BagBatch, create_model
from pams_mil.remix import create_remix
from pams_mil.remix.clustering import cluster
from pams_mil.remix.sfr import shares
from pams_mil.remix.strategy import Mixed, take
from truth.cohorts import TruthCohort, cohorts

Select = Callable[[int, int, int], Mixed]
STRATEGIES: dict[str, tuple[str, dict]] = {
    "pseudomix": ("pseudomix", {"mix_probability": 1.0}),
    "pseudomix, urgent": ("pseudomix", {"mix_probability": 1.0, "labels": "urgent"}),
    "randommix 10": ("randommix", {"tau": 10}),
    "randommix 50": ("randommix", {"tau": 50}),
    "sfr uniform": ("sfr", {"init": "uniform"}),
    "sfr L=11 k=3": ("sfr", {"top_k": 3}),
    "sfr L=11 k=6 (default)": ("sfr", {}),
    "sfr L=11 k=9": ("sfr", {"top_k": 9}),
    "sfr L=22 k=12": ("sfr", {"clusters": 22, "top_k": 12}),
    "sfr L=44 k=24": ("sfr", {"clusters": 44, "top_k": 24}),
    "sfr all": ("sfr", {"selection": "all"}),
}
ATTENTION = "attention >= 1/n"
COLUMNS = ("share", "precision", "recall", "lift", "any", "AUC")


def attention(cohort: TruthCohort, epochs: int = 10) -> list[np.ndarray]:
    """Attention [n] of every bag under AB-MIL trained on the half of the slides that the bag is not in."""
    half = seeding.numpy_generator(0, "halves").permutation(len(cohort.bags)) % 2
    weights: list[np.ndarray] = [np.empty(0)] * len(cohort.bags)
    for side in (0, 1):
        torch.manual_seed(0)
        sizes = {"in_features": cohort.bags[0].shape[1], "num_classes": cohort.hierarchy.num_classes()}
        model = create_model("abmil", **sizes, embedding_features=128, attention_features=64)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        rows = np.flatnonzero(half != side)
        for epoch in range(epochs):
            for batch in np.array_split(seeding.numpy_generator(0, epoch).permutation(rows), len(rows) // 8):
                logits = model(BagBatch.pack([cohort.bags[row] for row in batch])).logits
                loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(cohort.targets[batch]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        model.eval()
        with torch.inference_mode():
            for row in np.flatnonzero(half == side):
                weights[row] = model(BagBatch.single(cohort.bags[row]), attention=True).attention.numpy()
    return weights


def selections(cohort: TruthCohort, weights: list[np.ndarray]) -> dict[str, Select]:
    """Every selection as a function of a, b and a seed."""
    bags = cohort.bags

    def strategy(name: str, options: dict) -> Select:
        remix = create_remix(name, **options)
        return lambda a, b, seed: remix(bags[a], bags[b], torch.Generator().manual_seed(seed))

    def attended(a: int, b: int, seed: int) -> Mixed:
        del seed
        return take(bags[a], bags[b], torch.from_numpy(np.flatnonzero(weights[a] >= 1 / len(bags[a]))))

    return {name: strategy(*chosen) for name, chosen in STRATEGIES.items()} | {ATTENTION: attended}


def ranking(cohort: TruthCohort, weights: list[np.ndarray], name: str, a: int, b: int) -> np.ndarray | None:
    """The number per row of a that a selection rests on; None where it rests on none."""
    if name == ATTENTION:
        return weights[a]
    kind, options = STRATEGIES[name]
    if kind != "sfr" or options.get("selection") == "all":
        return None
    settings = {key: value for key, value in options.items() if key in ("init", "clusters")}
    clusters = cluster((cohort.bags[a], cohort.bags[b]), **settings)
    share = shares(clusters, len(cohort.bags[a]))
    return np.array([share[label][0] for label in clusters.labels[: len(cohort.bags[a])].tolist()])


def measure(cohort: TruthCohort, weights: list[np.ndarray], name: str, pairs: list[tuple[int, int]]) -> np.ndarray:
    """[pairs, columns]; NaN where a number is not defined."""
    select, rows = selections(cohort, weights)[name], []
    for number, (a, b) in enumerate(pairs):
        carrier = cohort.carriers[a]
        chosen = carrier[select(a, b, number).rows_from(0).numpy()]
        precision = chosen.mean() if len(chosen) else np.nan
        values = ranking(cohort, weights, name, a, b)
        auc = roc_auc_score(carrier, values) if values is not None and not carrier.all() else np.nan
        recall, lift = chosen.sum() / carrier.sum(), precision / carrier.mean()
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
    parser.add_argument(
        "--real", type=Path, action="append", default=[], help="folder with h5_files/, labels.csv, instance_labels.csv"
    )
    parser.add_argument("--pairs", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for cohort in cohorts(arguments.real):
        weights = attention(cohort)
        pairs = cohort.pairs(arguments.pairs)
        slides = np.array([a for a, _ in pairs])
        base = np.mean([cohort.carriers[a].mean() for a in slides])
        print(f"\n{cohort.name}: {len(cohort.bags)} bags, {len(pairs)} pairs, base rate {base:.3f}")
        print(f"{'(half width of the 95 % interval)':34s}" + "".join(f"{column:18s}" for column in COLUMNS))
        for name in (*STRATEGIES, ATTENTION):
            print(f"{name:34s}{summary(measure(cohort, weights, name, pairs), slides)}", flush=True)


if __name__ == "__main__":
    main()
