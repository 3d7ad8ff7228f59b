"""The models that ours are compared with: published compositions and, where installed, torchmil's."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pams_mil.models import BagBatch, create_model, load_published
from pams_mil.models.partition import batch_groups

WIDTH, CLASSES = 384, 7


def installed(package: str) -> bool:
    """Whether a peer package can be imported."""
    return importlib.util.find_spec(package) is not None


class _Layer(nn.Module):
    def __init__(self) -> None:
        from nystrom_attention import NystromAttention

        super().__init__()
        self.norm = nn.LayerNorm(512)
        self.attn = NystromAttention(
            dim=512, dim_head=64, heads=8, num_landmarks=256, pinv_iterations=6, residual=True, dropout=0.1
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm(x))


class PublishedTransMIL(nn.Module):
    """TransMIL as its paper composes it, around the nystrom-attention package."""

    def __init__(self) -> None:
        super().__init__()
        self._fc1 = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU())
        self.cls_token = nn.Parameter(torch.randn(1, 1, 512))
        self.layer1, self.layer2 = _Layer(), _Layer()
        self.pos_layer = nn.Module()
        for name, size in (("proj", 7), ("proj1", 5), ("proj2", 3)):
            setattr(self.pos_layer, name, nn.Conv2d(512, 512, size, padding=size // 2, groups=512))
        self.norm = nn.LayerNorm(512)
        self._fc2 = nn.Linear(512, CLASSES)

    def forward(self, bag: Tensor) -> Tensor:
        """Logits [1, c] of one bag [n, d]."""
        h = self._fc1(bag[None])
        side = math.ceil(math.sqrt(len(bag)))
        h = torch.cat([h, h[:, : side * side - len(bag)]], dim=1)
        x = self.layer1(torch.cat([self.cls_token, h], dim=1))
        token, rest = x[:, :1], x[:, 1:]
        square = rest.transpose(1, 2).reshape(1, 512, side, side)
        position = self.pos_layer
        square = position.proj(square) + square + position.proj1(square) + position.proj2(square)
        x = self.layer2(torch.cat([token, square.flatten(2).transpose(1, 2)], dim=1))
        return self._fc2(self.norm(x)[:, 0])


class LoopDTFD(nn.Module):
    """DTFD-AFS as a plain loop over pseudo-bags, each projected, attended and pooled on its own.

    The published step does more than it needs for AFS, and so does this one if `published`: it ranks the instances of
    every pseudo-bag, and sends the gradient of tier 2 through tier 1 too.
    """

    def __init__(self, *, published: bool) -> None:
        super().__init__()
        self.published = published
        self.projection = nn.Linear(WIDTH, 512, bias=False)
        self.v, self.u, self.w = nn.Linear(512, 128), nn.Linear(512, 128), nn.Linear(128, 1)
        self.head1 = nn.Linear(512, CLASSES)
        self.v2, self.u2, self.w2 = nn.Linear(512, 128), nn.Linear(512, 128), nn.Linear(128, 1)
        self.head2 = nn.Linear(512, CLASSES)

    def forward(self, bag: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [1, c] and tier-1 logits [4, c] of one bag [n, d]."""
        batch = BagBatch(bag, (len(bag),), seeds=(0,))
        groups = batch_groups(batch, 0, 4, splits=1, training=self.training)[0]
        pooled, logits = [], []
        for group in range(4):
            rows = torch.relu(self.projection(bag.index_select(0, (groups == group).nonzero().squeeze(1))))
            scores = self.w(torch.tanh(self.v(rows)) * torch.sigmoid(self.u(rows)))
            weighted = torch.softmax(scores.T, dim=1).T * rows
            pooled.append(weighted.sum(0, keepdim=True))
            logits.append(self.head1(pooled[-1]))
            if self.published:
                torch.softmax(weighted @ self.head1.weight.T, dim=1)[:, -1].sort(descending=True)
        rows = torch.cat(pooled)
        rows = rows if self.published else rows.detach()
        alpha = torch.softmax(self.w2(torch.tanh(self.v2(rows)) * torch.sigmoid(self.u2(rows))).T, dim=1)
        return self.head2(alpha @ rows), torch.cat(logits)


Loss = Callable[[Tensor], list[Tensor]]
_LABEL = torch.tensor([3])


def _cross_entropy(logits: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, _LABEL.expand(len(logits)))


def build(kind: str, contender: str) -> tuple[nn.Module, Loss]:
    """A contender and its losses on one bag [n, d], back-propagated one by one; calling the model is inference.

    The published DTFD has two: its tier-1 loss first, then its tier-2 loss through tier 1 once more.
    """
    torch.manual_seed(0)
    if contender == "torchmil":
        return _torchmil(kind)
    if contender == "pams":
        model = create_model(kind, in_features=WIDTH, num_classes=CLASSES)
        if kind == "transmil" and installed("nystrom_attention"):
            torch.manual_seed(0)
            load_published(model, PublishedTransMIL().state_dict())
        return model, lambda bag: [_own_loss(model, bag)]
    if kind == "transmil":
        published = PublishedTransMIL()
        return published, lambda bag: [_cross_entropy(published(bag))]
    loop = LoopDTFD(published=contender == "published")
    if contender == "loop":
        return loop, lambda bag: [sum((_cross_entropy(part) for part in loop(bag)), torch.zeros(()))]
    return loop, lambda bag: [_cross_entropy(part) for part in reversed(loop(bag))]


def _own_loss(model: nn.Module, bag: Tensor) -> Tensor:
    output = model(BagBatch(bag, (len(bag),), seeds=(0,)))
    tier1 = 0.0 if output.tier1_logits is None else _cross_entropy(output.tier1_logits)
    return _cross_entropy(output.logits) + tier1


def _torchmil(kind: str) -> tuple[nn.Module, Loss]:
    from torchmil import models

    project = nn.Sequential(nn.Linear(WIDTH, 512, bias=kind != "dtfd"), nn.ReLU())
    shape = (WIDTH,)
    if kind == "transmil":
        model = models.TransMIL(shape, att_dim=512, n_heads=8, n_landmarks=256, dropout=0.1, feat_ext=project)
    elif kind == "dtfd":
        model = models.DTFDMIL(shape, att_dim=128, n_groups=4, distill_mode="afs", feat_ext=project)
    else:
        model = models.ABMIL(shape, att_dim=128, gated=True, feat_ext=project)
    inner = model.forward
    # A padded batch of one bag, as its loader would make it.
    model.forward = lambda bag, *rest, **options: inner(bag[None] if bag.ndim == 2 else bag, *rest, **options)
    label = torch.ones(1)

    def loss(bag: Tensor) -> list[Tensor]:
        _, terms = model.compute_loss(label, bag[None])
        return [sum(terms.values(), torch.zeros(()))]

    return model, loss


def copy_into_loop(model: nn.Module, loop: LoopDTFD) -> None:
    """Give the plain loop the weights of our DTFD."""
    state = {
        "projection.weight": model.projection.weight,
        "head1.weight": model.tier1_head.weight,
        "head1.bias": model.tier1_head.bias,
        "head2.weight": model.head.weight,
        "head2.bias": model.head.bias,
    }
    for scores, suffix in ((model.tier1_scores, ""), (model.tier2_scores, "2")):
        for part in ("weight", "bias"):
            value = getattr(scores.inner, part)
            state[f"v{suffix}.{part}"], state[f"u{suffix}.{part}"] = value.chunk(2)
            state[f"w{suffix}.{part}"] = getattr(scores.outer, part)
    loop.load_state_dict(state)
