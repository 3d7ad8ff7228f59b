"""Hiding the most attended instances: which ones, how many, the same as masking them, and only in training."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.cohort import run, same_weights, settings

from pams_mil import seeding
from pams_mil.engine.config.complete_config import complete
from pams_mil.engine.learner import HIDDEN, Learner, kept_beside_attended
from pams_mil.errors import ConfigError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods import create_method
from pams_mil.models import BagBatch, HierarchicalModel


def in_loops(attention: list[float], share: float, draws: list[float]) -> list[bool]:
    """Row by row: take the most attended one that is left, hide it if its draw says so."""
    kept, left = [True] * len(attention), list(range(len(attention)))
    for number in range(min(len(attention) - 1, math.ceil(share * len(attention)))):
        top = left[0]
        for row in left:
            if attention[row] > attention[top]:
                top = row
        left.remove(top)
        if draws[number] < HIDDEN:
            kept[top] = False
    return kept


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 99), st.integers(0, 50))
def test_it_is_the_loop(ranks, percent, seed):
    attention, share = torch.tensor(ranks, dtype=torch.float32), percent / 100
    kept = kept_beside_attended(attention, share, seed).tolist()
    assert any(kept)
    count = min(len(ranks) - 1, math.ceil(share * len(ranks)))
    drawn = torch.rand(count, generator=seeding.generator(seed, "attended")).tolist()
    assert kept == in_loops(attention.tolist(), share, drawn)


def test_so_many_are_hidden_and_none_beside_the_top():
    attention, hidden = torch.arange(100.0), torch.zeros(100)
    for seed in range(400):
        hidden += ~kept_beside_attended(attention, 0.1, seed)
    assert not hidden[:90].any()
    assert (hidden[90:] / 400 - HIDDEN).abs().max() < 0.1


def learner_of(model: str, share: float | None) -> Learner:
    tree = ClassHierarchy.flat(["a", "b", "c"])
    torch.manual_seed(0)
    options = {"embedding_features": 8, "attention_features": 4} if model == "abmil" else {}
    module = HierarchicalModel(model, in_features=5, num_classes=[3], towers="finest", hierarchy=tree, **options)
    learner = Learner(module, create_method("ce", towers="finest").objective(tree), tree, [0])
    learner.drop_attended = share
    return learner


def test_dropping_is_masking_and_evaluation_sees_all():
    learner, batch = learner_of("abmil", 0.5), BagBatch.pack([torch.randn(9, 5), torch.randn(4, 5)], ("s", "t"), (1, 2))
    tower = learner.model.towers[0]
    state = torch.get_rng_state()
    reduced = learner.train().without_attended(batch)
    assert torch.equal(state, torch.get_rng_state())
    assert tower.training
    assert min(reduced.sizes) >= 1
    for bag, key, own in zip(batch.bags(), (0, 1), reduced.bags(), strict=True):
        instances = tower.projection(bag)
        scores = tower.scores(instances)
        kept = kept_beside_attended(scores.softmax(-1), 0.5, batch.seeds[key])
        masked = scores.masked_fill(~kept, -torch.inf).softmax(-1) @ instances
        torch.testing.assert_close(tower.embed(BagBatch.single(own)).vectors[0], masked)
    arguments = (batch.features, batch.sizes, batch.keys, batch.seeds, torch.tensor([[0, 2]]), None)
    plain = learner_of("abmil", None)
    assert learner.train()(*arguments)["ce"] != plain.train()(*arguments)["ce"]
    assert learner.eval()(*arguments)["ce"] == plain.eval()(*arguments)["ce"]


def test_a_run_with_it_is_another_run_and_repeats_itself(cohort, tmp_path):
    config = settings(cohort, method="ce", epochs=2)
    own = settings(cohort, method="ce", epochs=2, drop_attended=0.3)
    first, again, plain = (run(one, tmp_path / name) for one, name in ((own, "a"), (own, "b"), (config, "c")))
    assert same_weights(first / "last.safetensors", again / "last.safetensors")
    assert not same_weights(first / "last.safetensors", plain / "last.safetensors")


def test_what_has_no_attention_is_refused(cohort):
    with pytest.raises(ConfigError, match="needs a model with attention, found 'mean_pool'"):
        complete(settings(cohort, model="mean_pool", drop_attended=0.1))
    with pytest.raises(ConfigError, match="drop_attended"):
        settings(cohort, drop_attended=1.0)
