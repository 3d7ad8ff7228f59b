"""TransMIL equals its equations, the published composition, and itself in any batch."""

from __future__ import annotations

import math

import pytest
import torch
from tests.reference import transmil as reference
from torch import nn

from pams_mil.errors import ParameterError
from pams_mil.models import BagBatch, create_model, load_published

SIZES = (1, 2, 3, 255, 256, 257, 1000)


def numpy_state(model):
    return {key: value.double().numpy() for key, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("in_features", "num_classes", "count"),
    [(1024, 2, 2_672_146), (384, 7, 2_347_031), (384, 3, 2_344_979), (2048, 7, 3_198_999)],
)
def test_parameter_count(in_features, num_classes, count):
    model = create_model("transmil", in_features=in_features, num_classes=num_classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("n", SIZES)
def test_equals_the_equations(n):
    torch.manual_seed(n)
    options = {"embedding_features": 32, "attention_heads": 2, "landmarks": 256 if n < 1000 else 64}
    model = create_model("transmil", in_features=5, num_classes=3, **options).double().eval()
    bag = torch.randn(n, 5, dtype=torch.float64)
    expected = reference.transmil(bag.numpy(), numpy_state(model), heads=2, landmarks=options["landmarks"])
    assert torch.allclose(model(bag).logits[0], torch.from_numpy(expected), atol=1e-9)
    graph = model.head(model.trace(bag).vectors)[0]
    assert torch.allclose(graph, torch.from_numpy(expected), atol=1e-9)
    single = model.float()(bag.float()).logits[0].double()
    assert torch.allclose(single, torch.from_numpy(expected), atol=1e-4)


class PublishedLayer(nn.Module):
    def __init__(self, width: int) -> None:
        nystrom = pytest.importorskip("nystrom_attention")
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = nystrom.NystromAttention(
            dim=width,
            dim_head=width // 8,
            heads=8,
            num_landmarks=width // 2,
            pinv_iterations=6,
            residual=True,
            dropout=0.1,
        )

    def forward(self, x):
        return x + self.attn(self.norm(x))


class PublishedComposition(nn.Module):
    """TransMIL around the nystrom-attention package, with the original's parameter names."""

    def __init__(self, in_features: int, num_classes: int, width: int = 512) -> None:
        super().__init__()
        self._fc1 = nn.Sequential(nn.Linear(in_features, width), nn.ReLU())
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.layer1, self.layer2 = PublishedLayer(width), PublishedLayer(width)
        self.pos_layer = nn.Module()
        for name, size in (("proj", 7), ("proj1", 5), ("proj2", 3)):
            setattr(self.pos_layer, name, nn.Conv2d(width, width, size, padding=size // 2, groups=width))
        self.norm = nn.LayerNorm(width)
        self._fc2 = nn.Linear(width, num_classes)

    def forward(self, bag):
        h = self._fc1(bag)[None]
        side = math.ceil(math.sqrt(len(bag)))
        x = self.layer1(torch.cat([self.cls_token, h, h[:, : side * side - len(bag)]], 1))
        square = x[:, 1:].transpose(1, 2).reshape(1, -1, side, side)
        convolved = square + sum(conv(square) for conv in self.pos_layer.children())
        x = self.layer2(torch.cat([x[:, :1], convolved.flatten(2).transpose(1, 2)], 1))
        return self._fc2(self.norm(x)[:, 0])


@pytest.mark.parametrize("n", [1, 3, 255, 256, 300])
def test_equals_the_published_composition_with_its_weights_and_gradients(n):
    torch.manual_seed(n)
    published = PublishedComposition(8, 3, width=64).double().eval()
    model = create_model("transmil", in_features=8, num_classes=3, embedding_features=64, landmarks=32).double().eval()
    load_published(model, published.state_dict())
    bag = torch.randn(n, 8, dtype=torch.float64)
    ours, theirs = model(bag).logits, published(bag)
    assert torch.allclose(ours, theirs, atol=1e-6)  # the package builds its identity in float32
    ours.square().sum().backward()
    theirs.square().sum().backward()
    pairs = [
        (model.projection.weight, published._fc1[0].weight),
        (model.class_token, published.cls_token),
        (model.layer1.attention.qkv.weight, published.layer1.attn.to_qkv.weight),
        (model.layer2.attention.qkv.weight, published.layer2.attn.to_qkv.weight),
        (model.layer1.attention.taps, published.layer1.attn.res_conv.weight),
        (model.layer2.attention.taps, published.layer2.attn.res_conv.weight),
        (model.position.conv5.weight, published.pos_layer.proj1.weight),
        (model.norm.bias, published.norm.bias),
    ]
    for own, other in pairs:
        assert torch.allclose(own.grad.flatten(), other.grad.flatten(), atol=1e-6)


def test_attention_is_the_class_tokens_row_of_the_full_product():
    torch.manual_seed(0)
    model = create_model(
        "transmil", in_features=4, num_classes=2, embedding_features=16, attention_heads=2, landmarks=8
    )
    model = model.double().eval()
    attention = model.layer2.attention
    tokens = torch.randn(30, 16, dtype=torch.float64)
    _, row = attention.class_token(tokens)
    whole = attention(tokens)
    taps = attention.taps.clone()
    attention.taps.data.zero_()
    values = (tokens @ attention.qkv.weight[32:].T).reshape(30, 2, 8).transpose(0, 1)
    first = attention.out((row[:, None] @ values).reshape(1, -1))
    assert torch.allclose(first, attention(tokens)[:1], atol=1e-10)
    attention.taps.data.copy_(taps)
    assert torch.allclose(attention.class_token(tokens)[0], whole[:1], atol=1e-10)


def test_order_matters():
    torch.manual_seed(0)
    model = create_model("transmil", in_features=4, num_classes=2, embedding_features=32, landmarks=8).eval()
    bag = torch.randn(20, 4)
    assert not torch.allclose(model(bag).logits, model(bag.flip(0)).logits, atol=1e-4)


def test_extreme_neighbors_do_not_change_a_bag():
    torch.manual_seed(0)
    model = create_model("transmil", in_features=6, num_classes=3, embedding_features=64, landmarks=32).eval()
    bag, wild = torch.randn(40, 6), 50 * torch.randn(333, 6)
    alone = model(bag).logits
    packed = model(BagBatch.pack([wild, bag, wild[:1]])).logits[1:2]
    assert torch.allclose(alone, packed, atol=1e-5)


def test_pseudo_inverse_stays_in_float32_under_autocast(monkeypatch):
    import pams_mil.models.layers.nystrom as module

    seen = []
    real = module.pseudo_inverse_apply
    monkeypatch.setattr(
        module, "pseudo_inverse_apply", lambda a, *rest, **kw: seen.append(a.dtype) or real(a, *rest, **kw)
    )
    model = create_model("transmil", in_features=6, num_classes=3, embedding_features=64, landmarks=32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(50, 6)).logits.sum().backward()
    assert seen == [torch.float32, torch.float32]
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("options", [{"attention_heads": 3}, {"dropout": 1.0}, {"kernel": 4}, {"landmarks": 0}])
def test_bad_options(options):
    with pytest.raises(ParameterError):
        create_model("transmil", in_features=6, num_classes=3, embedding_features=64, **options)
