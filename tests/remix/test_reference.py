"""Clustering, SFR and evidence against their equations written as loops."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import evidence as evidence_reference
from tests.reference import sfr as reference

from pams_mil.errors import ParameterError
from pams_mil.remix import create_remix
from pams_mil.remix.clustering import prototypes
from pams_mil.remix.clustering.prototypes import cluster
from pams_mil.remix.selection import evidence as evidence_module
from pams_mil.remix.selection.evidence import EvidenceSettings, patient_folds, score_evidence
from pams_mil.remix.selection.neighbors import neighbor_distance
from pams_mil.remix.sfr import ranked_clusters

both_paths = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])


def clustering_with(*, compiled):
    """Cluster in compiled code or with torch operations, whatever is installed."""
    code = pytest.importorskip("pams_mil.remix.clustering.compiled_lloyd") if compiled else None
    return mock.patch.object(prototypes, "compiled_lloyd", return_value=code)


def random_pair(seed, rows_a, rows_b, width, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    offset = torch.randn(width, generator=random, dtype=dtype)
    return [torch.randn(rows, width, generator=random, dtype=dtype) + offset for rows in (rows_a, rows_b)]


@both_paths
@given(
    seed=st.integers(0, 10_000),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    width=st.integers(2, 8),
    clusters=st.integers(1, 12),
    iterations=st.integers(0, 7),
    init=st.sampled_from(["quantile", "range", "uniform"]),
)
@settings(max_examples=60)
def test_sfr_is_algorithm_1(compiled, seed, sizes, width, clusters, iterations, init):
    a, b = random_pair(seed, *sizes, width)
    top_k = max(1, clusters // 2)
    options = {"clusters": clusters, "iterations": iterations, "top_k": top_k, "init": init}
    rows, labels = reference.sfr(a.tolist(), b.tolist(), **options)
    with clustering_with(compiled=compiled):
        mixed = create_remix("sfr", **options)(a, b, torch.Generator())
        found = cluster((a, b), clusters=clusters, iterations=iterations, init=init)
    assert mixed.rows_from(0).tolist() == rows
    assert mixed.live_clusters == len(set(labels))
    assert found.labels.tolist() == labels
    assert ranked_clusters(found, len(a)) == reference.ranking(labels, len(a))


@both_paths
def test_float32_agrees_with_float64(compiled):
    a, b = random_pair(5, 400, 300, 32)
    with clustering_with(compiled=compiled):
        exact = cluster((a, b)).labels
        single = cluster((a.float(), b.float())).labels
    assert (exact != single).float().mean() < 0.01


@pytest.mark.parametrize(("dtype", "iterations", "allowed"), [(torch.float32, 1, 2), (torch.float64, 12, 0)])
def test_compiled_code_agrees_with_torch_on_many_rows(dtype, iterations, allowed):
    """In float32 a row on the fence may fall to either side; over further iterations that would spread."""
    a, b = random_pair(9, 3001, 1700, 48, dtype)
    with clustering_with(compiled=True):
        found = cluster((a, b), iterations=iterations).labels
    with clustering_with(compiled=False):
        expected = cluster((a, b), iterations=iterations).labels
    assert (found != expected).sum() <= allowed


@both_paths
def test_zero_rows_go_to_the_first_cluster_and_equal_rows_stay_together(compiled):
    bag = torch.cat([torch.zeros(3, 4), torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).abs()])
    with clustering_with(compiled=compiled):
        labels = cluster([bag], clusters=4, iterations=3).labels
        assert labels[:3].tolist() == [int(labels.min())] * 3
        assert cluster([torch.ones(30, 5)], clusters=11).live == 1


def test_printed_bins_leave_at_most_half_of_the_clusters_on_non_negative_features():
    bags = [torch.rand(400, 32, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]
    assert cluster(bags, init="uniform").live <= 6
    assert cluster(bags, init="quantile").live >= 9


def test_kmeans_with_faiss_equals_the_torch_version(monkeypatch):
    pytest.importorskip("faiss")
    a, b = random_pair(4, 300, 200, 12, torch.float32)
    options = {"clusters": 5, "iterations": 6, "init": "kmeans"}
    with_faiss = cluster((a, b), **options, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(prototypes, "faiss_installed", lambda: False)
    without = cluster((a, b), **options, generator=torch.Generator().manual_seed(1))
    assert with_faiss.live == without.live == 5
    assert (with_faiss.labels != without.labels).float().mean() < 0.01


def test_neighbor_distance_is_one_minus_the_mean_of_the_largest_cosines():
    a, b = random_pair(6, 9, 7, 5)
    expected = [1 - np.mean(sorted((reference.cosine(x, y) for y in b.tolist()), reverse=True)[:3]) for x in a.tolist()]
    assert neighbor_distance(a, b).tolist() == pytest.approx(expected, abs=1e-12)


@given(seed=st.integers(0, 1000), rounds=st.integers(0, 3), keep=st.sampled_from([0.2, 0.5, 1.0]))
@settings(max_examples=8)
def test_evidence_is_its_equation(seed, rounds, keep):
    random = np.random.default_rng(seed)
    bags = [random.normal(size=(random.integers(2, 9), 4)) + (i % 3) * 0.5 for i in range(12)]
    ranks = [i % 3 for i in range(12)]
    patients = [f"p{i // 2}" for i in range(12)]
    settings_ = EvidenceSettings(ridge=0.7, rounds=rounds, keep=keep, folds=3, components=4)
    tensors = [torch.from_numpy(bag).float() for bag in bags]
    scores = score_evidence(tensors.__getitem__, ranks, patients, seed=seed, settings=settings_)
    folds = patient_folds(patients, 3, seed)
    for slide, own in enumerate(scores):
        if ranks[slide] == 0:
            assert own is None
            continue
        exact = [bag.astype(np.float32).astype(np.float64) for bag in bags]
        expected = evidence_reference.evidence(slide, exact, ranks, folds, ridge=0.7, rounds=rounds, keep=keep)
        assert own.numpy() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("keep", "rows", "expected"), [(0.09, 300, 27), (0.07, 100, 7), (0.5, 7, 4), (0.0, 5, 1)])
def test_evidence_keeps_the_share_that_was_asked_for(keep, rows, expected):
    slide = torch.zeros(rows, dtype=torch.int64)
    sample = evidence_module._Sample(torch.zeros(rows, 1), slide, slide, slide)
    score = torch.arange(rows).float()
    chosen = evidence_module._strongest(sample, torch.ones(rows, dtype=torch.bool), score, keep)
    assert chosen.nonzero().flatten().tolist() == list(range(rows - expected, rows))


def test_evidence_finds_planted_instances_and_chooses_them():
    random = torch.Generator().manual_seed(0)
    bags = [torch.randn(80, 6, generator=random) for _ in range(16)]
    for bag in bags[8:]:
        bag[:8, 2] += 5.0
    scores = score_evidence(bags.__getitem__, [0] * 8 + [1] * 8, [str(i) for i in range(16)])
    strategy = create_remix("sfr", selection="evidence", level=0.05)
    mixed = strategy(bags[9], bags[0], torch.Generator(), evidence=scores[9])
    chosen = set(mixed.rows_from(0).tolist())
    assert set(range(8)) <= chosen
    assert len(chosen) < 20
    with pytest.raises(ParameterError, match="score_evidence"):
        strategy(bags[9], bags[0], torch.Generator())


def test_evidence_never_uses_slides_of_the_same_patient(monkeypatch):
    """Whatever a slide holds, its patient's other slide is judged the same; that of another patient is not.

    With as many components as features the projection is a rotation, which changes no evidence, and a shift of all
    scores changes no share of them: the slides that a line is learned from are all that is left to matter.
    """
    random = torch.Generator().manual_seed(0)
    bags = [torch.randn(30, 5, generator=random) for _ in range(8)]
    patients = ["p", "p", "q", "q", "r", "r", "s", "s"]
    ranks = [0, 1] * 4

    def evidence(of):
        return score_evidence(of.__getitem__, ranks, patients, settings=EvidenceSettings(folds=4, components=5))

    def changed(one, two):
        return float((one - two).abs().max()) > 1e-3

    before = evidence(bags)
    after = evidence([bags[0] * 0.1 + 2.0, *bags[1:]])
    assert not changed(before[1], after[1])
    assert changed(before[3], after[3])
    assert len(set(patient_folds(patients, 4, 0)[:2])) == 1
    # The check can fail: with a fold per slide, slides of one patient do vouch for one another.
    monkeypatch.setattr(evidence_module, "patient_folds", lambda patients, folds, seed: list(range(len(patients))))
    assert changed(evidence(bags)[1], evidence([bags[0] * 0.1 + 2.0, *bags[1:]])[1])
    with pytest.raises(ParameterError, match="rank and a patient per slide"):
        score_evidence(bags.__getitem__, [0], [])
