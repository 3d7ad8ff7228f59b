"""Bootstrap of 100,000 predictions beside a loop over scikit-learn's functions, as ratios in the same run.

Run: python benchmarks/bootstrap.py. 7 classes, 2000 resamples; accuracy, AsCC and AsMC from labels, and macro AUC. The
loop resamples rows and calls accuracy_score, confusion_matrix and roc_auc_score; it is timed on a few resamples and
scaled, ours is timed in full and computes all eleven label metrics. Both are checked to be equal on the same resamples.
Exits with 1 when a ratio is below its target or a value differs.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
import sklearn.metrics

from goals import Goals
from pams_mil import ClassHierarchy
from pams_mil.metrics.bootstrap import AucResampler, Patterns, auc_samples, label_samples, multiplicities
from pams_mil.metrics.metric import LabelMetrics
from pams_mil.severity import metric_weight

ROWS, RESAMPLES, ROUNDS = 100_000, 2000, 3
PEER_LABEL_RESAMPLES, PEER_AUC_RESAMPLES = 15, 4
LABEL_TARGET, ALL_TARGET = 500.0, 15.0
TREE = ClassHierarchy.load("bracs")
WHEEL = metric_weight(TREE)


@dataclass(frozen=True)
class Cohort:
    """True classes, scores and patients of a synthetic model that is right about half of the time."""

    true: np.ndarray
    predicted: np.ndarray
    scores: np.ndarray
    patient: np.ndarray

    @property
    def cells(self) -> np.ndarray:
        """The confusion cell of each row."""
        return self.true * TREE.num_classes() + self.predicted


def cohort(patients: int, seed: int = 0) -> Cohort:
    """ROWS predictions of `patients` patients."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, TREE.num_classes(), ROWS)
    logits = rng.normal(size=(ROWS, TREE.num_classes())) + 1.2 * np.eye(TREE.num_classes())[true]
    scores = np.exp(logits)
    patient = np.arange(ROWS) if patients == ROWS else rng.permutation(np.arange(ROWS) % patients)
    return Cohort(true, scores.argmax(1), scores / scores.sum(1, keepdims=True), patient)


def peer_labels(true: np.ndarray, predicted: np.ndarray) -> tuple[float, float, float]:
    """Accuracy, AsCC and AsMC of one resample with scikit-learn's functions."""
    S = sklearn.metrics.confusion_matrix(true, predicted, labels=range(TREE.num_classes()))
    off = ~np.eye(len(S), dtype=bool)
    asmc = (S[off] / (WHEEL[off] - 1)).sum() / S[off].sum()
    return sklearn.metrics.accuracy_score(true, predicted), (S / WHEEL).sum() / S.sum(), asmc


def peer_auc(true: np.ndarray, scores: np.ndarray) -> float:
    """Macro one-vs-rest AUC of one resample with scikit-learn."""
    return float(sklearn.metrics.roc_auc_score(true, scores, multi_class="ovr", average="macro"))


def peer_seconds(data: Cohort) -> tuple[float, float]:
    """Seconds of the loop for RESAMPLES resamples of labels, and of AUC, scaled from a few."""
    rng = np.random.default_rng(1)
    slides = None if len(data.true) == data.patient.max() + 1 else _slides_by_patient(data.patient)
    start = time.perf_counter()
    for _ in range(PEER_LABEL_RESAMPLES):
        rows = _peer_rows(rng, slides)
        peer_labels(data.true[rows], data.predicted[rows])
    labels = (time.perf_counter() - start) / PEER_LABEL_RESAMPLES
    start = time.perf_counter()
    for _ in range(PEER_AUC_RESAMPLES):
        rows = _peer_rows(rng, slides)
        peer_auc(data.true[rows], data.scores[rows])
    return RESAMPLES * labels, RESAMPLES * (time.perf_counter() - start) / PEER_AUC_RESAMPLES


def _slides_by_patient(patient: np.ndarray) -> list[np.ndarray]:
    return np.split(np.argsort(patient, kind="stable"), np.cumsum(np.bincount(patient))[:-1])


def _peer_rows(rng: np.random.Generator, slides: list[np.ndarray] | None) -> np.ndarray:
    if slides is None:
        return rng.integers(0, ROWS, ROWS)
    return np.concatenate([slides[patient] for patient in rng.integers(0, len(slides), len(slides))])


def our_seconds(data: Cohort) -> tuple[float, float]:
    """Seconds of ours for RESAMPLES resamples of all label metrics, and of AUC, from the raw arrays on."""
    start = time.perf_counter()
    patterns = Patterns.of(data.patient, data.cells, size=TREE.num_classes() ** 2)
    label_samples(LabelMetrics(TREE), patterns, resamples=RESAMPLES)
    labels = time.perf_counter() - start
    start = time.perf_counter()
    auc_samples([AucResampler(data.true, data.scores)], data.patient, resamples=RESAMPLES)
    return labels, time.perf_counter() - start


def largest_difference(data: Cohort, resamples: int = 3) -> float:
    """Largest difference between ours and scikit-learn's on the very same resamples of patients."""
    patterns = Patterns.of(data.patient, data.cells, size=TREE.num_classes() ** 2)
    found = label_samples(LabelMetrics(TREE), patterns, seed=7, resamples=resamples)
    draws = patterns.draws(np.random.default_rng(7), resamples)
    differences = []
    for number in range(resamples):
        cells = np.repeat(np.arange(TREE.num_classes() ** 2), draws[number] @ patterns.cells)
        peer = peer_labels(*np.divmod(cells, TREE.num_classes()))
        differences += [
            abs(found[key][number] - value) for key, value in zip(("acc", "ascc", "asmc"), peer, strict=True)
        ]
    rng = np.random.default_rng(8)
    for value in auc_samples([AucResampler(data.true, data.scores)], data.patient, seed=8, resamples=resamples)[0]:
        rows = np.repeat(np.arange(ROWS), multiplicities(rng, int(data.patient.max()) + 1)[data.patient])
        differences.append(abs(value - peer_auc(data.true[rows], data.scores[rows])))
    return float(max(differences))


def main() -> int:
    """Interleave both, print medians and ratios."""
    print(f"{ROWS:,} predictions, {TREE.num_classes()} classes, {RESAMPLES} resamples; medians of {ROUNDS} rounds")
    print(f"the loop is timed on {PEER_LABEL_RESAMPLES} (labels) and {PEER_AUC_RESAMPLES} (AUC) resamples and scaled")
    print(f"{'resampled':22} {'metrics':14} {'loop (s)':>10} {'ours (s)':>10} {'ratio':>9} {'target':>8}")
    goals = Goals()
    for patients in (ROWS, 20_000):
        data = cohort(patients)
        rounds = [(*peer_seconds(data), *our_seconds(data)) for _ in range(ROUNDS)]
        loop_labels, loop_auc, labels, auc = (statistics.median(column) for column in zip(*rounds, strict=True))
        what = "slides" if patients == ROWS else f"{patients:,} patients"
        for name, loop, ours, target in (
            ("from labels", loop_labels, labels, LABEL_TARGET if patients == ROWS else 0.0),
            ("all with AUC", loop_labels + loop_auc, labels + auc, ALL_TARGET),
        ):
            goals.at_least(f"{what}, {name}: times faster than the loop", loop / ours, target)
            goal = f">= {target:.0f}" if target else ""
            print(f"{what:22} {name:14} {loop:10.1f} {ours:10.3f} {loop / ours:9.0f} {goal:>8}")
        difference = largest_difference(data)
        goals.at_most(f"{what}: largest difference on the same resamples", difference, 1e-12)
        print(f"{what:22} largest difference on the same resamples: {difference:.1e}")
    return goals.end()


if __name__ == "__main__":
    sys.exit(main())
