"""Clustering and SFR against their equations written as loops."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import sfr as reference

from pams_mil.remix import create_remix
from pams_mil.remix.clustering import cluster
from pams_mil.remix.sfr import ranked_clusters


def random_pair(seed, rows_a, rows_b, width, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    offset = torch.randn(width, generator=random, dtype=dtype)
    return [torch.randn(rows, width, generator=random, dtype=dtype) + offset for rows in (rows_a, rows_b)]


@given(
    seed=st.integers(0, 10_000),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    width=st.integers(2, 8),
    clusters=st.integers(1, 12),
    iterations=st.integers(0, 7),
    init=st.sampled_from(["quantile", "uniform"]),
)
@settings(max_examples=60)
def test_sfr_is_algorithm_1(seed, sizes, width, clusters, iterations, init):
    a, b = random_pair(seed, *sizes, width)
    top_k = max(1, clusters // 2)
    options = {"clusters": clusters, "iterations": iterations, "top_k": top_k, "init": init}
    rows, labels = reference.sfr(a.tolist(), b.tolist(), **options)
    mixed = create_remix("sfr", **options)(a, b, torch.Generator())
    found = cluster((a, b), clusters=clusters, iterations=iterations, init=init)
    assert mixed.rows_from(0).tolist() == rows
    assert mixed.live_clusters == len(set(labels))
    assert found.labels.tolist() == labels
    assert ranked_clusters(found, len(a)) == reference.ranking(labels, len(a))


def test_float32_agrees_with_float64():
    a, b = random_pair(5, 400, 300, 32)
    exact = cluster((a, b)).labels
    single = cluster((a.float(), b.float())).labels
    assert (exact != single).float().mean() < 0.01


def test_zero_rows_go_to_the_first_cluster_and_equal_rows_stay_together():
    bag = torch.cat([torch.zeros(3, 4), torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).abs()])
    labels = cluster([bag], clusters=4, iterations=3).labels
    assert labels[:3].tolist() == [int(labels.min())] * 3
    assert cluster([torch.ones(30, 5)], clusters=11).live == 1


def test_uniform_bins_leave_at_most_half_of_the_clusters_on_non_negative_features():
    bags = [torch.rand(400, 32, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]
    assert cluster(bags, init="uniform").live <= 6
    assert cluster(bags, init="quantile").live >= 9


def test_sfr_takes_the_papers_clusters_unless_told_otherwise():
    """6 of 11 after 6 refinements: rules that keep more of Z_a were trained beside it and did no better."""
    a, b = random_pair(4, 60, 50, 6)
    rows, _ = reference.sfr(a.tolist(), b.tolist(), clusters=11, iterations=6, top_k=6, init="quantile")
    assert create_remix("sfr")(a, b, torch.Generator()).rows_from(0).tolist() == rows
    assert len(rows) < len(a)


def test_all_rows_are_all_rows():
    a, b = random_pair(2, 9, 4, 3)
    assert create_remix("sfr", selection="all")(a, b, torch.Generator()).rows_from(0).tolist() == list(range(9))
