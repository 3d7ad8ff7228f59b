"""The models that ours are compared with: published compositions and, where installed, torchmil's."""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from pams_mil.models import BagBatch, create_model, load_published
from pams_mil.models.layers.pseudo_bags import batch_groups

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
    """DTFD-AFS as a plain loop over pseudo-bags, each projected, attended and pooled on its own; nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, 512, bias=False)
        self.v, self.u, self.w = nn.Linear(512, 128), nn.Linear(512, 128), nn.Linear(128, 1)
        self.head1 = nn.Linear(512, CLASSES)
        self.v2, self.u2, self.w2 = nn.Linear(512, 128), nn.Linear(512, 128), nn.Linear(128, 1)
        self.head2 = nn.Linear(512, CLASSES)

    def forward(self, bag: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [1, c] and tier-1 logits [4, c] of one bag [n, d]."""
        pooled = [self.pool(bag.index_select(0, chunk)) for chunk in self.chunks(bag)]
        rows = self.seen_by_tier2(torch.cat(pooled))
        alpha = torch.softmax(self.w2(torch.tanh(self.v2(rows)) * torch.sigmoid(self.u2(rows))).T, dim=1)
        return self.head2(alpha @ rows), torch.cat([self.head1(vector) for vector in pooled])

    def chunks(self, bag: Tensor) -> list[Tensor]:
        """The row numbers of each of four pseudo-bags, the same as ours."""
        batch = BagBatch(bag, (len(bag),), seeds=(0,))
        groups = batch_groups(batch, 0, 4, splits=1, training=self.training)[0]
        return [(groups == group).nonzero().squeeze(1) for group in range(4)]

    def alpha(self, rows: Tensor) -> Tensor:
        """Tier-1 attention [1, m]."""
        return torch.softmax(self.w(torch.tanh(self.v(rows)) * torch.sigmoid(self.u(rows))).T, dim=1)

    def pool(self, features: Tensor) -> Tensor:
        """The vector [1, e] of a pseudo-bag [m, d]."""
        rows = torch.relu(self.projection(features))
        return self.alpha(rows) @ rows

    def seen_by_tier2(self, pooled: Tensor) -> Tensor:
        """Tier 2 sends no gradient to tier 1."""
        return pooled.detach()


class PublishedDTFD(LoopDTFD):
    """The same loop with all that the step of its authors does.

    They shuffle a list of row numbers, weight the instances one by one, rank those of every pseudo-bag and pick the
    extreme ones although AFS does not ask for them, and send the gradient of tier 2 through tier 1 although their
    optimizer never sees it there.
    """

    def chunks(self, bag: Tensor) -> list[Tensor]:
        """Four chunks of a shuffled list, when training."""
        if not self.training:
            return super().chunks(bag)
        numbers = list(range(len(bag)))
        random.shuffle(numbers)
        return [torch.LongTensor(chunk.tolist()) for chunk in np.array_split(np.array(numbers), 4)]

    def pool(self, features: Tensor) -> Tensor:
        """The vector [1, e] of a pseudo-bag [m, d], and its first and last instance by class activation."""
        rows = torch.relu(self.projection(features))
        weighted = torch.einsum("me,m->me", rows, self.alpha(rows).squeeze(0))
        activation = torch.einsum("bme,ce->bcm", weighted[None], self.head1.weight)[0].T
        order = activation.softmax(1)[:, -1].sort(descending=True).indices
        rows.index_select(0, order[:1]), rows.index_select(0, torch.cat([order[:1], order[-1:]]))
        return weighted.sum(0, keepdim=True)

    def seen_by_tier2(self, pooled: Tensor) -> Tensor:
        """Tier 2 sends its gradient on."""
        return pooled

    def parts(self) -> list[list[nn.Parameter]]:
        """Projection, attention, tier-1 head and tier 2: what the authors clip one by one."""
        attention, tier2 = (self.v, self.u, self.w), (self.v2, self.u2, self.w2, self.head2)
        modules = ((self.projection,), attention, (self.head1,), tier2)
        return [[weight for module in part for weight in module.parameters()] for part in modules]

    def tiers(self) -> list[list[nn.Parameter]]:
        """What each of the two optimizers has."""
        *tier1, tier2 = self.parts()
        return [list(chain.from_iterable(tier1)), tier2]


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
    loop = LoopDTFD() if contender == "loop" else PublishedDTFD()
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
