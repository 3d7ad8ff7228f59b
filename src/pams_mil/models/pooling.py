"""Poolings without attention: the mean, the maximum, and a linear probe on one vector per slide.

Mean pooling: h_i = ReLU(W x_i + b), z = (1/n) sum_i h_i, logits = C z + c.

Invariant to the order of the instances; every instance has attention 1/n.

Max pooling: h_i = ReLU(W x_i + b), z_k = max_i h_ik, logits = C z + c.

Invariant to the order of the instances. The attention of an instance is the share of the e coordinates in
which it is the (first) maximum.

One vector per slide, as TITAN, PRISM, CHIEF or GigaPath give it: logits = C z + c with z = x, a linear probe.

    z = (1/n) sum_i x_i                          n = 1 for slide vectors; several slides of one case are averaged
    z <- ReLU(W z + b)                           with embedding_features: one hidden layer

Invariant to the order of the instances; every instance has attention 1/n.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from pams_mil.errors import Count
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head
from pams_mil.models.core.mil_model import Embedded, MILModel, Widths
from pams_mil.models.layers.attention_pool import CHUNK_ROWS, Projection
from pams_mil.ops import at_least_float32

DISCOVER = {"mean_pool": "MeanPool", "max_pool": "MaxPool", "linear": "LinearProbe"}


class _Pooled(MILModel):
    """A projection of every instance, pooled, and a linear head."""

    packs = True  # the projection does not know of bags

    def __init__(self, **widths: Unpack[Widths]) -> None:
        super().__init__(**widths)
        self.projection = Projection(self.in_features, self.embedding_features)


class MeanPool(_Pooled):
    """The mean of the projected instances and a linear head."""

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Mean vectors [b, e]."""
        if torch.is_grad_enabled() or len(batch.features) <= CHUNK_ROWS:
            means = [rows.mean(0) for rows in batch.split(self.projection(batch.features))]
        else:
            means = [self.projection.mean(bag) for bag in batch.bags()]
        return Embedded(torch.stack(means), _even(batch) if attention else None)


class MaxPool(_Pooled):
    """The coordinate-wise maximum of the projected instances and a linear head."""

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Maximum vectors [b, e]."""
        if torch.is_grad_enabled() or len(batch.features) <= CHUNK_ROWS:
            maxima: list[tuple[Tensor, Tensor]] = [rows.max(0) for rows in batch.split(self.projection(batch.features))]
        else:
            maxima = [self._streamed(bag) for bag in batch.bags()]
        weights = None
        if attention:
            counts = zip(maxima, batch.sizes, strict=True)
            weights = torch.cat([torch.bincount(rows, minlength=n) / len(rows) for (_, rows), n in counts])
        return Embedded(torch.stack([top for top, _ in maxima]), weights)

    def _streamed(self, bag: Tensor) -> tuple[Tensor, Tensor]:
        pieces = [self.projection(piece).max(0) for piece in torch.split(bag, CHUNK_ROWS)]
        top, piece = torch.stack([values for values, _ in pieces]).max(0)
        # Of every coordinate, the row within the piece that holds the maximum.
        rows = torch.stack([within for _, within in pieces]).gather(0, piece[None])[0]
        return top, rows + piece * CHUNK_ROWS


class LinearProbe(MILModel):
    """A linear head on the slide's vector.

    Args:
        in_features: feature width d.
        num_classes: c.
        embedding_features: width of a hidden layer; None: no hidden layer, the head sees the vector itself.
        head: "linear" or "normalized".
    """

    packs = True  # a mean of rows does not know of other bags
    precision: Tensor

    def __init__(
        self, *, in_features: Count, num_classes: Count, embedding_features: Count | None = None, head: str = "linear"
    ) -> None:
        super().__init__(
            in_features=in_features, num_classes=num_classes, embedding_features=embedding_features or in_features,
            head=head,
        )  # fmt: skip
        # Where nothing else has weights, this follows the model to its device and precision.
        self.register_buffer("precision", torch.ones(()), persistent=False)
        self.hidden = None if embedding_features is None else Projection(in_features, embedding_features)

    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """The vectors [b, e]."""
        means = torch.stack([self._mean(bag) for bag in batch.bags()])
        return Embedded(means if self.hidden is None else self.hidden(means), _even(batch) if attention else None)

    def _mean(self, bag: Tensor) -> Tensor:
        return at_least_float32(bag).mean(0).to(self.precision.dtype)


def _even(batch: BagBatch) -> Tensor:
    """Attention 1/n of every instance."""
    return torch.cat([torch.full((n,), 1 / n, device=batch.features.device) for n in batch.sizes])
