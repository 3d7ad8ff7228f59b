"""Every strategy keeps its contract on any two bags, and the checks themselves can fail."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.remix.conformance import check_contract, check_priority
from tests.remix.strategies import pairs

from pams_mil import discover
from pams_mil.errors import ConfigError, ParameterError
from pams_mil.remix import Mixed, Remix, create_remix
from pams_mil.remix.strategy import take

PRIORITY = [
    ("sfr", {}),
    ("sfr", {"init": "uniform"}),
    ("sfr", {"clusters": 3, "top_k": 3}),
    ("sfr", {"clusters": 40, "top_k": 1, "iterations": 0}),
    ("sfr", {"selection": "all"}),
    ("randommix", {}),
    ("randommix", {"tau": 100.0}),
    ("randommix", {"tau": 0}),
]
OTHERS = [
    ("pseudomix", {}),
    ("pseudomix", {"mix_probability": 1.0, "init": "uniform"}),
    ("pseudomix", {"labels": "urgent", "pseudo_bags": 3, "mix_probability": 1.0}),
    ("pseudomix", {"alpha": 0.3}),
    *[("remix", {"mode": mode, "rate": 0.7}) for mode in ("append", "replace", "interpolate", "cov", "joint")],
    ("remix", {"reduced": True, "rate": 0.0, "mode": "append"}),
    ("none", {}),
]


@pytest.mark.parametrize(("name", "options"), PRIORITY)
@given(pair=pairs(), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_priority_strategies(name, options, pair, seed):
    check_priority(create_remix(name, **options), *pair, seed=seed)


@pytest.mark.parametrize(("name", "options"), OTHERS)
@given(pair=pairs(), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_other_strategies(name, options, pair, seed):
    check_contract(create_remix(name, **options), *pair, seed=seed)


def test_every_strategy_on_disk_is_tested():
    assert set(discover.available("remix")) == {name for name, _ in PRIORITY + OTHERS}


@pytest.mark.parametrize("name", discover.available("remix"))
def test_half_precision_is_kept(name):
    a, b = torch.randn(60, 7).half(), torch.randn(45, 7).half()
    strategy = create_remix(name)
    assert isinstance(strategy, Remix)
    assert strategy(a, b, torch.Generator().manual_seed(5)).features.dtype == torch.float16


@pytest.mark.parametrize("name", discover.available("remix"))
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.ones(3, 4), torch.ones(3, 5), "different width: 4 and 5"),
        (torch.ones(0, 4), torch.ones(3, 4), "n >= 1"),
        (torch.ones(3, 4), torch.ones(4), "shape"),
        (torch.ones(3, 4, dtype=torch.int64), torch.ones(3, 4), "floating point"),
    ],
)
def test_what_is_no_pair_of_bags_is_refused(name, a, b, message):
    with pytest.raises(ParameterError, match=message):
        create_remix(name)(a, b, torch.Generator())


def test_features_that_are_not_finite_are_refused_with_the_row():
    bag = torch.ones(5, 3)
    bag[3, 1] = torch.nan
    with pytest.raises(ParameterError, match="row 3 of 5"):
        create_remix("sfr")(bag, torch.ones(2, 3), torch.Generator())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sfr", {"top_k": 12}, "top_k must be a whole number from 1 to 11, found 12"),
        ("sfr", {"clusters": 2.5}, "clusters must be a whole number"),
        ("sfr", {"init": "quantiles"}, "Did you mean 'quantile'"),
        ("sfr", {"selection": "best"}, "'clusters', 'all'"),
        ("randommix", {"tau": 101}, "from 0 to 100"),
        ("pseudomix", {"pseudo_bags": 0}, "pseudo_bags"),
        ("remix", {"mode": "add"}, "'append', 'replace', 'interpolate', 'cov', 'joint'"),
        ("remix", {"rate": True}, "rate must be a finite number"),
    ],
)
def test_bad_settings_are_refused_in_words(name, options, message):
    with pytest.raises(ParameterError, match=message):
        create_remix(name, **options)


def test_unknown_options_and_names_are_refused_with_a_hint():
    with pytest.raises(ConfigError, match="Did you mean 'clusters'"):
        create_remix("sfr", cluster=3)
    with pytest.raises(ConfigError, match="Did you mean 'randommix'"):
        create_remix("random_mix")


class Sabotaged:
    """Strategies that break one rule each."""

    partner = "keep_label"

    def __init__(self, fault):
        self.fault = fault

    def __call__(self, a, b, generator):
        rows = torch.arange(len(a))
        if self.fault == "writes":
            a[0] += 1
        if self.fault == "empty a":
            rows = rows[:0]
        if self.fault == "twice":
            rows = torch.zeros(2, dtype=torch.int64)
        if self.fault == "unseeded":
            rows = torch.randperm(len(a))[: len(a) // 2]
        mixed = take(a, b, rows)
        if self.fault == "drops b":
            keep = torch.arange(1, len(mixed.features))
            return Mixed(mixed.features[keep], mixed.origin_bag[keep], mixed.origin_row[keep])
        if self.fault == "wrong origin":
            return dataclasses.replace(mixed, origin_row=mixed.origin_row.flip(0))
        if self.fault == "soft":
            return dataclasses.replace(mixed, weight_a=0.5)
        return mixed


@pytest.mark.parametrize("kind_a", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind_b", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_of_different_precision_are_joined(kind_a, kind_b):
    a, b = torch.arange(12.0).reshape(4, 3).to(kind_a), -torch.arange(6.0).reshape(2, 3).to(kind_b)
    mixed = take(a, b, torch.tensor([1, 3]))
    assert mixed.features.tolist() == [*b.tolist(), a[1].tolist(), a[3].tolist()]


FAULTS = ["writes", "empty a", "twice", "unseeded", "drops b", "wrong origin", "soft"]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checks_can_fail(fault):
    with pytest.raises(AssertionError):
        check_priority(Sabotaged(fault), torch.randn(30, 3), torch.randn(20, 3))


def test_the_checks_pass_a_sound_strategy():
    check_priority(Sabotaged("none"), torch.randn(30, 3), torch.randn(20, 3))
