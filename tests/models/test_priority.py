"""The model of urgency equals its equations, and is in order by construction."""

from __future__ import annotations

import math
from typing import get_args

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as npst
from tests.reference import pooling as pooling_reference
from tests.reference import priority as reference

from pams_mil import ops
from pams_mil.errors import ParameterError
from pams_mil.models import BagBatch, create_model
from pams_mil.models.layers.urgency_chain import SmoothMax, UrgencyChain
from pams_mil.models.priority import Pooling

RANKS = {
    "distinct": [0, 1, 2, 3],
    "two": [0, 1],
    "tied in the middle": [0, 1, 1, 2],
    "tied at both ends": [3, 3, 5, 7, 7, 7],
    "all tied": [0, 0, 0],
    "one class": [0],
}
finite = st.floats(-40, 40)


@st.composite
def ranks_and_scores(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    ranks = [rank for rank, size in enumerate(sizes) for _ in range(size)]
    count = UrgencyChain(ranks).scores
    return ranks, draw(st.lists(finite, min_size=count, max_size=count))


def small(ranks, pooling, **options):
    torch.manual_seed(0)
    model = create_model(
        "priority", in_features=5, num_classes=len(ranks), embedding_features=8, pooling=pooling, ranks=ranks, **options
    )
    with torch.no_grad():  # answers far from even, and sharpness that differs from question to question
        for name, parameter in model.named_parameters():
            parameter.mul_(3 if "head" in name else 1).add_(torch.randn_like(parameter) if "sharp" in name else 0)
    return model.double().eval()


def numpy_state(model):
    return {key: value.numpy() for key, value in model.state_dict().items()}


@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_it_equals_the_loops(pooling, ranks, n):
    model = small(ranks, pooling, **({"attention_features": 4} if pooling == "attention" else {}))
    bag = torch.randn(n, 5, dtype=torch.float64)
    p, attention = reference.priority(bag.numpy(), numpy_state(model), ranks, pooling)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            output = model(bag, attention=True)
        assert output.logits.exp().tolist()[0] == pytest.approx(p, abs=1e-6)
        assert output.logits.softmax(-1).tolist()[0] == pytest.approx(p, abs=1e-6)
        assert output.attention.tolist() == pytest.approx(attention.tolist(), abs=1e-6)


def test_probabilities_by_hand():
    """At least 1: 3/4. At least 2, of those: 1/3. The tie of rank 1 is split 1 : 4."""
    chain = UrgencyChain([0, 1, 1, 2])
    scores = torch.tensor([[math.log(3), math.log(1 / 2), 0.0, math.log(4)]])
    found = chain.log_probabilities(scores).exp()[0].tolist()
    assert found == pytest.approx([1 / 4, 1 / 2 * 1 / 5, 1 / 2 * 4 / 5, 1 / 4])
    weights = [1, 3 / 4, 1 / 10, 4 / 10]
    assert chain.asked(scores)[0].tolist() == pytest.approx([w / sum(weights) for w in weights])


@given(ranks_and_scores())
def test_a_chain_is_a_distribution_in_order_and_equals_the_loop(case):
    ranks, z = case
    chain, scores = UrgencyChain(ranks), torch.tensor([z], dtype=torch.float64)
    log_p = chain.log_probabilities(scores)
    assert log_p.isfinite().all()
    assert log_p.exp().sum().item() == pytest.approx(1)
    assert log_p.exp()[0].tolist() == pytest.approx(reference.class_probabilities(z, ranks), abs=1e-12)
    assert chain.asked(scores)[0].tolist() == pytest.approx(reference.asked(z, ranks), abs=1e-12)
    assert len(chain.question) == chain.scores == len(ranks) - 1 + len(chain.ties)


@given(ranks_and_scores(), st.floats(0.1, 5), st.data())
def test_a_higher_answer_makes_every_rank_above_likelier_and_no_rank_below(case, more, data):
    ranks, z = case
    chain = UrgencyChain(ranks)
    if not chain.boundaries:
        return
    k = data.draw(st.integers(0, chain.boundaries - 1))
    higher = [value + more * (position == k) for position, value in enumerate(z)]
    before, after = (
        torch.tensor(reference.class_probabilities(scores, ranks)) for scores in (z, higher)
    )  # the loops, of which the test above says that they are the chain
    above = torch.tensor(ranks) > k
    assert (after[above] >= before[above] - 1e-12).all()
    assert (after[~above] <= before[~above] + 1e-12).all()


def test_answers_of_any_size_give_finite_values_and_gradients():
    for size in (1e4, -1e4, 0.0):
        scores = torch.full((1, 6), size, requires_grad=True)
        loss = -UrgencyChain([0, 1, 1, 2, 3]).log_probabilities(scores[:, :5]).sum()
        loss.backward()
        assert loss.isfinite()
        assert scores.grad.isfinite().all()


@given(npst.arrays(float, st.tuples(st.integers(1, 20), st.just(2)), elements=st.floats(-50, 50)), st.floats(-3, 3))
def test_a_smooth_maximum_lies_between_mean_and_maximum_and_grows_with_its_sharpness(scores, log_r):
    scores, pool = torch.from_numpy(scores), SmoothMax(2).double()
    with torch.no_grad():
        pool.log_sharpness.fill_(log_r)
        found = pool(scores)
        assert (found >= scores.mean(0) - 1e-9).all()
        assert (found <= scores.amax(0) + 1e-9).all()
        pool.log_sharpness.add_(0.5)
        assert (pool(scores) >= found - 1e-9).all()
        pool.log_sharpness.fill_(12.0)
        assert torch.allclose(pool(scores), scores.amax(0), atol=1e-4)
        pool.log_sharpness.fill_(-12.0)
        assert torch.allclose(pool(scores), scores.mean(0), atol=0.05)


def test_how_much_an_instance_counts_is_the_slope_of_the_smooth_maximum():
    torch.manual_seed(0)
    scores, pool = torch.randn(7, 3, dtype=torch.float64, requires_grad=True), SmoothMax(3).double()
    torch.nn.init.normal_(pool.log_sharpness)
    (slope,) = torch.autograd.grad(pool(scores).sum(), scores)
    assert torch.allclose(slope, pool.weights(scores))
    assert torch.autograd.gradcheck(lambda s, r: torch.func.functional_call(pool, {"log_sharpness": r}, (s,)),
                                    (scores, pool.log_sharpness))  # fmt: skip


def test_an_instance_has_the_probability_of_the_bag_that_holds_it_alone_and_a_bag_lies_between():
    ranks = [0, 1, 2]
    model = small(ranks, "smooth_max")
    bag = torch.randn(9, 5, dtype=torch.float64)
    alone = model(BagBatch(bag, (1,) * 9)).logits.exp()
    at_least = 1 - alone[:, 0]
    together = 1 - model(bag).logits.exp()[0, 0]
    assert at_least.min() < together < at_least.max()
    (scores,) = [model.head(model.projection(bag))]
    assert torch.allclose(at_least, scores[:, 0].sigmoid())


def test_with_equally_urgent_classes_only_it_is_abmil():
    model = small([0, 0, 0], "attention", attention_features=4)
    bag = torch.randn(6, 5, dtype=torch.float64)
    logits, alpha = pooling_reference.attention_pool(bag.numpy(), numpy_state(model))
    output = model(bag, attention=True)
    assert torch.allclose(output.logits[0], torch.from_numpy(logits).log_softmax(-1), atol=1e-6)
    assert torch.allclose(output.attention, torch.from_numpy(alpha), atol=1e-6)


def test_the_mean_is_the_smooth_maximum_without_sharpness():
    mean, smooth = small([0, 1, 2], "mean"), small([0, 1, 2], "smooth_max")
    smooth.load_state_dict({**mean.state_dict(), "smooth_max.log_sharpness": torch.full((2,), -12.0)})
    bag = torch.randn(6, 5, dtype=torch.float64)
    assert torch.allclose(mean(bag).logits, smooth(bag).logits, atol=1e-4)


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_before_training_all_ranks_are_equally_likely(pooling):
    model = create_model("priority", in_features=5, num_classes=4, pooling=pooling)
    torch.nn.init.zeros_(model.head.weight)
    assert model(torch.randn(3, 5)).logits.exp()[0].tolist() == pytest.approx([0.25] * 4)


@settings(max_examples=20)
@given(st.sampled_from(get_args(Pooling)), st.permutations(range(8)))
def test_the_order_of_instances_does_not_matter(pooling, order):
    model = small([0, 1, 1, 2], pooling)
    bag = torch.randn(8, 5, dtype=torch.float64)
    first, second = model(bag, attention=True), model(bag[list(order)], attention=True)
    assert torch.allclose(first.logits, second.logits)
    assert torch.allclose(first.attention[list(order)], second.attention)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, "pooling must be one of 'attention', 'smooth_max', 'mean'"),
        ({"ranks": [0, 1]}, "one rank for each of 3 classes"),
        ({"ranks": [0, 2, 1]}, "least urgent first"),
        ({"attention_features": 0}, "attention_features"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ParameterError, match=message):
        create_model("priority", in_features=5, num_classes=3, **options)


def test_the_chain_is_that_of_corn():
    from pams_mil.methods.ordinal import corn_log_probabilities

    z = torch.randn(4, 3)
    assert torch.equal(ops.chain_log_probabilities(z), corn_log_probabilities(torch.cat([z, z[:, :1]], 1)))
    assert torch.equal(UrgencyChain(range(4)).log_probabilities(z), ops.chain_log_probabilities(z))
