"""What every remix strategy must do; sabotaged ones are put through it too."""

from __future__ import annotations

import torch

from pams_mil.remix.strategy import FROM_A, FROM_B, SYNTHETIC


def check_contract(strategy, a, b, seed=0):
    """Rows come from where they say they do, inputs stay untouched, and the same generator gives the same bag."""
    before = a.clone(), b.clone()
    mixed = strategy(a, b, torch.Generator().manual_seed(seed))
    assert torch.equal(a, before[0]), "a was written to"
    assert torch.equal(b, before[1]), "b was written to"
    count = len(mixed.features)
    assert count >= 1, "the bag is empty"
    assert mixed.features.shape == (count, a.shape[1])
    assert mixed.features.dtype == a.dtype
    assert mixed.origin_bag.shape == mixed.origin_row.shape == (count,)
    assert (mixed.origin_bag.dtype, mixed.origin_row.dtype) == (torch.int8, torch.int64)
    assert torch.isfinite(mixed.features).all()
    assert not mixed.features.requires_grad
    for number, bag in ((FROM_A, a), (FROM_B, b)):
        own = mixed.origin_bag == number
        assert torch.equal(mixed.features[own], bag[mixed.origin_row[own]]), "a row is not what its origin says"
        assert len(set(mixed.origin_row[own].tolist())) == int(own.sum()), "a row was taken twice"
    synthetic = mixed.origin_bag == SYNTHETIC
    assert (mixed.origin_row[synthetic] == -1).all()
    assert 0.0 <= mixed.weight_a <= 1.0
    again = strategy(a, b, torch.Generator().manual_seed(seed))
    assert torch.equal(mixed.features, again.features), "not deterministic"
    assert torch.equal(mixed.origin_row, again.origin_row)
    assert mixed.weight_a == again.weight_a
    return mixed


def check_priority(strategy, a, b, seed=0):
    """Strategies that teach urgency: all of b stays, something of a joins it, and the label is a's alone."""
    mixed = check_contract(strategy, a, b, seed)
    assert strategy.partner == "keep_label"
    assert mixed.weight_a == 1.0
    assert mixed.rows_from(FROM_B).tolist() == list(range(len(b))), "a row of b is missing"
    assert 1 <= len(mixed.rows_from(FROM_A)) <= len(a)
    assert not (mixed.origin_bag == SYNTHETIC).any()
    return mixed
