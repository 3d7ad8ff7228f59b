"""Every operating point of many predictions with intervals over patients, beside a grid of thresholds.

    python benchmarks/operating_points.py [--slides 100000] [--resamples 2000]

The peer decides anew at each of 200 κ and counts with scikit-learn's `confusion_matrix`, once for all slides and once
per resample. Its whole time is projected from a few resamples (all cost the same), and said so. Both must give the same
rates at all 200 κ, for all slides and for the resamples that the peer does. Times are CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.metrics import confusion_matrix

from pams_mil.evaluate import decision_path
from pams_mil.evaluate.operating_points import patient_draws, summary
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.operating import CurveResampler, class_shares

GRID = np.geomspace(0.05, 50.0, 200)
PEER_RESAMPLES = 2


def predictions(slides: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities and patients (about three slides each) of a mediocre model of seven classes."""
    rng = np.random.default_rng(0)
    target = rng.choice(7, slides, p=[0.3, 0.2, 0.15, 0.1, 0.1, 0.1, 0.05])
    logits = rng.normal(size=(slides, 7)) - 0.3 * np.abs(np.arange(7) - target[:, None])
    p = np.exp(1.5 * logits)
    return target, p / p.sum(1, keepdims=True), rng.integers(0, max(1, slides // 3), slides)


def peer(target: np.ndarray, p: np.ndarray, hierarchy: ClassHierarchy, weights: np.ndarray | None) -> np.ndarray:
    """(missed, false alarms) at every κ of the grid, by deciding and counting anew."""
    outranks = hierarchy.outranks()
    misses, rest = np.where(outranks, 1.0, 0.0), np.where(outranks, 0.0, 1.0 - np.eye(7))
    found = []
    for kappa in GRID:
        called = 6 - (p @ (rest + kappa * misses))[:, ::-1].argmin(1)
        counts = confusion_matrix(target, called, labels=range(7), sample_weight=weights)
        found.append((counts[outranks].sum() / counts.sum(), counts[outranks.T].sum() / counts.sum()))
    return np.asarray(found)


def main() -> None:
    """Time both, compare them, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slides", type=int, default=100_000)
    parser.add_argument("--resamples", type=int, default=2_000)
    chosen = parser.parse_args()
    hierarchy = ClassHierarchy.load("bracs")
    target, p, patient = predictions(chosen.slides)

    start = time.process_time()
    resampler = CurveResampler(decision_path(p, hierarchy), target)
    curve = resampler.curve(np.ones(len(target)))
    path_seconds = time.process_time() - start
    start = time.process_time()
    drawn, kept = [], []
    place = np.searchsorted(resampler.kappa, GRID, side="right") - 1
    for weights in patient_draws(patient, 0, chosen.resamples):
        missed, alarms = resampler(weights)
        drawn.append(summary(missed, alarms, class_shares(target, weights, hierarchy.ranks())))
        if len(kept) < PEER_RESAMPLES:
            kept += [(w, m[place], a[place]) for w, m, a in zip(weights, missed, alarms, strict=True)]
    low, high = np.percentile(np.concatenate(drawn)[:, 0], [2.5, 97.5])
    resample_seconds = time.process_time() - start

    start = time.process_time()
    theirs = peer(target, p, hierarchy, None)
    once = time.process_time() - start
    ours = np.asarray([curve.at(kappa) for kappa in GRID])
    gaps = [np.abs(ours - theirs).max()]
    start = time.process_time()
    for weights, missed, alarms in kept[:PEER_RESAMPLES]:
        gaps.append(np.abs(peer(target, p, hierarchy, weights) - np.stack([missed, alarms], 1)).max())
    each = (time.process_time() - start) / PEER_RESAMPLES
    projected = once + each * chosen.resamples
    total = path_seconds + resample_seconds
    print(f"{chosen.slides:,} slides, 7 classes, {len(curve.kappa):,} operating points, {chosen.resamples:,} resamples")
    print(f"ours: path and curve {path_seconds:.2f} s, resamples {resample_seconds:.2f} s")
    print(f"      urgency AUC, 95 % interval over patients: {low:.4f} to {high:.4f}")
    print(f"peer: {once:.1f} s once, {each:.1f} s per resample, projected from {PEER_RESAMPLES}: {projected:,.0f} s")
    print(f"ratio {projected / total:,.0f}; largest difference of a rate at the 200 grid points {max(gaps):.1e}")
    if max(gaps) > 1e-9 or projected < 100 * total:
        raise SystemExit("Expected equal rates and at least 100 times the speed.")


if __name__ == "__main__":
    main()
