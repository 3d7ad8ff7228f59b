"""DTFD-MIL equals its equations, partitions reproducibly, and separates or joins its tiers as told."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import pooling as reference
from tests.reference.partition import dealt

from pams_mil.errors import ModelInputError, ParameterError
from pams_mil.models import BagBatch, HierarchicalModel, create_model
from pams_mil.models.layers.pseudo_bags import batch_groups, random_groups, stratified_groups


def small(**options):
    torch.manual_seed(0)
    model = create_model("dtfd", in_features=5, num_classes=3, embedding_features=8, attention_features=4, **options)
    return model.double().eval()


@pytest.mark.parametrize(
    ("in_features", "num_classes", "count"), [(1024, 2, 789_254), (384, 7, 466_704), (384, 3, 462_600)]
)
def test_parameter_count(in_features, num_classes, count):
    model = create_model("dtfd", in_features=in_features, num_classes=num_classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 30])
@pytest.mark.parametrize("cam_class", ["last", "predicted"])
@pytest.mark.parametrize("distillation", ["afs", "max", "maxmin"])
def test_equals_the_equations(n, distillation, cam_class):
    model = small(distillation=distillation, cam_class=cam_class, instances_per_pseudo_bag=2)
    batch = BagBatch.single(torch.randn(n, 5, dtype=torch.float64), key="slide")
    groups = batch_groups(batch, 0, 4, splits=1, training=False)[0]
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    logits, tier1, attention = reference.dtfd(
        batch.features.numpy(), groups.numpy(), state, distillation=distillation, q=2, cam_class=cam_class
    )
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            output = model(batch, attention=True)
        assert torch.allclose(output.logits[0], torch.from_numpy(logits), atol=1e-6)
        assert torch.allclose(output.tier1_logits, torch.from_numpy(tier1), atol=1e-6)
        assert torch.allclose(output.attention.double(), torch.from_numpy(attention), atol=1e-6)
        assert output.tier1_bag.tolist() == [0] * min(4, n)


def test_partition_is_balanced_and_follows_the_slide_id():
    sizes = torch.bincount(random_groups(10, 4, None)).tolist()
    assert sizes == [3, 3, 2, 2]
    features = torch.zeros(50, 2)
    first, again, other = (
        batch_groups(BagBatch.single(features, key), 0, 4, splits=1, training=False) for key in ("a", "a", "b")
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_training_partition_follows_the_seed_and_evaluation_ignores_it():
    model, features = small(), torch.randn(40, 5, dtype=torch.float64)
    batch = BagBatch(features, (40,), ("a",))
    model.train()
    one, two, same = (model(batch.with_seeds([seed])).tier1_logits for seed in (1, 2, 1))
    assert torch.equal(one, same)
    assert not torch.allclose(one, two)
    model.eval()
    assert torch.equal(model(batch.with_seeds([1])).logits, model(batch.with_seeds([2])).logits)


@pytest.mark.parametrize("gradient", ["detach", "joint"])
def test_tier2_gradient(gradient):
    model = small(tier2_gradient=gradient)
    model(torch.randn(12, 5, dtype=torch.float64)).logits.sum().backward()
    assert (model.projection.weight.grad is not None) == (gradient == "joint")
    assert model.tier2_scores.inner.weight.grad is not None


def test_several_splits_average_probabilities():
    one, many = small(), small(splits=3)
    batch = BagBatch.single(torch.randn(30, 5, dtype=torch.float64), key="s")
    output = many(batch, attention=True)
    assert torch.allclose(output.logits.exp().sum(), torch.ones((), dtype=torch.float64))
    assert output.tier1_logits.shape == (12, 3)
    assert output.attention.sum().item() == pytest.approx(1)
    partitions = batch_groups(batch, 0, 4, splits=3, training=False)
    state = {key: value.numpy() for key, value in one.state_dict().items()}
    each = [
        torch.from_numpy(
            reference.dtfd(batch.features.numpy(), p.numpy(), state, distillation="afs", q=1, cam_class="last")[0]
        ).softmax(-1)
        for p in partitions
    ]
    assert torch.allclose(output.logits[0].exp(), torch.stack(each).mean(0), atol=1e-6)


def test_levels_share_the_partition_in_training():
    model = HierarchicalModel("dtfd", in_features=5, num_classes=[3, 3], embedding_features=8)
    model.towers[1].load_state_dict(model.towers[0].state_dict())
    coarse, fine = model.train()(torch.randn(40, 5))
    assert torch.equal(coarse.tier1_logits, fine.tier1_logits)


@pytest.mark.parametrize(
    "options",
    [{"distillation": "best"}, {"tier2_gradient": "none"}, {"cam_class": 3}, {"pseudo_bags": 0}, {"splits": 0}],
)
def test_bad_options(options):
    with pytest.raises(ParameterError):
        small(**options)


def test_residual_blocks():
    model = small(residual_blocks=1)
    rows = torch.randn(3, 8, dtype=torch.float64)
    block = model.residual[0]
    expected = rows + (block.second.weight @ (block.first.weight @ rows.T).relu()).relu().T
    assert torch.allclose(block(rows), expected)


@given(seed=st.integers(0, 10_000), rows=st.tuples(st.integers(1, 40), st.integers(1, 40)), count=st.integers(1, 8))
def test_every_pseudo_bag_of_a_remix_holds_its_share_of_both_bags(seed, rows, count):
    origins = torch.tensor([1] * rows[0] + [0] * rows[1])[torch.randperm(sum(rows))].to(torch.int8)
    groups = stratified_groups(origins, count, torch.Generator().manual_seed(seed))
    order = torch.randperm(len(origins), generator=torch.Generator().manual_seed(seed)).tolist()
    assert groups.tolist() == dealt(origins.tolist(), order, count)
    for origin in (0, 1):
        shares = torch.bincount(groups[origins == origin], minlength=count)
        assert shares.max() - shares.min() <= 1
    alone = random_groups(len(origins), count, torch.Generator().manual_seed(seed))
    assert torch.bincount(groups, minlength=count).tolist() == torch.bincount(alone, minlength=count).tolist()


def test_only_remixed_bags_are_dealt_by_origin():
    """Without a remix the partition is bit for bit the random one; with one, no pseudo-bag lacks the label's rows."""
    features, seeds = torch.randn(24, 3), (7, 8)
    plain = BagBatch(features, (12, 12), ("s", "t"), seeds)
    origins = torch.tensor([0] * 12 + [1] * 8 + [0] * 4, dtype=torch.int8)
    remixed = BagBatch(features, (12, 12), ("s", "t"), seeds, origins)
    random, dealt_ = ([batch_groups(b, i, 4, splits=1, training=True)[0] for i in (0, 1)] for b in (plain, remixed))
    assert torch.equal(random[0], dealt_[0])
    assert sorted(dealt_[1][8:].tolist()) == [0, 1, 2, 3]
    assert sorted(dealt_[1][:8].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    evaluated = [batch_groups(b, 1, 4, splits=2, training=False) for b in (plain, remixed)]
    assert torch.equal(*evaluated)
    tiny = BagBatch(features[:3], (3,), ("s",), (1,), torch.tensor([0, 1, 1], dtype=torch.int8))
    assert sorted(batch_groups(tiny, 0, 4, splits=1, training=True)[0].tolist()) == [0, 1, 2]


def test_origins_follow_their_rows():
    batch = BagBatch(torch.zeros(5, 2), (2, 3), origins=torch.arange(5))
    assert batch.to("cpu").origins.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ModelInputError, match="origin of each of 5 rows, found 4"):
        BagBatch(torch.zeros(5, 2), (2, 3), origins=torch.arange(4))
    large = BagBatch(torch.zeros(80_000, 1), (40_000, 40_000), origins=torch.arange(80_000))
    assert [piece.origins[0].item() for piece in large.pieces()] == [0, 40_000]
