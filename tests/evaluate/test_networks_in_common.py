"""Methods that are made from the same networks: paired by construction, against plain loops and the paired t-test."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from tests.evaluate.test_inference import seeded, seeded_like

from pams_mil.evaluate import contrasts, join_seeds
from pams_mil.evaluate.committee import average
from pams_mil.evaluate.compare import compare
from pams_mil.evaluate.contrast import NetworkVariance, contrast_of
from pams_mil.evaluate.decisions.decide import redecide
from pams_mil.evaluate.inference import common_networks
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.metrics.metric import METRICS


def network_variance_in_loops(candidate, reference, common):
    """V and its part of Satterthwaite's denominator from scores by seed, as `NetworkVariance` says, entry by entry."""
    b, a = list(candidate), list(reference)
    if min(len(a), len(b)) == 1:
        several = a if len(a) > 1 else b
        given = sum(1 for row in common for cell in row if cell)
        mean = sum(several) / len(several)
        s2 = sum((x - mean) ** 2 for x in several) / (len(several) - 1)
        v = (len(several) - given) * s2 / len(several) ** 2
        return v, v**2 / (len(several) - 1)
    sizes = (len(b), len(a))
    means = (sum(b) / sizes[0], sum(a) / sizes[1])
    s2 = [sum((x - mean) ** 2 for x in side) / (len(side) - 1) for side, mean in zip((b, a), means, strict=True)]
    grand = sum(map(sum, common)) / (sizes[0] * sizes[1])
    rows = [sum(row) / sizes[1] for row in common]
    columns = [sum(row[j] for row in common) / sizes[0] for j in range(sizes[1])]
    centered = [[common[i][j] - rows[i] - columns[j] + grand for j in range(sizes[1])] for i in range(sizes[0])]
    identified = sum(common[i][j] * centered[i][j] for i in range(sizes[0]) for j in range(sizes[1]))
    gamma = sum(
        centered[i][j] * (b[i] - means[0]) * (a[j] - means[1]) for i in range(sizes[0]) for j in range(sizes[1])
    )
    gamma = gamma / identified if identified > 1e-9 else 0.0
    most = math.sqrt(s2[0] * s2[1]) / np.linalg.svd(np.array(common))[1].max() if np.any(common) else 0.0
    gamma = min(max(gamma, -most), most)
    total = sum(map(sum, common))
    v = s2[0] / sizes[0] + s2[1] / sizes[1] - 2 * gamma * total / (sizes[0] * sizes[1])
    weight = np.zeros((sum(sizes), sum(sizes)))
    spread = np.zeros_like(weight)
    for side, start in ((0, 0), (1, sizes[0])):
        n = sizes[side]
        for i in range(n):
            spread[start + i, start + i] = s2[side]
            for j in range(n):
                weight[start + i, start + j] = ((i == j) - 1 / n) / (n * (n - 1))
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            cell = -total / (sizes[0] * sizes[1]) / identified * centered[i][j] if identified > 1e-9 else 0.0
            weight[i, sizes[0] + j] = weight[sizes[0] + j, i] = cell
            spread[i, sizes[0] + j] = spread[sizes[0] + j, i] = gamma * common[i][j]
    return v, np.trace(weight @ spread @ weight @ spread)


def test_networks_in_common_against_loops():
    rng = np.random.default_rng(4)
    for sizes in ((3, 3), (4, 2), (5, 3), (1, 4), (3, 1), (2, 2)):
        for kind in ("none", "pairs", "some", "all", "committees"):
            common = {
                "none": np.zeros(sizes), "pairs": np.eye(*sizes), "all": np.ones(sizes),
                "some": np.eye(*sizes) * (np.arange(sizes[1]) < 1), "committees": rng.integers(0, 3, sizes),
            }[kind].astype(float)  # fmt: skip
            b, a = rng.normal(0.7, 0.05, sizes[0]), rng.normal(0.7, 0.05, sizes[1])
            k = min(sizes)
            b[:k] += 2 * (a[:k] - a.mean())
            y = np.concatenate([b, a])
            found = NetworkVariance.of(sizes, common)(np.outer(y, y))
            assert found == pytest.approx(network_variance_in_loops(b, a, common.tolist()), rel=1e-9, abs=1e-15)


def test_seeds_from_the_same_networks_are_tested_in_pairs():
    """If patients explain nothing that seeds share, all that is left is the paired t-test."""
    rng = np.random.default_rng(0)
    a = rng.normal(0.7, 0.05, 5)
    b = a + rng.normal(0.01, 0.005, 5)
    noise = [scores[:, None] + rng.normal(0, 0.001, (5, 20_000)) for scores in (a, b)]
    order = [3, 0, 4, 1, 2]
    found = contrast_of(
        METRICS["acc"], b[order], a, drawn=noise[1][order], drawn_reference=noise[0], units=100, common=np.eye(5)[order]
    )
    paired = scipy.stats.ttest_rel(b, a)
    assert found.p_value == pytest.approx(paired.pvalue, rel=0.05)
    assert found.df == pytest.approx(paired.df, rel=0.05)
    alone = contrast_of(METRICS["acc"], b, a, drawn=noise[1], drawn_reference=noise[0], units=100)
    assert alone.standard_error > 5 * found.standard_error
    same = contrast_of(METRICS["acc"], a, a, drawn=noise[0], drawn_reference=noise[0], units=100, common=np.eye(5))
    assert (same.estimate, same.interval, same.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_seeds_that_agree_to_the_last_digit_are_no_certainty():
    """Three pairs that differ by one slide each: patients are still chance, and the interval is not a point."""
    a = np.array([0.30, 0.25, 0.28])
    moved = np.random.default_rng(1).normal(0, 0.01, (2, 3, 400))
    found = contrast_of(
        METRICS["acc"], a + 0.01, a, drawn=a[:, None] + 0.01 + moved[0], drawn_reference=a[:, None] + moved[1],
        units=100, common=np.eye(3),
    )  # fmt: skip
    patients = np.var((moved[0] - moved[1]).mean(axis=0), ddof=1)
    assert found.standard_error == pytest.approx(math.sqrt(patients), rel=0.1)
    assert found.interval[0] < 0 < found.interval[1]
    assert found.p_value > 0.2


def with_weights(model: Predictions, *weights: str) -> Predictions:
    return replace(model, weights=weights)


def test_what_is_made_from_the_same_networks_is_paired_by_construction():
    """Weights follow a sample wherever it is decided, restored, calibrated, joined or averaged."""
    rng = np.random.default_rng(8)
    runs = {str(k): with_weights(seeded("a", 1, rng).where(np.ones(60, bool)), f"w{k}") for k in range(3)}
    runs = {key: replace(one, tags={}) for key, one in runs.items()}
    single = join_seeds("single", runs)
    assert single.weights == ("w0", "w1", "w2")
    derived = join_seeds("derived", {key: redecide(one, "kappa=3") for key, one in reversed(runs.items())})
    calibrated = join_seeds(
        "calibrated", {key: replace(one, weights=(f"{one.weights[0]}+fit",)) for key, one in runs.items()}
    )
    other = join_seeds(
        "other", {str(k): with_weights(seeded_like(one), f"x{k}") for k, one in enumerate(runs.values())}
    )
    assert common_networks(derived, single).tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert common_networks(calibrated, single).tolist() == np.eye(3).tolist()
    assert not common_networks(other, single).any()
    assert single.num_networks == 3
    assert join_seeds("partly known", {**runs, "0": replace(runs["0"], weights=())}).num_networks == 3
    mean = average("mean", list(runs.values()))
    assert common_networks(mean, single).tolist() == [[1, 1, 1]]
    two = average("mean of 2", list(runs.values())[:2])
    subjects = [
        (derived, single, "Chance: patients and networks (the same 3 seeds, in pairs)."),
        (other, single, "Chance: patients and networks (3 and 3 seeds)."),
        (mean, single, "Chance: patients. mean is made from the networks of single; other seeds may differ."),
        (
            two,
            single,
            "Chance: patients and the 1 seed of single that mean of 2 is not made from; of mean of 2 there is one, "
            "and other seeds of it may differ.",
        ),
        (
            mean,
            two,
            "Chance: patients. This is about these two models as they are, mean (3 networks) and mean of 2 "
            "(2 networks), which have networks in common; other seeds may differ.",
        ),
        (
            redecide(runs["0"], "kappa=3"),
            runs["0"],
            "Chance: patients. This is about the same network, used in two ways; other seeds may differ.",
        ),
        (runs["1"], runs["0"], "Chance: patients. This is about these two networks; other seeds may differ."),
    ]
    for candidate, reference, subject in subjects:
        result = compare(reference, candidate, resamples=40)
        assert result.subject == subject
        patients_alone = subject.startswith("Chance: patients.")
        assert (result.levels["class"]["acc"].varied == "patients") == patients_alone
    paired = contrasts(single, derived, [METRICS["missed_rate"]], resamples=200)["missed_rate"]
    strangers = replace(derived, seed_weights={})
    assert contrasts(single, strangers, [METRICS["missed_rate"]], resamples=200)["missed_rate"].df != paired.df
