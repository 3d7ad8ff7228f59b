"""Instance dropout: how many stay, which ones, what it does to remixed bags, and what the log says."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.cohort import run, settings
from tests.engine.test_kill import MOMENTS, killed_run
from tests.engine.test_steps import bags_of

from pams_mil.data.tables import read_table
from pams_mil.engine.training.training_bags import BagLoader, kept_count, kept_rows
from pams_mil.errors import ConfigError


@given(st.integers(1, 500), st.integers(0, 99), st.integers(0, 9))
def test_the_share_is_met_and_no_bag_is_ever_empty(n, percent, epoch):
    rows = kept_rows(n, percent / 100, seed=1, epoch=epoch, step=("s", 0), slide="s")
    count = max(1, -(-(100 - percent) * n // 100))  # in whole numbers
    assert kept_count(n, percent / 100) == count
    kept = list(range(n)) if rows is None else rows.tolist()
    assert len(kept) == len(set(kept)) == count
    assert kept == sorted(kept)
    assert kept[0] >= 0
    assert kept[-1] < n


def test_all_instances_are_equally_often_seen():
    seen = torch.zeros(20)
    for epoch in range(2000):
        seen[kept_rows(20, 0.7, seed=0, epoch=epoch, step=("s", 0), slide="s")] += 1
    assert (seen / 2000 - 0.3).abs().max() < 0.05


def test_rows_depend_on_seed_epoch_step_and_slide():
    base = {"seed": 0, "epoch": 0, "step": ("s", 0), "slide": "s"}
    first = kept_rows(200, 0.5, **base)
    assert torch.equal(first, kept_rows(200, 0.5, **base))
    for change in ({"seed": 1}, {"epoch": 1}, {"step": ("t", 0)}, {"step": ("s", 1)}, {"slide": "t"}):
        assert not torch.equal(first, kept_rows(200, 0.5, **{**base, **change}))
    assert kept_rows(200, None, **base) is None
    assert kept_rows(200, 0.0, **base) is None


def test_training_bags_are_thinned_and_others_are_whole(cohort):
    bags = bags_of(cohort, method="ce", drop_instances=0.5)
    for key in bags.epoch_keys(0):
        whole, bag = bags.bags[key.slide].features, bags[key]
        assert len(bag.features) == math.ceil(len(whole) / 2)
        assert bag.counts == {"dropped": float(len(whole) - len(bag.features))}
        rows = [int((whole == row).all(1).nonzero()[0]) for row in bag.features]
        assert rows == sorted(set(rows))
    assert "dropped" not in bags_of(cohort, method="ce")[key].counts


@pytest.mark.parametrize("rule", ["urgent_label", "keep_label"])
@pytest.mark.parametrize("options", [{}, {"selection": "all"}])
def test_a_remixed_bag_keeps_something_of_the_bag_that_gives_the_label(cohort, rule, options):
    method = {"name": "pams", "remix_options": options}
    bags = bags_of(cohort, method=method, drop_instances=0.9, pairing={"probability": 1.0, "rule": rule})
    for epoch in range(5):
        for key in bags.epoch_keys(epoch):
            bag = bags[key]
            (pair,) = bags.pairing.steps(key.slide, epoch)
            a, b = (bags.bags[slide].features for slide in (pair.a, pair.b))
            assert (bag.target, bag.weight) == (bags.bags.targets[pair.a], 1.0)
            from_a, from_b = (sum(bool((bag_ == row).all(1).any()) for row in bag.features) for bag_ in (a, b))
            assert (from_a, from_b) == (1, 1)  # of 4 to 9 instances one stays
            assert bag.counts["dropped"] == len(a) + len(b) - 2


def test_workers_make_the_same_bags(cohort):
    bags = bags_of(cohort, drop_instances=0.5)
    keys = bags.epoch_keys(1)
    for one, two in zip(BagLoader(bags, workers=0).bags(keys), BagLoader(bags, workers=1).bags(keys), strict=True):
        assert torch.equal(one.features, two.features)


def test_the_log_counts_and_a_resumed_run_is_bit_identical(cohort, tmp_path):
    config = settings(cohort, drop_instances=0.5)
    whole = run(config, tmp_path / "whole")
    assert all(float(value) > 0 for value in read_table(whole / "metrics.csv")["dropped"])
    killed_run(config, tmp_path / "run", MOMENTS["mid-epoch"])
    run(config, tmp_path / "run", resume=True)
    for name in ("last.safetensors", "best.safetensors", "metrics.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("share", [1.0, -0.1, "half"])
def test_bad_shares_are_refused(cohort, share):
    with pytest.raises(ConfigError, match="drop_instances"):
        settings(cohort, drop_instances=share)
