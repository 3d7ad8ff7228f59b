"""Resamples and swaps of hundreds of classes: the same numbers as with few, in work that grows with slides."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import roc_auc_score

from pams_mil import ClassHierarchy
from pams_mil.evaluate.inference import MethodPair
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics import confusion_matrix
from pams_mil.metrics.metric import LABEL_METRICS, METRICS, LabelMetrics
from pams_mil.metrics.slides import Cells, Ranking, Slides


def test_many_classes_are_resampled_and_swapped_without_a_matrix_of_them():
    """Against scikit-learn, repeated rows and exchanged ranks; the columns grow with slides, not with classes."""
    size, n, rng = 60, 120, np.random.default_rng(0)
    tree = ClassHierarchy.flat([f"c{number}" for number in range(size)])
    target, slide_ids = rng.integers(0, size, n), [f"s{number}" for number in range(n)]

    def model(name: str) -> Predictions:
        p = np.round(rng.dirichlet(np.ones(size), n) + 0.05 * (np.arange(size) == target[:, None]), 2) + 1e-3  # ties
        return Predictions(name, tree, slide_ids, target, p.argmax(1), p / p.sum(1, keepdims=True))

    one, two = model("one"), model("two")
    slides = Slides(tree, target, one.predicted, one.probabilities)
    assert Cells(slides).sums.width <= n
    assert Ranking(slides).sums.width <= 4 * n + size

    def auc(p: np.ndarray, weights: np.ndarray) -> float:
        held = [c for c in range(size) if 0 < weights[target == c].sum() < weights.sum()]
        return float(np.mean([roc_auc_score(target == c, p[:, c], sample_weight=weights) for c in held]))

    weights = rng.integers(0, 3, (3, n))
    for row, value in zip(weights, METRICS["auc"](slides)(weights), strict=True):
        assert value == pytest.approx(auc(one.probabilities, row), abs=1e-12)
    pair = MethodPair.of(one, two, resamples=0, swaps=5)
    keys = ("auc", *(metric.key for metric in LABEL_METRICS))
    swapped = pair.swapped([METRICS[key] for key in keys])
    ranks = [scipy.stats.rankdata(m.probabilities, method="max", axis=0) for m in (one, two)]
    for draw, coin in enumerate(pair.coins):
        side = coin[one.patient] == 1
        both = [np.where(side[:, None], *pair_of) for pair_of in (ranks[::-1], ranks)]
        gap = auc(both[1], np.ones(n)) - auc(both[0], np.ones(n))
        assert swapped["auc"][draw] == pytest.approx(gap, abs=1e-12)
        calls = [np.where(side, b.predicted, a.predicted) for a, b in ((one, two), (two, one))]
        first, second = (LabelMetrics(tree)(confusion_matrix(target, called, tree)) for called in calls)
        for metric in LABEL_METRICS:
            gap = float(second[metric.key] - first[metric.key])
            assert swapped[metric.key][draw] == pytest.approx(gap, abs=1e-12)
