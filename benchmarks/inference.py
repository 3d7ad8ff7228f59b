"""Two models compared with 2,000 resamples and swaps, beside a loop over scikit-learn's functions.

    python benchmarks/inference.py [--rows 100000] [--resamples 2000]

Seven classes at two levels, two slides per patient; every metric of every level with its interval and p-value. The
loop does a part of it: accuracy, one-vs-rest AUC and the misses at equal false alarms of the finest level, two models,
one resample; it is timed on a few resamples and scaled. Exits with 1 when the comparison takes more than a minute per
million rows (ten seconds for 100,000) or more than 2 GiB, or when a value differs from the loop's.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np
import sklearn.metrics

from goals import Goals
from pams_mil import ClassHierarchy
from pams_mil.evaluate.compare import compare
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.operating import operating_curve
from pams_mil.metrics.slides import BINS, Curve, Slides

TREE = ClassHierarchy.load("bracs")
PEER_RESAMPLES = 2


def models(rows: int) -> list[Predictions]:
    """Two synthetic models of the same slides."""
    rng = np.random.default_rng(0)
    target = rng.choice(7, rows, p=[0.3, 0.2, 0.15, 0.1, 0.1, 0.1, 0.05])
    slides, patients = [f"s{row}" for row in range(rows)], [f"p{row // 2}" for row in range(rows)]
    made = []
    for name, skill in (("one", 0.30), ("two", 0.31)):
        logits = 1.5 * (rng.normal(size=(rows, 7)) - skill * np.abs(np.arange(7) - target[:, None]))
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        made.append(Predictions(name, TREE, slides, target, p.argmax(1), p, patients))
    return made


def peer(pair: list[Predictions], weights: np.ndarray | None) -> list[float]:
    """One resample with scikit-learn, and our curve for what it has not."""
    values = []
    for model in pair:
        p = np.asarray(model.probabilities)
        aucs = [sklearn.metrics.roc_auc_score(model.target == c, p[:, c], sample_weight=weights) for c in range(7)]
        curve = operating_curve(model.target, p, TREE, weights=weights)
        right = sklearn.metrics.accuracy_score(model.target, model.predicted, sample_weight=weights)
        values += [float(np.mean(aucs)), right, float(curve.missed_at(0.2))]
    return values


def main() -> int:
    """Time both and compare what both compute."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--resamples", type=int, default=2_000)
    chosen = parser.parse_args()
    pair = models(chosen.rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    start = time.process_time()
    found = compare(*pair, resamples=chosen.resamples)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2

    start, rng = time.process_time(), np.random.default_rng(1)
    for _ in range(PEER_RESAMPLES):
        drawn = np.bincount(rng.integers(0, pair[0].num_patients, pair[0].num_patients), minlength=pair[0].num_patients)
        peer(pair, drawn[pair[0].patient].astype(float))
    loop = (time.process_time() - start) / PEER_RESAMPLES * 2 * chosen.resamples

    plain, finest = peer(pair, None), found.levels[TREE.level_names[-1]]
    keys = ("auc", "acc", "missed_at_20")
    ours = [value for side in ("reference", "candidate") for value in (getattr(finest[key], side) for key in keys)]
    apart = max(abs(a - b) for a, b in zip(ours, plain, strict=True))
    allowed = 60.0 * chosen.rows / 1e6 if chosen.rows > 100_000 else 10.0
    slides = Slides(TREE, pair[0].target, pair[0].predicted, pair[0].probabilities)
    exact, binned = (curve.view(curve.sums.once()).auc()[0] for curve in (Curve(slides, None), Curve(slides, BINS)))
    moved = abs(exact - binned)
    print(f"{chosen.rows:,} rows, {chosen.resamples:,} resamples and swaps, {TREE.num_levels} levels")
    print(f"comparison {seconds:.1f} s (at most {allowed:.0f}), memory {peak:.2f} GiB ({before:.2f} before)")
    print(f"scikit-learn loop, a part of it: {loop:.0f} s, projected from {PEER_RESAMPLES} resamples")
    print(f"largest difference: {apart:.1e}; bins move the urgency AUC of resamples by {100 * moved:.4f} points")
    goals = Goals()
    goals.at_most(f"seconds of a comparison of {chosen.rows:,} rows", seconds, allowed)
    goals.at_most("peak memory, GiB", peak, 2.0)
    goals.at_most("difference from scikit-learn", apart, 1e-9)
    return goals.end()


if __name__ == "__main__":
    sys.exit(main())
