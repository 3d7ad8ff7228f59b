"""What every model guarantees, over everything that discovery lists; and the suite rejects a model that breaks it."""

from __future__ import annotations

import copy

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from pams_mil import discover
from pams_mil.errors import ConfigError, ModelInputError, ParameterError
from pams_mil.models import BagBatch, create_model
from pams_mil.models.core.mil_model import Embedded, MILModel
from pams_mil.models.pooling import MeanPool

VARIANTS = {
    "linear, no hidden layer": ("linear", {"embedding_features": None}),
    "priority, smooth_max": ("priority", {"pooling": "smooth_max"}),
    "priority, mean": ("priority", {"pooling": "mean"}),
}
NAMES = [*discover.available("models"), *VARIANTS]
WIDTH = 6


def create(name, **options):
    name, variant = VARIANTS.get(name, (name, {}))
    return create_model(name, **{"in_features": WIDTH, "num_classes": 3, "embedding_features": 64} | variant | options)


def build(name, **options):
    torch.manual_seed(0)
    return create(name, **options)


def bags(*sizes):
    torch.manual_seed(sum(sizes))
    return [torch.randn(n, WIDTH) for n in sizes]


def check_batch_composition(model):
    """A bag alone, packed with others and padded with garbage gives the same logits and attention."""
    parts = bags(5, 300, 1, 64)
    parts[1] *= 30
    keys = ("a", "b", "c", "d")
    packed = model(BagBatch.pack(parts, keys=keys), attention=True)
    attention = BagBatch.pack(parts).split(packed.attention)
    for index, part in enumerate(parts):
        alone = model(BagBatch.single(part, keys[index]), attention=True)
        assert torch.allclose(alone.logits[0], packed.logits[index], atol=1e-5)
        assert torch.allclose(alone.attention, attention[index], atol=1e-5)
    padded = torch.full((4, 310, WIDTH), 7.0)
    mask = torch.zeros(4, 310, dtype=torch.bool)
    for index, part in enumerate(parts):
        padded[index, : len(part)], mask[index, : len(part)] = part, True
    unkeyed = model(BagBatch.pack(parts))
    assert torch.allclose(model(padded, mask=mask).logits, unkeyed.logits, atol=1e-5)


def test_the_expected_models_are_discovered():
    assert set(NAMES) >= {"abmil", "clam_mb", "clam_sb", "dtfd", "max_pool", "mean_pool", "priority", "transmil"}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_batch_composition_does_not_matter(name, grad):
    with torch.set_grad_enabled(grad):
        check_batch_composition(build(name).eval())


class Coupled(MeanPool):
    """Sabotage: scales every bag by a maximum over the whole batch."""

    def embed(self, batch, *, attention=False, tier1_head=None):
        honest = super().embed(batch, attention=attention)
        return Embedded(honest.vectors / honest.vectors.abs().max(), honest.attention)


def test_a_model_that_couples_bags_is_rejected():
    torch.manual_seed(0)
    with pytest.raises(AssertionError):
        check_batch_composition(Coupled(in_features=WIDTH, num_classes=3).eval())


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_deterministic_and_streams_to_the_same_result(name):
    model = build(name, **({"dropout": 0.9} if name in ("transmil", "clam_sb", "clam_mb") else {})).eval()
    (bag,) = bags(5000)
    first, second = model(bag, attention=True), model(bag, attention=True)
    assert torch.equal(first.logits, second.logits)
    with torch.inference_mode():
        streamed = model(bag, attention=True)
    assert torch.allclose(first.logits, streamed.logits, atol=1e-5)
    assert torch.allclose(first.embedding, streamed.embedding, atol=1e-5)
    assert torch.allclose(first.attention, streamed.attention, atol=1e-6)


@settings(max_examples=12)
@given(n=st.integers(1, 400), width=st.integers(1, 9), classes=st.integers(1, 8))
@pytest.mark.parametrize("name", NAMES)
def test_any_bag_width_and_number_of_classes(name, n, width, classes):
    model = create(name, in_features=width, num_classes=classes, embedding_features=16)
    output = model(torch.randn(n, width), attention=True)
    assert output.logits.shape == (1, classes)
    if not model.own_head:
        assert output.embedding.shape == (1, 16)
        assert output.weight.shape == (classes, 16)
    assert output.attention.shape == (n,)
    assert output.attention.min() >= 0
    assert output.attention.sum().item() == pytest.approx(1, abs=1e-4)
    assert torch.isfinite(output.logits).all()
    assert model(torch.randn(n, width)).attention is None


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_learns(name):
    model = build(name, **({"tier2_gradient": "joint"} if name == "dtfd" else {})).train()
    batch = BagBatch.pack(bags(20, 7))
    output = model(batch)
    loss = output.logits.square().sum()
    if output.tier1_logits is not None:
        loss = loss + output.tier1_logits.square().sum()
    if output.auxiliary is not None:
        loss = loss + sum(values.sum() for k in range(3) for values in output.auxiliary(torch.tensor([k, k])).values())
    loss.backward()
    silent = [key for key, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    # A softmax does not change with a constant added to its scores.
    assert all(key.endswith("outer.bias") for key in silent), silent


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_autocast_and_half_precision_features(name):
    model = build(name)
    (bag,) = bags(50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(bag, attention=True)
        output.logits.float().sum().backward()
    assert torch.isfinite(output.logits.float()).all()
    assert output.attention.float().sum().item() == pytest.approx(1, abs=0.02)
    model.eval()
    full = model(bag.half().float()).logits
    assert torch.allclose(model(bag.half()).logits, full, atol=1e-5)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(model(bag).logits.float(), full, atol=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_state_round_trips(name):
    model = build(name).eval()
    other = create(name).eval()
    other.load_state_dict(copy.deepcopy(model).state_dict())
    (bag,) = bags(9)
    assert torch.equal(model(bag).logits, other(bag).logits)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(0, WIDTH), "Bag 0 is empty"),
        (torch.zeros(3, WIDTH + 1), "7 features per instance, but the model takes 6"),
        (torch.full((3, WIDTH), float("nan")), "18 non-finite values, the first at row 0, column 0"),
        (torch.tensor([[0.0] * 5 + [float("inf")]]), "row 0, column 5"),
        (torch.zeros(WIDTH), r"found shape \[6\]"),
        (torch.zeros(1, 2, 3, WIDTH), "found shape"),
        (torch.zeros(3, WIDTH, dtype=torch.long), "floating-point features, found int64"),
        (BagBatch.pack([torch.ones(2, WIDTH), torch.zeros(0, WIDTH)], keys=("a", "b")), r"Bag 1 \('b'\) is empty"),
        ("slide.h5", "found str"),
    ],
)
def test_bad_input_is_refused_before_any_compute(name, bad, message, monkeypatch):
    model = build(name)
    monkeypatch.setattr(type(model), "embed", lambda *_, **__: pytest.fail("computed"))
    with pytest.raises(ModelInputError, match=message):
        model(bad)


def test_large_finite_values_are_not_mistaken_for_infinite():
    bag = torch.full((4, WIDTH), 3e38)
    from pams_mil.models.core.inputs import as_batch

    assert as_batch(bag, mask=None, in_features=WIDTH).sizes == (4,)


@pytest.mark.parametrize(
    ("mask", "message"),
    [(torch.ones(2, 4), "Expected a mask of shape"), (torch.tensor([[1, 1, 1], [0, 0, 0]]), "Bag 1 is empty")],
)
def test_bad_masks(mask, message):
    with pytest.raises(ModelInputError, match=message):
        build("abmil")(torch.zeros(2, 3, WIDTH), mask=mask)


def test_bag_batch_refuses_wrong_sizes_and_keys():
    with pytest.raises(ModelInputError, match="add up to 3"):
        BagBatch(torch.zeros(2, 1), (3,))
    with pytest.raises(ModelInputError, match="one of keys"):
        BagBatch(torch.zeros(2, 1), (2,), ("a", "b"))
    with pytest.raises(ModelInputError, match="at least one bag"):
        BagBatch.pack([])


def test_unknown_names_and_options_suggest_the_right_ones():
    with pytest.raises(ConfigError, match="Did you mean 'transmil'"):
        create_model("transmill", in_features=2, num_classes=2)
    with pytest.raises(ConfigError, match="Did you mean 'landmarks'"):
        create_model("transmil", in_features=2, num_classes=2, landmark=3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("abmil", {"gated": "maybe"}, "gated must be true or false, found 'maybe'"),
        ("clam_sb", {"dropout": "much"}, "dropout must be a finite number of at least 0 and below 1, found 'much'"),
        ("clam_sb", {"instance_weight": "half"}, "instance_weight must be a finite number of at least 0, found 'half'"),
        ("dtfd", {"residual_blocks": -1}, "residual_blocks must be a whole number of at least 0, found -1"),
        ("dtfd", {"residual_blocks": "two"}, "residual_blocks must be a whole number"),
        ("linear", {"embedding_features": 0}, "embedding_features must be a whole number of at least 1, found 0"),
        ("max_pool", {"num_classes": 0}, "num_classes must be a whole number of at least 1, found 0"),
    ],
)
def test_options_of_another_type_or_range_are_refused_in_words(name, options, message):
    with pytest.raises(ParameterError, match=message):
        create_model(name, **{"in_features": 4, "num_classes": 2, **options})


def test_numbers_of_numpy_are_numbers():
    model = create_model("clam_sb", in_features=np.int64(4), num_classes=np.int32(2), dropout=np.float32(0.5))
    assert model(torch.zeros(3, 4)).logits.shape == (1, 2)


def test_a_model_whose_annotations_are_for_type_checkers_only_is_made_unchecked():
    class Sum(MILModel):
        def __init__(self, *, scale: OnlyForTypeCheckers = 1.0, **widths: OnlyForTypeCheckers):  # noqa: F821
            super().__init__(**widths)
            self.scale = scale

        def embed(self, batch, *, attention=False, tier1_head=None):
            return Embedded(torch.stack([self.scale * bag.sum(0) for bag in batch.bags()]))

    model = create_model(Sum, in_features=4, num_classes=2, embedding_features=4, scale=2.0)
    assert model(torch.zeros(3, 4)).logits.shape == (1, 2)
